// plan_test.cpp -- a verify run without features has every kernel that it promises.
#include "tuner/verify/plan.hpp"
#include "generator/families/family.hpp"
#include "generator/kernel_layout.hpp"
#include "tuner/verify/feature_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

namespace leanattn {
namespace {

constexpr Arch kPlanHopper{9, 0, true};
constexpr Arch kPlanAmpere{8, 0, false};

using Features = std::tuple<int, int, int, int, int, int, bool>;
Features features(const KernelSpec& spec) {
  return {static_cast<int>(spec.dtype),
          spec.head_dim,
          spec.group,
          static_cast<int>(spec.load),
          static_cast<int>(spec.fixup),
          static_cast<int>(spec.layout),
          spec.lse};
}

/// Whether some tunables make a valid kernel.
bool exists(const KernelSpec& base) {
  for (const Tunables& tunables : verify_tunables()) {
    if (validate(with_tunables(base, tunables))) return true;
  }
  return false;
}

TEST(VerifyPlan, AFullRunHasEveryCombinationThatExists) {
  for (const Arch arch : {kPlanHopper, kPlanAmpere}) {
    std::set<Features> met;
    for (const VerifyKernel& kernel : verify_combinations(arch)) {
      for (const KernelSpec& spec : kernel.specs) met.insert(features(spec));
    }
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      for (const int head_dim : {64, 96, 128, 256}) {
        for (const int group : verify_groups()) {
          for (const LoadPath load : kLoadPaths) {
            for (const FixUp fixup : {FixUp::ticket, FixUp::wait}) {
              for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
                for (const bool lse : {false, true}) {
                  const KernelSpec base{.arch = arch,
                                        .head_dim = head_dim,
                                        .group = group,
                                        .dtype = dtype,
                                        .layout = layout,
                                        .lse = lse,
                                        .load = load,
                                        .fixup = fixup};
                  EXPECT_EQ(met.contains(features(base)), exists(base)) << kernel_name(base);
                  EXPECT_TRUE(load != LoadPath::cp_async || exists(base)) << kernel_name(base);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(VerifyPlan, EverySpecIsValidAndDiffersOnlyInTunablesFromItsAlternatives) {
  auto kernels = verify_combinations(kPlanHopper);
  const auto representative = representative_kernels(kPlanHopper);
  kernels.insert(kernels.end(), representative.begin(), representative.end());
  for (const VerifyKernel& kernel : kernels) {
    ASSERT_FALSE(kernel.specs.empty());
    for (const KernelSpec& spec : kernel.specs) {
      EXPECT_TRUE(validate(spec).has_value()) << kernel_name(spec);
      EXPECT_EQ(features(spec), features(kernel.specs.front()));
      EXPECT_EQ(spec.arch, kPlanHopper);
    }
  }
}

/// The values of every parameter that the preferred specs of a list of kernels have.
struct Met {
  std::set<int> dtypes, head_dims, groups, loads, fixups, layouts;
  std::set<bool> lse, pdl;
};
Met parameters_met_by(const std::vector<VerifyKernel>& kernels) {
  Met met;
  for (const VerifyKernel& kernel : kernels) {
    const KernelSpec& spec = kernel.specs.front();
    met.dtypes.insert(static_cast<int>(spec.dtype));
    met.head_dims.insert(spec.head_dim);
    met.groups.insert(spec.group);
    met.loads.insert(static_cast<int>(spec.load));
    met.fixups.insert(static_cast<int>(spec.fixup));
    met.layouts.insert(static_cast<int>(spec.layout));
    met.lse.insert(spec.lse);
    met.pdl.insert(spec.pdl);
  }
  return met;
}

TEST(VerifyPlan, RepresentativesHaveEveryValueOfEveryParameter) {
  EXPECT_EQ(representative_kernels(kPlanHopper).size(), 22u) << "a row of the list that no kernel can meet";
  const Met met = parameters_met_by(representative_kernels(kPlanHopper));
  EXPECT_EQ(met.dtypes.size(), 2u);
  EXPECT_EQ(met.head_dims.size(), 4u);
  EXPECT_EQ(met.loads.size(), 5u);
  EXPECT_EQ(met.fixups.size(), 2u);
  EXPECT_EQ(met.layouts.size(), 2u);
  EXPECT_EQ(met.lse.size(), 2u);
  EXPECT_EQ(met.pdl.size(), 2u);
  EXPECT_TRUE(met.groups.contains(1) && met.groups.contains(64));
}

TEST(VerifyPlan, RotationGivesEveryLoadPathEveryTunable) {
  std::set<std::tuple<int, int, int>> met;
  for (const VerifyKernel& kernel : verify_combinations(kPlanHopper)) {
    if (kernel.group.rfind("tunables", 0) == 0) continue;
    const KernelSpec& spec = kernel.specs.front();
    met.insert({static_cast<int>(spec.load), spec.warps, spec.tile});
  }
  std::set<std::tuple<int, int, int>> wanted;
  for (const LoadPath load : kLoadPaths) {
    for (const Tunables& tunables : verify_tunables()) {
      const KernelSpec spec = with_tunables({.arch = kPlanHopper, .head_dim = 64, .group = 1, .load = load}, tunables);
      if (validate(spec)) wanted.insert({static_cast<int>(load), spec.warps, spec.tile});
    }
  }
  EXPECT_TRUE(std::includes(met.begin(), met.end(), wanted.begin(), wanted.end()));
}

TEST(VerifyPlan, KernelsWithRolesHave256RowsOfSeveralQueryTokensWithEachFixUpInPagesAndWithout) {
  std::set<std::pair<FixUp, bool>> met;  // with pages or without
  for (const VerifyKernel& kernel : feature_kernels(kPlanHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    if (layout_of(spec).family == &kWgmmaRoles && spec.features.q_len > 1 &&
        query_rows(spec.features, spec.group) >= 256)
      met.insert({spec.fixup, spec.features.page_size > 0});
  }
  EXPECT_EQ(met.size(), 4u);
}

TEST(VerifyPlan, NoBulkAndNoPdlBelowHopper) {
  for (const VerifyKernel& kernel : verify_combinations(kPlanAmpere)) {
    for (const KernelSpec& spec : kernel.specs) {
      EXPECT_NE(spec.load, LoadPath::bulk);
      EXPECT_FALSE(spec.pdl);
    }
  }
  EXPECT_EQ(representative_kernels(kPlanAmpere).size(), representative_kernels(kPlanHopper).size());
}

}  // namespace
}  // namespace leanattn
