// Kernels of every family and fix-up compile with stamps, and without their merge. No GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <utility>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn {
namespace {

constexpr Arch kHopper{9, 0, true};

KernelSpec variant_spec(LoadPath load, FixUp fixup, bool pdl = false) {
  DecodeProblem problem;
  if (load == LoadPath::vector) problem.q_heads = problem.kv_heads;
  problem.pdl = pdl;
  KernelSpec spec = base_spec(kHopper, problem);
  spec.load = load, spec.fixup = fixup, spec.tile = 64, spec.warps = 4, spec.warp_tokens = 16, spec.ctas_per_sm = 1;
  spec.stages = loads_to_registers(load) ? 1 : 2;
  return spec;
}

/// A kernel whose warpgroups have roles, and whose contributors count their partials if they wait.
KernelSpec variant_spec_with_roles(FixUp fixup) {
  DecodeProblem problem;
  problem.q_heads = 128, problem.kv_heads = 1, problem.head_dim = 576;
  problem.features.latent = true, problem.features.v_head_dim = 512;
  KernelSpec spec = base_spec(kHopper, problem);
  spec.load = LoadPath::tensor, spec.fixup = fixup, spec.tile = 64, spec.warps = 8, spec.warp_tokens = 16;
  spec.ctas_per_sm = 1, spec.stages = 2;
  return spec;
}

constexpr FixUp kFixUps[] = {FixUp::ticket, FixUp::wait};

std::size_t times(std::string_view text, std::string_view piece) {
  std::size_t count = 0;
  for (std::size_t at = text.find(piece); at != std::string_view::npos; at = text.find(piece, at + 1)) ++count;
  return count;
}

void expect_each_moment_once(const KernelSpec& spec) {
  const auto stamped = emit(spec, KernelVariant::stamped);
  ASSERT_TRUE(stamped.has_value()) << stamped.error().message;
  for (const std::string_view moment :
       {"kStarted", "kPlaced", "kRequested", "kStreamed", "kGathered", "kFinished", "kDone"})
    EXPECT_EQ(times(stamped->source, fmt::format("stamp(args, {}", moment)), 1u) << kernel_name(spec) << ", " << moment;
  const std::string whole = emit(spec)->source;
  for (const std::string_view name : {"stamp(", "kStamped", "kMerges"})
    EXPECT_EQ(whole.find(name), std::string::npos) << kernel_name(spec) << " still has " << name;
}

TEST(KernelVariant, StampsEveryMomentOnceAndLeavesNothingInAWholeKernel) {
  for (const FixUp fixup : kFixUps) {
    for (const LoadPath load : kLoadPaths) expect_each_moment_once(variant_spec(load, fixup));
    const KernelSpec roles = variant_spec_with_roles(fixup);
    ASSERT_EQ(layout_of(roles).family, &kWgmmaRoles);
    expect_each_moment_once(roles);
    EXPECT_EQ(times(emit(roles, KernelVariant::stamped)->source, "if (any) stamp(args, kDone)"), 1u)
        << "a CTA without a range gets to the end, too";
  }
}

TEST(KernelVariant, EveryFamilyLosesItsMerge) {
  for (const FixUp fixup : kFixUps) {
    for (const KernelSpec& spec : {variant_spec(LoadPath::ldg, fixup), variant_spec(LoadPath::cp_async, fixup),
                                   variant_spec(LoadPath::bulk, fixup), variant_spec(LoadPath::tensor, fixup),
                                   variant_spec(LoadPath::vector, fixup), variant_spec_with_roles(fixup)}) {
      const auto unmerged = emit(spec, KernelVariant::unmerged);
      ASSERT_TRUE(unmerged.has_value()) << unmerged.error().message;
      // What reads partials, and what waits for their number, is reached no more.
      for (const std::string_view name : {"merge_all(", "reduce_share(", "await_partials(", "count_partial("})
        EXPECT_EQ(unmerged->source.find(name), std::string::npos) << kernel_name(spec) << ", " << name;
    }
  }
}

TEST(KernelVariant, OfAKernelWithLseHasNowhereToStamp) {
  KernelSpec spec = variant_spec(LoadPath::bulk, FixUp::wait);
  spec.lse = true;
  const auto stamped = emit(spec, KernelVariant::stamped);
  ASSERT_FALSE(stamped.has_value());
  EXPECT_EQ(stamped.error().code, ErrorCode::invalid_argument);
}

TEST(KernelVariant, CompileInEveryFamily) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  const std::pair<LoadPath, FixUp> few[] = {{LoadPath::ldg, FixUp::ticket},  {LoadPath::cp_async, FixUp::wait},
                                            {LoadPath::bulk, FixUp::wait},   {LoadPath::tensor, FixUp::ticket},
                                            {LoadPath::tensor, FixUp::wait}, {LoadPath::vector, FixUp::wait}};
  for (std::size_t i = 0; i < std::size(few); ++i) {
    if (!in_turn(i, std::size(few))) continue;
    const auto& [load, fixup] = few[i];
    const auto compiled_variant = [spec = variant_spec(load, fixup, true)](KernelVariant variant) {
      return compile(emit(spec, variant).value());
    };
    const auto of_whole = compiled_variant(KernelVariant::whole),
               of_shorter = compiled_variant(KernelVariant::unmerged),
               of_stamped = compiled_variant(KernelVariant::stamped);
    for (const auto* compiled : {&of_whole, &of_shorter, &of_stamped})
      ASSERT_TRUE(compiled->has_value()) << compiled->error().message << "\n" << compiled->error().log;
    EXPECT_LT(of_shorter->cubin.size(), of_whole->cubin.size()) << to_string(load) << " " << to_string(fixup);
    EXPECT_GT(of_stamped->cubin.size(), of_whole->cubin.size()) << to_string(load) << " " << to_string(fixup);
  }
}

}  // namespace
}  // namespace leanattn
