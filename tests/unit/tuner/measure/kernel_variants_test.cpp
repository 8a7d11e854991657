// kernel_variants_test.cpp -- kernels of every family and fix-up compile with stamps, and without their merge. No GPU.
#include "tuner/measure/kernel_variants.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <utility>

#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

constexpr Arch kHopper{9, 0, true};

EmittedKernel emitted(LoadPath load, FixUp fixup, bool pdl = false) {
  DecodeProblem problem;
  if (load == LoadPath::vector) problem.q_heads = problem.kv_heads;
  problem.pdl = pdl;
  KernelSpec spec = base_spec(kHopper, problem);
  spec.load = load, spec.fixup = fixup, spec.tile = 64, spec.warps = 4, spec.warp_tokens = 16, spec.ctas_per_sm = 1;
  spec.stages = loads_to_registers(load) ? 1 : 2;
  return emit(spec).value();
}

/// A kernel whose warpgroups have roles, and whose contributors count their partials if they wait.
EmittedKernel with_roles(FixUp fixup) {
  DecodeProblem problem;
  problem.q_heads = 128, problem.kv_heads = 1, problem.head_dim = 576;
  problem.features.latent = true, problem.features.v_head_dim = 512;
  KernelSpec spec = base_spec(kHopper, problem);
  spec.load = LoadPath::tensor, spec.fixup = fixup, spec.tile = 64, spec.warps = 8, spec.warp_tokens = 16;
  spec.ctas_per_sm = 1, spec.stages = 2;
  return emit(spec).value();
}

constexpr FixUp kFixUps[] = {FixUp::ticket, FixUp::wait};

std::size_t times(std::string_view text, std::string_view piece) {
  std::size_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string_view::npos; at = text.find(piece, at + 1)) ++count;
  return count;
}

TEST(KernelVariants, StampEveryMomentOnce) {
  for (const LoadPath load : kLoadPaths) {
    for (const FixUp fixup : kFixUps) {
      const auto stamped = with_stamps(emitted(load, fixup));
      ASSERT_TRUE(stamped.has_value()) << stamped.error().message;
      for (int moment = 0; moment < kMoments; ++moment) {
        EXPECT_EQ(times(stamped->source, "stamp(args, " + std::to_string(moment) + ", "), 1u)
            << to_string(load) << ", " << to_string(static_cast<Moment>(moment));
      }
    }
  }
}

TEST(KernelVariants, KernelsWithRolesAreStampedAndLoseTheirMerge) {
  for (const FixUp fixup : kFixUps) {
    const EmittedKernel whole = with_roles(fixup);
    ASSERT_EQ(layout_of(whole.spec).family, &kWgmmaRoles);
    ASSERT_EQ(layout_of(whole.spec).counts_partials, fixup == FixUp::wait);
    const auto stamped = with_stamps(whole), shorter = without_merging(whole);
    ASSERT_TRUE(stamped.has_value() && shorter.has_value());
    for (int moment = 0; moment < kMoments; ++moment)
      EXPECT_EQ(times(stamped->source, "stamp(args, " + std::to_string(moment) + ", "), 1u)
          << to_string(static_cast<Moment>(moment));
    // A CTA without a range gets to the end, too.
    const std::string done = "if (any) stamp(args, " + std::to_string(static_cast<int>(Moment::done)) + ", ";
    EXPECT_EQ(times(stamped->source, done), 1u);
    EXPECT_EQ(times(shorter->source, "count_partial(args, f.c)"), 0u);
    if (fixup == FixUp::wait) {
      EXPECT_EQ(times(shorter->source, "completes_pair(args, fix, attention)"), 0u) << "it would wait for a count";
    }
  }
}

TEST(KernelVariants, EveryFamilyLosesItsMerge) {
  for (const LoadPath load : kLoadPaths) {
    for (const FixUp fixup : kFixUps) {
      const EmittedKernel whole = emitted(load, fixup);
      const auto shorter = without_merging(whole);
      ASSERT_TRUE(shorter.has_value()) << shorter.error().message;
      EXPECT_LT(shorter->source.size(), whole.source.size()) << to_string(load) << " " << to_string(fixup);
    }
  }
}

TEST(KernelVariants, OfKernelsWithLseHaveNowhereToStamp) {
  KernelSpec spec = emitted(LoadPath::bulk, FixUp::wait).spec;
  spec.lse = true;
  const auto stamped = with_stamps(emit(spec).value());
  ASSERT_FALSE(stamped.has_value());
  EXPECT_EQ(stamped.error().code, ErrorCode::invalid_argument);
}

TEST(KernelVariants, SayWhatTheTemplatesNoLongerHave) {
  EmittedKernel other = emitted(LoadPath::bulk, FixUp::wait);
  other.source = "int nothing;";
  for (const auto& variant : {without_merging(other), with_stamps(other)}) {
    ASSERT_FALSE(variant.has_value());
    EXPECT_EQ(variant.error().code, ErrorCode::internal);
    EXPECT_NE(variant.error().message.find("in one place"), std::string::npos) << variant.error().message;
  }
}

TEST(KernelVariants, CompileInEveryFamily) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  const std::pair<LoadPath, FixUp> few[] = {{LoadPath::ldg, FixUp::ticket},  {LoadPath::cp_async, FixUp::wait},
                                            {LoadPath::bulk, FixUp::wait},   {LoadPath::tensor, FixUp::ticket},
                                            {LoadPath::tensor, FixUp::wait}, {LoadPath::vector, FixUp::wait}};
  for (std::size_t i = 0; i < std::size(few); ++i) {
    if (!in_turn(i, std::size(few))) continue;
    const auto& [load, fixup] = few[i];
    const EmittedKernel whole = emitted(load, fixup, true);
    const auto shorter = without_merging(whole), stamped = with_stamps(whole);
    ASSERT_TRUE(shorter.has_value() && stamped.has_value());
    const auto of_whole = compile(whole), of_shorter = compile(*shorter), of_stamped = compile(*stamped);
    for (const auto* compiled : {&of_whole, &of_shorter, &of_stamped})
      ASSERT_TRUE(compiled->has_value()) << compiled->error().message << "\n" << compiled->error().log;
    EXPECT_LT(of_shorter->cubin.size(), of_whole->cubin.size()) << to_string(load) << " " << to_string(fixup);
    EXPECT_GT(of_stamped->cubin.size(), of_whole->cubin.size()) << to_string(load) << " " << to_string(fixup);
  }
}

}  // namespace
}  // namespace leanattn
