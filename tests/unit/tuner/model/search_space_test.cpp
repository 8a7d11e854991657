// search_space_test.cpp -- the kernels and grids that are considered are valid, distinct and in a sensible order.
#include "tuner/model/search_space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "generator/kernel_layout.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"

namespace leanattn {
namespace {

DeviceFacts h200() {
  DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  device.memory_bytes = 141ll << 30;
  return device;
}

const Shape kShapes[] = {{.batch = 1, .longest_context = 1024},
                         {.batch = 1, .longest_context = 65536},
                         {.batch = 16, .longest_context = 8192}};

std::vector<DecodeStep> steps(const DeviceFacts& device, const DecodeProblem& problem) {
  std::vector<DecodeStep> all;
  for (const Shape& shape : kShapes) all.emplace_back(device, problem, shape);
  return all;
}

TEST(SearchSpace, KernelsWithLargePartialsAreListedWithBothFixUps) {
  DecodeProblem latent{.q_heads = 16, .kv_heads = 1, .head_dim = 576};
  latent.features.latent = true, latent.features.v_head_dim = 512;
  const auto specs = all_specs(h200(), latent);
  std::size_t large = 0;
  for (KernelSpec spec : specs) {
    EXPECT_TRUE(validate(spec)) << kernel_name(spec);
    if (!layout_of(spec).has_large_partials) {
      EXPECT_EQ(spec.fixup, FixUp::ticket) << kernel_name(spec);
      continue;
    }
    ++large;
    spec.fixup = spec.fixup == FixUp::ticket ? FixUp::wait : FixUp::ticket;
    EXPECT_NE(std::find(specs.begin(), specs.end(), spec), specs.end()) << kernel_name(spec);
  }
  EXPECT_GT(large, 0u);
}

TEST(SearchSpace, EverySpecIsValidOfTheProblemAndListedOnce) {
  for (const Arch arch : matrix_arches()) {
    const DeviceFacts device = facts_for_arch(arch, 100).value();
    for (const int head_dim : {64, 96, 128, 256}) {
      for (const int q_heads : {8, 64, 320}) {
        const DecodeProblem problem{.q_heads = q_heads,
                                    .kv_heads = 8,
                                    .head_dim = head_dim,
                                    .dtype = DType::fp16,
                                    .layout = KvLayout::strided,
                                    .lse = true};
        const auto specs = all_specs(device, problem);
        EXPECT_FALSE(specs.empty()) << to_string(arch) << " " << head_dim << " " << q_heads;
        std::set<std::string> names;
        for (const KernelSpec& spec : specs) {
          ASSERT_TRUE(validate(spec)) << kernel_name(spec);
          EXPECT_TRUE(names.insert(kernel_name(spec)).second) << kernel_name(spec);
          EXPECT_EQ(spec.head_dim, head_dim);
          EXPECT_EQ(spec.group, q_heads / 8);
          EXPECT_EQ(spec.layout, KvLayout::strided);
          EXPECT_TRUE(spec.lse);
          EXPECT_TRUE(arch.major >= 9 || spec.load != LoadPath::bulk);
          EXPECT_TRUE(arch == (Arch{9, 0, true}) || spec.load != LoadPath::tensor);
        }
      }
    }
  }
}

TEST(SearchSpace, AProblemWithPdlHasOnlySpecsWithItWhereTheGpuHasIt) {
  const DecodeProblem ordinary, dependent{.pdl = true};
  for (const Arch arch : matrix_arches()) {
    const DeviceFacts device = facts_for_arch(arch, 100).value();
    const auto with = all_specs(device, dependent), without = all_specs(device, ordinary);
    ASSERT_EQ(with.size(), without.size()) << to_string(arch);
    for (std::size_t i = 0; i < with.size(); ++i) {
      EXPECT_EQ(with[i].pdl, arch.major >= 9) << kernel_name(with[i]);
      EXPECT_FALSE(without[i].pdl);
      KernelSpec same = with[i];
      same.pdl = false;
      EXPECT_EQ(same, without[i]);
    }
  }
  for (const KernelSpec& near : neighbours(all_specs(h200(), dependent).front())) EXPECT_TRUE(near.pdl);
}

TEST(SearchSpace, GridsOfRaggedBatchesAreRankedWithTheirSegmentsCharged) {
  const DeviceFacts device = h200();
  const Config config = default_config({device, {}, {.batch = 64, .longest_context = 4096}});
  const auto charges = [&](const Shape& shape) {
    std::set<int> found;
    for (const RankedConfig& ranked : rank_grids(default_parameters(device), {device, {}, shape}, config.spec, 1))
      found.insert(ranked.config.segment_cost);
    return found;
  };
  EXPECT_EQ(charges({.batch = 64, .longest_context = 4096}), std::set<int>{0});
  const std::set<int> ragged = charges({.batch = 64, .longest_context = 32768, .total_context = 387490});
  ASSERT_EQ(ragged.size(), 1u);
  EXPECT_GE(*ragged.begin(), 1);
}

TEST(SearchSpace, ChosenSpecsAreTheSameEveryTimeAndDiverse) {
  const DeviceFacts device = h200();
  const DecodeProblem problem;
  const CostModel model = default_model(device);
  const auto a = choose_specs(model, steps(device, problem), 60), b = choose_specs(model, steps(device, problem), 60);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.size(), 60u);
  std::set<LoadPath> loads;
  std::set<int> warps, stages, tiles;
  std::set<std::string> names;
  for (const KernelSpec& spec : a) {
    loads.insert(spec.load), warps.insert(spec.warps), stages.insert(spec.stages), tiles.insert(spec.tile);
    names.insert(kernel_name(spec));
  }
  EXPECT_EQ(names.size(), a.size());
  EXPECT_EQ(loads.size(), 4u);
  EXPECT_GE(warps.size(), 3u);
  EXPECT_GE(stages.size(), 3u);
  EXPECT_GE(tiles.size(), 3u);
}

TEST(SearchSpace, AShorterListIsABeginningOfTheLonger) {
  const DeviceFacts device = h200();
  const CostModel model = default_model(device);
  const auto few = choose_specs(model, steps(device, {}), 10), many = choose_specs(model, steps(device, {}), 40);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

TEST(SearchSpace, AskingForMoreThanThereAreGivesEveryKernelWithOneFixUpOrBoth) {
  const DeviceFacts device = h200();
  std::set<std::string> chosen;
  for (KernelSpec spec : choose_specs(default_model(device), steps(device, {}), 100000)) {
    spec.fixup = FixUp::ticket;
    chosen.insert(kernel_name(spec));
  }
  std::set<std::string> all;
  for (const KernelSpec& spec : all_specs(device, {})) all.insert(kernel_name(spec));
  EXPECT_TRUE(std::includes(chosen.begin(), chosen.end(), all.begin(), all.end()));  // and usual ones beside them
}

TEST(SearchSpace, KernelsThatWaitComeFirstWhereManyCtasShareAnOutputTile) {
  const DeviceFacts device = h200();
  const DecodeProblem problem{.q_heads = 8, .kv_heads = 1, .head_dim = 128};
  const auto usual = static_cast<std::ptrdiff_t>(usual_kernels(device, problem).size());
  // How many of the first 12 behind the usual kernels wait.
  const auto count_waiting = [&](const Shape& shape) {
    const auto chosen = choose_specs(default_model(device), {{{device, problem, shape}}}, 60);
    const auto waits = [](const KernelSpec& spec) { return spec.fixup == FixUp::wait; };
    return std::count_if(chosen.begin() + usual, chosen.begin() + usual + 12, waits);
  };
  // One output tile, of which more than 60 CTAs compute a part each.
  EXPECT_GE(count_waiting({.batch = 1, .longest_context = 8192}), 9);
  // 4096 output tiles, of which hardly any is shared.
  EXPECT_EQ(count_waiting({.batch = 4096, .longest_context = 8192}), 0);
}

TEST(SearchSpace, TheUsualKernelsComeFirst) {
  const DeviceFacts device = h200();
  const auto usual = usual_kernels(device, {});
  const auto chosen = choose_specs(default_model(device), steps(device, {}), 60);
  ASSERT_GT(usual.size(), 8u);
  const auto beginning = chosen.begin() + static_cast<std::ptrdiff_t>(usual.size());
  EXPECT_TRUE(std::is_permutation(usual.begin(), usual.end(), chosen.begin(), beginning));
}

TEST(SearchSpace, NeighboursAreValidDistinctAndNearby) {
  const DeviceFacts device = h200();
  for (const KernelSpec& spec : choose_specs(default_model(device), steps(device, {}), 40)) {
    const auto near = neighbours(spec);
    EXPECT_FALSE(near.empty());
    std::set<std::string> names{kernel_name(spec)};
    for (const KernelSpec& other : near) {
      EXPECT_TRUE(validate(other));
      EXPECT_TRUE(names.insert(kernel_name(other)).second) << kernel_name(other);
      EXPECT_EQ(other.head_dim, spec.head_dim);
      EXPECT_GE(other.warps, 2);
      EXPECT_EQ(other.group, spec.group);
    }
  }
}

TEST(SearchSpace, WaitingFixUpsNeverGetMoreCtasThanAreResident) {
  const DeviceFacts device = h200();
  const DecodeProblem problem;
  KernelSpec spec = base_spec(device.arch, problem);
  spec.fixup = FixUp::wait;
  for (const RankedConfig& ranked :
       rank_grids(default_parameters(device), {device, problem, {.batch = 16, .longest_context = 65536}}, spec, 2)) {
    EXPECT_LE(ranked.config.grid, 2 * 132);
  }
}

TEST(SearchSpace, RankedGridsAreSortedByPrediction) {
  const DeviceFacts device = h200();
  const DecodeProblem problem;
  const auto ranked =
      rank_grids(default_parameters(device), {device, problem, kShapes[1]}, base_spec(device.arch, problem), 2);
  ASSERT_GT(ranked.size(), 5u);
  EXPECT_TRUE(std::is_sorted(ranked.begin(), ranked.end(), [](const RankedConfig& a, const RankedConfig& b) {
    return a.predicted_us < b.predicted_us;
  }));
}

TEST(SearchSpace, SpreadGridsKeepTheirDistance) {
  std::vector<RankedConfig> ranked;
  for (const std::int64_t grid : {100, 101, 104, 50, 200, 99, 400}) ranked.push_back({{.spec = {}, .grid = grid}, 1.0});
  const auto chosen = spread(ranked, 3, 0.1);
  ASSERT_EQ(chosen.size(), 3u);
  EXPECT_EQ(chosen[0].config.grid, 100);
  EXPECT_EQ(chosen[1].config.grid, 50);
  EXPECT_EQ(chosen[2].config.grid, 200);
}

TEST(SearchSpace, ContextLengthsAddUpToTheShape) {
  EXPECT_EQ(context_lengths_of({.batch = 3, .longest_context = 100}), (std::vector<int>{100, 100, 100}));
  for (const std::int64_t total : {100, 101, 250, 399, 400}) {
    const auto lengths = context_lengths_of({.batch = 4, .longest_context = 100, .total_context = total});
    EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), total);
    EXPECT_EQ(*std::max_element(lengths.begin(), lengths.end()), 100);
    EXPECT_GE(*std::min_element(lengths.begin(), lengths.end()), 0);
  }
}

TEST(SearchSpace, PrefillIsSearchedOnTheLoadPathThatItsDefaultHas) {
  DecodeProblem prefill;
  prefill.features = {.page_size = 16, .q_len = 17, .ragged_q = true};
  for (const Arch arch : {Arch{9, 0, true}, Arch{8, 0}}) {
    const DeviceFacts device = facts_for_arch(arch, 132).value();
    const DecodeStep step(device, prefill, {.batch = 65, .longest_context = 8192, .mix = {.query_tokens = 2112}});
    const KernelSpec usual = default_config(step).spec;
    const auto specs = all_specs(device, prefill);
    EXPECT_GT(specs.size(), 3u);
    EXPECT_LT(specs.size(), 100u);
    for (const KernelSpec& spec : specs) EXPECT_EQ(spec.load, usual.load) << kernel_name(spec);
    for (const KernelSpec& spec : neighbours(usual)) EXPECT_EQ(spec.load, usual.load) << kernel_name(spec);
    EXPECT_NE(std::find(specs.begin(), specs.end(), usual), specs.end());
    EXPECT_EQ(choose_specs(default_model(device), {&step, 1}, 128).front(), usual);
  }
}

TEST(SearchSpace, RequestsOfAMixedStepAddUpToItsMix) {
  const Shape chunk{.batch = 3, .longest_context = 100, .total_context = 170, .mix = {80, 1, 100, 5000}};
  EXPECT_EQ(context_lengths_of(chunk), (std::vector<int>{35, 35, 100}));
  EXPECT_EQ(query_tokens_of(chunk), (std::vector<int>{1, 1, 78}));
  const Shape prompts{.batch = 2, .longest_context = 300, .mix = {.query_tokens = 601}};
  EXPECT_EQ(context_lengths_of(prompts), (std::vector<int>{300, 300}));
  EXPECT_EQ(query_tokens_of(prompts), (std::vector<int>{300, 300}));
  const Shape long_decode{.batch = 4, .longest_context = 1000, .total_context = 1205, .mix = {25, 2, 105, 900}};
  EXPECT_EQ(context_lengths_of(long_decode), (std::vector<int>{1000, 100, 53, 52}));
  EXPECT_EQ(query_tokens_of(long_decode), (std::vector<int>{1, 1, 12, 11}));
  EXPECT_TRUE(query_tokens_of({.batch = 3, .longest_context = 100}).empty());
}

}  // namespace
}  // namespace leanattn
