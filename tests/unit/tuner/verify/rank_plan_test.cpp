// rank_plan_test.cpp -- what `verify` checks of groups: every kind of group kernel has a case, and each can run.
#include "tuner/verify/rank_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "runtime/problem.hpp"
#include "tuner/verify/random_plan.hpp"

namespace leanattn {
namespace {

constexpr Arch kRankHopper{9, 0, true};

TEST(RankPlan, EveryKernelIsAGroupsAndItsHeadsCanBeDealt) {
  for (const Arch arch : matrix_arches()) {
    const auto kernels = rank_kernels(arch);
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

TEST(RankPlan, EveryLoadPathAndFixUpMeetsWhatDependsOnPositionsOverBothWaysOfDealing) {
  std::set<std::tuple<LoadPath, FixUp, bool>> windows, scores, appends;
  std::set<std::tuple<LoadPath, bool>> rotated;
  for (const VerifyKernel& kernel : rank_kernels(kRankHopper)) {
    const KernelSpec& spec = kernel.specs.front();
    const auto& f = spec.features;
    const std::tuple family{spec.load, spec.fixup, f.context_interleave > 0};
    if (f.window > 0) windows.insert(family);
    if (f.alibi || !f.score.empty()) scores.insert(family);
    if (f.append) appends.insert(family), rotated.insert({spec.load, f.rope != Rope::none});
  }
  EXPECT_GE(windows.size(), 20u);
  EXPECT_GE(scores.size(), 20u);
  EXPECT_GE(appends.size(), 20u);
  EXPECT_EQ(rotated.size(), 10u);
}

TEST(RankPlan, KernelsOfPartsKnowPositionsAndHaveAGroupWhoseRanksTheyServe) {
  for (const Arch arch : matrix_arches()) {
    std::set<std::pair<LoadPath, FixUp>> families;
    std::set<bool> in_turn, windows, appends, indices, causal;
    for (const VerifyKernel& kernel : rank_part_kernels(arch)) {
      ASSERT_FALSE(kernel.specs.empty());
      const KernelSpec& spec = kernel.specs.front();
      const auto& f = spec.features;
      EXPECT_TRUE(validate(spec)) << kernel_name(spec);
      EXPECT_TRUE(needs_positions(f) && !in_group(f)) << kernel_name(spec);
      const auto group = group_of(f);
      EXPECT_TRUE(validate(group) && in_group(group) && group.replicate_output) << kernel_name(spec);
      EXPECT_EQ(group.context_parallel, f.context_ranks);
      EXPECT_FALSE(has_part_of_context(whole_spec(spec).features));
      families.insert({spec.load, spec.fixup});
      in_turn.insert(f.context_interleave > 0), windows.insert(f.window > 0), appends.insert(f.append);
      indices.insert(needs_indices(f)), causal.insert(f.q_len > 1);
    }
    EXPECT_EQ(families.size(), 2 * load_paths_of(arch).size());
    for (const auto& met : {in_turn, windows, appends, indices, causal}) EXPECT_EQ(met.size(), 2u);
  }
}

TEST(RankPlan, RandomKernelsCanBeDealtAndHaveWhatGroupsHave) {
  const auto kernels = random_rank_kernels(kRankHopper, 3, 150), again = random_rank_kernels(kRankHopper, 3, 150);
  ASSERT_EQ(kernels.size(), 150u);
  std::set<std::tuple<int, bool, bool>> windows;  // ranks, contiguous, several query tokens
  int strided = 0;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const KernelSpec& spec = kernels[i].specs.front();
    EXPECT_EQ(spec, again[i].specs.front());
    const int kv_heads = rank_kv_heads(spec);
    const DecodeProblem problem{.q_heads = kv_heads * spec.group,
                                .kv_heads = kv_heads,
                                .head_dim = spec.head_dim,
                                .dtype = spec.dtype,
                                .features = spec.features};
    EXPECT_TRUE(validate(problem)) << kernel_name(spec) << validate(problem).error().message;
    ASSERT_TRUE(in_group(spec.features));
    strided += spec.layout == KvLayout::strided;
    EXPECT_EQ(whole_spec(spec).layout, KvLayout::contiguous) << "from which parts are dealt into either layout";
    const auto& f = spec.features;
    if (f.window > 0) windows.insert({f.context_parallel, f.context_interleave == 0, f.q_len > 1});
    const auto lengths = random_rank_lengths(spec, 3);
    EXPECT_EQ(lengths, random_rank_lengths(spec, 3));
    ASSERT_EQ(lengths.size(), 2u);
    EXPECT_EQ(lengths[0].size(), lengths[1].size());
    for (const auto& of_step : lengths)
      for (const int length : of_step) EXPECT_TRUE(length >= 0 && length <= kRankCapacity) << length;
  }
  EXPECT_GE(windows.size(), 8u);
  EXPECT_GT(strided, 30);
}

TEST(RankPlan, EveryLoadPathAndFixUpMeetsEveryWayOfDealing) {
  std::set<std::tuple<LoadPath, FixUp>> families;
  std::set<int> ranks, groups, query_tokens, units, pages;
  std::set<bool> placements, lse;
  for (const VerifyKernel& kernel : rank_kernels(kRankHopper)) {
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
