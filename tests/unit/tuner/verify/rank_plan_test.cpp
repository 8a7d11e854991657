// rank_plan_test.cpp -- what `verify` checks of groups: every kind of group kernel has a case, and each can run.
#include "tuner/verify/rank_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "runtime/problem.hpp"

namespace leanattn {
namespace {

constexpr Arch kRankHopper{9, 0, true};

TEST(RankPlan, EveryKernelIsAGroupsAndItsHeadsCanBeDealt) {
  for (const Arch arch : matrix_arches()) {
    for (const bool quick : {false, true}) {
      const auto kernels = rank_kernels(arch, quick);
      ASSERT_GT(kernels.size(), 10u);
      for (const VerifyKernel& kernel : kernels) {
        ASSERT_FALSE(kernel.specs.empty());
        for (const KernelSpec& spec : kernel.specs) {
          EXPECT_TRUE(validate(spec)) << kernel_name(spec);
          EXPECT_TRUE(in_group(spec.features)) << kernel_name(spec);
          DecodeProblem problem{.q_heads = rank_kv_heads(spec) * spec.group,
                                .kv_heads = rank_kv_heads(spec),
                                .head_dim = spec.head_dim,
                                .dtype = spec.dtype,
                                .features = spec.features};
          EXPECT_TRUE(validate(problem)) << kernel_name(spec) << validate(problem).error().message;
          const KernelSpec whole = whole_spec(spec);
          EXPECT_FALSE(in_group(whole.features));
          EXPECT_EQ(whole.features.page_size, 0);
        }
      }
    }
  }
}

TEST(RankPlan, EveryLoadPathAndFixUpMeetsEveryWayOfDealing) {
  std::set<std::tuple<LoadPath, FixUp>> families;
  std::set<int> ranks, groups, query_tokens, units, pages;
  std::set<bool> placements, lse;
  for (const VerifyKernel& kernel : rank_kernels(kRankHopper, false)) {
    for (const KernelSpec& spec : kernel.specs) {
      families.insert({spec.load, spec.fixup});
      ranks.insert(spec.features.context_parallel);
      groups.insert(spec.group);
      query_tokens.insert(spec.features.q_len);
      units.insert(spec.features.context_interleave);
      pages.insert(spec.features.page_size);
      placements.insert(spec.features.replicate_output);
      lse.insert(spec.lse);
    }
  }
  EXPECT_EQ(families.size(), 10u);
  EXPECT_EQ(ranks, (std::set<int>{2, 3, 4, 8}));
  for (const int group : {1, 4, 8}) EXPECT_TRUE(groups.contains(group)) << group;
  for (const int tokens : {1, 4}) EXPECT_TRUE(query_tokens.contains(tokens)) << tokens;
  for (const int unit : {0, 1, 256}) EXPECT_TRUE(units.contains(unit)) << unit;
  EXPECT_GE(pages.size(), 3u);
  EXPECT_EQ(placements.size(), 2u);
  EXPECT_EQ(lse.size(), 2u);
}

}  // namespace
}  // namespace leanattn
