// cost_model_fit_test.cpp -- the cost model's predictions, and what its fit learns from samples with known costs.
#include "tuner/model/cost_model_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"
#include "templates/line/schedule.cuh"
#include "tuner/model/search_space.hpp"

namespace leanattn {
namespace {

constexpr std::uint64_t kSeed = 3;

class Model : public ::testing::Test {
 protected:
  Model() {
    device.memory_bytes = 141ll << 30;
    spec = base_spec(device.arch, problem);
  }
  double predict(const Shape& shape, std::int64_t grid, int resident = 2) const {
    return predict_us(parameters, device, problem, shape, {spec, grid}, resident);
  }

  DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  DecodeProblem problem;
  KernelSpec spec;
  ModelParameters parameters;
};

TEST_F(Model, NeverBeatsTheMemory) {
  for (const std::int64_t context : {1, 1000, 65536, 1 << 20}) {
    const Shape shape{.batch = 2, .longest_context = context};
    for (const std::int64_t grid : useful_grids(device, problem, shape, spec, 2)) {
      EXPECT_GE(predict(shape, grid), static_cast<double>(kv_bytes(problem, shape)) / parameters.memory_rate);
    }
  }
}

TEST_F(Model, LongerContextsTakeLonger) {
  double last = 0;
  for (std::int64_t context = 1024; context <= 1 << 20; context *= 2) {
    const double us = predict({.batch = 1, .longest_context = context}, 132);
    EXPECT_GT(us, last);
    last = us;
  }
}

TEST_F(Model, OneCtaForEveryOutputTileLosesWhenMostSmsIdle) {
  // Batch 1 with 8 KV heads: FlashAttention-2's grid keeps 8 of 132 SMs busy.
  const Shape shape{.batch = 1, .longest_context = 65536};
  EXPECT_GT(predict(shape, 8), 4 * predict(shape, 132));
}

TEST_F(Model, MoreBytesInFlightAreFasterUntilTheSmIsFull) {
  const Shape shape{.batch = 16, .longest_context = 65536};
  spec.warps = 1, spec.stages = 1;
  const double starved = predict(shape, 132, 1);
  spec.warps = 4;
  const double better = predict(shape, 132, 1);
  spec.stages = 4;
  const double full = predict(shape, 132, 1);
  spec.stages = 6;
  EXPECT_GT(starved, 1.5 * better);
  EXPECT_GT(better, full * 1.05);
  EXPECT_NEAR(predict(shape, 132, 1), full, full * 0.01);
}

TEST_F(Model, FixUpsAreChargedOnlyWhereOutputTilesAreShared) {
  const Shape shape{.batch = 16, .longest_context = 4096};
  const ModelFeatures alone = model_features(parameters, device, problem, shape, {spec, 128}, 2);
  EXPECT_EQ(alone.shared, 0);
  EXPECT_EQ(alone.partials, 0);
  const ModelFeatures shared = model_features(parameters, device, problem, shape, {spec, 132}, 2);
  EXPECT_EQ(shared.shared, 1);
  EXPECT_GT(shared.partials, 1);
}

TEST_F(Model, WaitingMergesManyPartialsTogetherAndTicketsMakeATree) {
  problem.q_heads = 8, problem.kv_heads = 1;
  spec = base_spec(device.arch, problem);
  spec.warps = 8;  // a thread for each of the 256 columns
  const Shape shape{.batch = 1, .longest_context = 131072};
  const auto merge = [&](FixUp fixup, std::int64_t contributors) {
    spec.fixup = fixup;
    return model_features(parameters, device, problem, shape, {spec, contributors}, 1);
  };
  // With two to four contributors the ticket fix-up is done sooner, from eight on the one that waits.
  for (const std::int64_t few : {2, 4}) EXPECT_LT(merge(FixUp::ticket, few).partials, merge(FixUp::wait, few).partials);
  for (const std::int64_t many : {8, 16, 32, 128})
    EXPECT_GT(merge(FixUp::ticket, many).partials, merge(FixUp::wait, many).partials);
  EXPECT_GT(merge(FixUp::wait, 128).partials, merge(FixUp::wait, 16).partials);
  EXPECT_LT(merge(FixUp::wait, 128).partials, 4 * merge(FixUp::wait, 8).partials);
  // Sixteen contributors merge in one go. Of 128, nine groups of 12 and one of 20 merge first, then the groups.
  EXPECT_EQ(merge(FixUp::ticket, 16).partials, 16);
  EXPECT_EQ(merge(FixUp::ticket, 16).tree, 0);
  EXPECT_EQ(merge(FixUp::ticket, 32).partials, 8 + 4);
  EXPECT_EQ(merge(FixUp::ticket, 128).partials, 20 + 10);
  EXPECT_EQ(merge(FixUp::ticket, 128).tree, 1);
  EXPECT_EQ(merge(FixUp::wait, 128).tree, 0);
  // These are the figures of the kernel itself.
  spec.fixup = FixUp::ticket;
  const std::string source = emit(spec).value().source;
  for (const char* constant : {"constexpr u32 kFlat = 16;", "constexpr u32 kMinWidth = 8;"})
    EXPECT_NE(source.find(constant), std::string::npos) << constant;
}

TEST_F(Model, FewWarpsMergeColumnsInTurns) {
  problem.q_heads = 8, problem.kv_heads = 1;
  spec = base_spec(device.arch, problem);
  const auto merge = [&](FixUp fixup, int warps) {
    spec.fixup = fixup, spec.warps = warps;
    return model_features(parameters, device, problem, {.batch = 1, .longest_context = 8192}, {spec, 8}, 1).partials;
  };
  // Each turn of a ticket's merge goes through all partials again, after a round trip.
  EXPECT_EQ(merge(FixUp::ticket, 8), 8);
  EXPECT_EQ(merge(FixUp::ticket, 4), 2 * 8 + 6);
  EXPECT_EQ(merge(FixUp::ticket, 2), 4 * 8 + 3 * 6);
  EXPECT_LT(merge(FixUp::wait, 8), merge(FixUp::wait, 4));
}

TEST_F(Model, LargePartialsTakeLongWhereOneCtaMergesThem) {
  problem = {.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  problem.features.latent = true, problem.features.v_head_dim = 512;
  spec = base_spec(device.arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  ASSERT_TRUE(layout_of(spec).has_large_partials);
  const auto partials = [&](FixUp fixup) {
    spec.fixup = fixup;
    return model_features(parameters, device, problem, {.batch = 1, .longest_context = 65536}, {spec, 128}, 1).partials;
  };
  EXPECT_GT(partials(FixUp::ticket), 5 * partials(FixUp::wait));
}

TEST_F(Model, ManyQueryRowsAreBoundByWhatAnSmAttendsTo) {
  // 8 x 131072 tokens of 128 heads took 600 us on an H200, where the bytes alone take 266.
  problem = {.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  problem.features.latent = true, problem.features.v_head_dim = 512;
  spec = base_spec(device.arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  const Shape shape{.batch = 8, .longest_context = 131072};
  ModelParameters costs = default_parameters(device, spec);
  costs.memory_rate = 4.6e6, costs.sm_rate = 76e3;
  const double rows = predict_us(costs, device, problem, shape, {spec, 128}, 1);
  EXPECT_GT(rows, 500);
  EXPECT_LT(rows, 700);
  EXPECT_EQ(model_features(costs, device, problem, shape, {spec, 128}, 1).segments, 0);
}

TEST_F(Model, DependentLaunchesStartSoonerAndDoNotWantALittleRoomLeftFree) {
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 128;
  KernelSpec dependent = spec, waiting = spec;
  dependent.pdl = true;
  EXPECT_LT(default_parameters(device, dependent).costs.start, default_parameters(device, spec).costs.start);
  const Shape shape{.batch = 1, .longest_context = 65536};
  const auto excess = [&](const KernelSpec& of, std::int64_t grid) {
    return model_features(parameters, device, problem, shape, {of, grid}, 1).excess;
  };
  // 84 MB by 80 CTAs with tickets took 28.4 us a link of a chain on an H200, and 23.1 us a launch without.
  EXPECT_GT(excess(dependent, 80), excess(spec, 80));
  dependent.fixup = waiting.fixup = FixUp::wait;
  EXPECT_GT(excess(dependent, 80), excess(waiting, 80));
  EXPECT_GT(excess(dependent, 80) - excess(waiting, 80), excess(dependent, 120) - excess(waiting, 120));
  EXPECT_EQ(excess(dependent, 64), excess(waiting, 64)) << "the next launch has SMs of its own";
  EXPECT_EQ(excess(dependent, 132), excess(waiting, 132));
}

TEST_F(Model, CtasThatFollowEachOtherStartAndEnd) {
  // 4096 requests of 100 tokens: 32768 CTAs of one output tile each took 562 us on an H200, where the bytes take 365.
  spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.stages = 2;
  const Shape shape{.batch = 4096, .longest_context = 100};
  const auto us = [&](std::int64_t grid) {
    const DeviceFacts h200 = facts_for_arch({9, 0, true}, 132).value();
    ModelParameters costs = default_parameters(h200, spec);
    costs.memory_rate = 4.6e6, costs.sm_rate = 76e3;
    return predict_us(costs, h200, problem, shape, {spec, grid}, 3);
  };
  EXPECT_GT(us(32768), 510);
  EXPECT_LT(us(32768), 610);
  EXPECT_LT(us(396), 0.9 * us(32768)) << "of a CTA with many output tiles the producer goes on to the next one";
}

TEST_F(Model, SegmentsAreHiddenWhereCtasOverlapOnAnSm) {
  // 4096 requests of 100 tokens: 1584 CTAs of two warps, six an SM, took 437 us on an H200, and a CTA for each output
  // tile 517.
  spec.load = LoadPath::bulk, spec.warps = 2, spec.warp_tokens = 16, spec.tile = 64, spec.stages = 1;
  spec.ctas_per_sm = 4;
  const Shape shape{.batch = 4096, .longest_context = 100};
  const DeviceFacts h200 = facts_for_arch({9, 0, true}, 132).value();
  ModelParameters costs = default_parameters(h200, spec);
  costs.memory_rate = 4.6e6, costs.sm_rate = 76e3;
  const auto features = [&](std::int64_t grid) { return model_features(costs, h200, problem, shape, {spec, grid}, 6); };
  EXPECT_GT(features(1584).hidden, 0.3 * features(1584).segments);
  EXPECT_EQ(features(132).hidden, 0) << "there is one CTA on an SM";
  EXPECT_EQ(features(32768).hidden, 0) << "no CTA has a second segment";
  const double streamed = predict_us(costs, features(1584)), one_each = predict_us(costs, features(32768));
  EXPECT_NEAR(streamed, 437, 40);
  EXPECT_LT(streamed, one_each);
  spec.load = LoadPath::tensor, spec.warps = 4, spec.stages = 2;
  EXPECT_EQ(features(1584).hidden, 0) << "the producer goes on anyway";
  spec.load = LoadPath::ldg, spec.warps = 2, spec.stages = 1;
  EXPECT_EQ(features(1584).hidden, 0) << "registers ask for nothing ahead";
}

TEST_F(Model, DependentLaunchesAmongManyCtasAreLateUnlessHardlyAnyRoomIsFree) {
  spec.load = LoadPath::cp_async, spec.warps = 2, spec.warp_tokens = 16, spec.tile = 32, spec.stages = 2;
  KernelSpec dependent = spec;
  dependent.pdl = true;
  const Shape shape{.batch = 8, .longest_context = 1024};
  const auto late = [&](std::int64_t grid, int resident) {
    const auto excess = [&](const KernelSpec& of) {
      return model_features(parameters, device, problem, shape, {of, grid}, resident).excess;
    };
    return excess(dependent) - excess(spec);
  };
  EXPECT_GT(late(136, 4), 1) << "two launches fit on the GPU at once";
  EXPECT_GT(late(400, 4), 1) << "a quarter of the room is free";
  EXPECT_EQ(late(480, 4), 0) << "a tenth of the room is free";
  EXPECT_EQ(late(528, 4), 0);
  // With two CTAs an SM, half of it.
  EXPECT_DOUBLE_EQ(late(128, 2), late(128, 4) / 2);
}

TEST_F(Model, AKernelThatWaitsSavesNothingAsADependentLaunchWithoutAProducer) {
  KernelSpec dependent = spec;
  dependent.pdl = true;
  for (const LoadPath load : {LoadPath::bulk, LoadPath::cp_async, LoadPath::vector}) {
    dependent.load = load;
    dependent.fixup = FixUp::ticket;
    EXPECT_GT(saved_at_start(dependent), 0);
    dependent.fixup = FixUp::wait;
    EXPECT_EQ(saved_at_start(dependent), 0);
  }
  dependent.load = LoadPath::tensor;
  EXPECT_GT(saved_at_start(dependent), 0);
}

TEST_F(Model, FewWarpsCannotKeepUpWithMemory) {
  // 27 x 2711 tokens of 22/2 heads of 64: four warps an SM took 18.6 us on an H200, load path tensor took 12.0.
  problem = {.q_heads = 22, .kv_heads = 2, .head_dim = 64};
  spec = base_spec(device.arch, problem);
  spec.load = LoadPath::bulk, spec.warps = 4, spec.warp_tokens = 32, spec.tile = 32, spec.stages = 6;
  const Shape shape{.batch = 27, .longest_context = 2711};
  const double four = model_features(parameters, device, problem, shape, {spec, 108}, 1).excess;
  spec.warps = 8, spec.stages = 3;
  EXPECT_GT(four, 2 * model_features(parameters, device, problem, shape, {spec, 108}, 1).excess);
}

TEST_F(Model, ARingOfOneStagePaysForBeingFilledAgainAndDeeperOnesDoNot) {
  // Each CTA has whole output tiles of four steps.
  spec.load = LoadPath::bulk, spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.ctas_per_sm = 1;
  const Shape shape{.batch = 16, .longest_context = 256};
  spec.stages = 1;
  const ModelFeatures one = model_features(parameters, device, problem, shape, {spec, 128}, 1);
  EXPECT_EQ(one.refills, 3);
  EXPECT_EQ(one.segments, 0);
  spec.stages = 2;
  const ModelFeatures two = model_features(parameters, device, problem, shape, {spec, 128}, 1);
  EXPECT_EQ(two.refills, 0);
  EXPECT_GE(predict_us(parameters, one), predict_us(parameters, two) + 0.2 * parameters.costs.segment);
}

TEST_F(Model, OneCtaTooManyForAWaveTakesAlmostAsLongAsItsWholeStream) {
  // There are 132 CTA slots for whole output tiles of equal length. There is one KV head, so that a request is an
  // output tile.
  problem.q_heads = 4, problem.kv_heads = 1;
  const auto streamed = [&](int batch) {
    const Shape shape{.batch = batch, .longest_context = 65536};
    const ModelFeatures features = model_features(parameters, device, problem, shape, {spec, batch}, 1);
    return features.memory + features.excess;
  };
  const double full = streamed(132), more = streamed(133), twice = streamed(264);
  // Alone, an SM reads at most at sm_rate, which is 2.2 times its share of the memory's rate. Its ring is slower.
  EXPECT_GT(more, 1.4 * full);
  EXPECT_LT(more, 1.95 * full);
  EXPECT_NEAR(twice, 2 * full, 0.01 * full);
}

TEST_F(Model, KindsOfGridsAreToldApart) {
  const auto kind = [&](int batch, std::int64_t context, std::int64_t grid) {
    const Shape shape{.batch = batch, .longest_context = context};
    return kind_of(model_features(parameters, device, problem, shape, {spec, grid}, 2));
  };
  const std::int64_t even = std::int64_t{16} * spec.tile;  // an output tile has 16 LeanTiles
  EXPECT_EQ(kind(16, even, 128), GridKind::whole);
  EXPECT_EQ(kind(16, even, 256), GridKind::even);
  EXPECT_EQ(kind(16, even, 132), GridKind::crossing);
  EXPECT_EQ(kind(1, even, 8), GridKind::idle_whole);
  EXPECT_EQ(kind(1, even, 64), GridKind::idle_even);
  EXPECT_EQ(kind(1, even, 50), GridKind::idle_crossing);
}

/// The busiest CTA and the most shared output tile of a launch, counted on the line itself.
struct Counted {
  std::int64_t segments = 0, contributors = 0;
};
Counted count(unsigned tiles, unsigned tiles_per_output, unsigned grid) {
  const LeanSplit split = lean_split(tiles, grid, lean_reciprocal(grid));
  Counted counted;
  std::vector<std::int64_t> contributors(tiles / tiles_per_output);
  for (unsigned cta = 0; cta < grid; ++cta) {
    const unsigned first = lean_range_begin(split, cta, tiles) / tiles_per_output,
                   last = (lean_range_end(split, cta, grid, tiles) - 1) / tiles_per_output;
    counted.segments = std::max<std::int64_t>(counted.segments, last - first + 1);
    for (unsigned output = first; output <= last; ++output) ++contributors[output];
  }
  counted.contributors = *std::max_element(contributors.begin(), contributors.end());
  return counted;
}

TEST_F(Model, SegmentsAndContributorsAreThoseOfTheSchedule) {
  std::mt19937_64 random(kSeed);
  int exact = 0, grids = 0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Shape shape{.batch = 1 + static_cast<int>(random() % 20),
                      .longest_context = static_cast<std::int64_t>(16 + random() % 20000)};
    const auto tiles = static_cast<unsigned>(lean_tiles(problem, shape, spec));
    const auto outputs = static_cast<unsigned>(output_tiles(problem, shape, spec));
    for (const std::int64_t grid : useful_grids(device, problem, shape, spec, 2)) {
      const ModelFeatures features = model_features(parameters, device, problem, shape, {spec, grid}, 32);
      const Counted counted = count(tiles, tiles / outputs, static_cast<unsigned>(grid));
      // There is one wave, so that features.segments is that of the busiest CTA alone.
      if (grid > 32 * device.sm_count) continue;
      ++grids;
      const double expected = static_cast<double>(counted.segments) - 1;
      EXPECT_GE(features.segments, expected) << to_json(shape) << " grid " << grid << ", seed " << kSeed;
      EXPECT_LE(features.segments, expected + 1) << to_json(shape) << " grid " << grid << ", seed " << kSeed;
      EXPECT_EQ(features.shared > 0, counted.contributors > 1) << to_json(shape) << " grid " << grid;
      exact += features.segments == expected;
    }
  }
  EXPECT_GT(exact, grids * 9 / 10) << "of " << grids;
}

TEST_F(Model, RangesThatEndWithOutputTilesCrossNone) {
  // An output tile has 48 LeanTiles. Of eight such output tiles 56 CTAs take seven or six LeanTiles each, and none of
  // them crosses into another output tile. With 60 CTAs, which are no multiple of eight, some do.
  spec.tile = 32, spec.warp_tokens = 32;
  const Shape shape{.batch = 1, .longest_context = 1505};
  EXPECT_EQ(model_features(parameters, device, problem, shape, {spec, 56}, 2).segments, 0);
  EXPECT_EQ(model_features(parameters, device, problem, shape, {spec, 60}, 2).segments, 1);
}

/// Samples of every useful grid of some kernels at batches times contexts, with planted costs and noise.
std::vector<ModelSample> planted(const DeviceFacts& device, const DecodeProblem& problem,
                                 const std::vector<KernelSpec>& specs, const ModelParameters& parameters,
                                 const std::function<Costs(const KernelSpec&)>& costs, const std::vector<int>& batches,
                                 double noise, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<ModelSample> samples;
  for (const KernelSpec& spec : specs) {
    ModelParameters truth = parameters;
    truth.costs = costs(spec);
    for (const int batch : batches) {
      for (std::int64_t context = 512; context <= 65536; context *= 4) {
        const Shape shape{.batch = batch, .longest_context = context};
        for (const RankedConfig& ranked : rank_grids(truth, device, problem, shape, spec, 2))
          samples.push_back({problem, shape, ranked.config, 2, ranked.predicted_us * (1 + normal(random))});
      }
    }
  }
  return samples;
}

TEST_F(Model, FitRecoversThePlantedCosts) {
  const Costs truth{.start = 6, .stretch = 1.3, .wait = 1.1, .segment = 2.0, .fix_up = 3.0, .partial = 0.2};
  const auto costs = [&](const KernelSpec&) { return truth; };
  const auto samples = planted(device, problem, {spec}, parameters, costs, {1, 2, 8, 16}, 0.01, kSeed);
  const auto unseen = planted(device, problem, {spec}, parameters, costs, {3, 6}, 0.01, kSeed + 1);
  const CostModel fitted = fit_model(parameters, device, samples, {});
  EXPECT_GT(model_error(default_model(device), device, unseen), 0.1);
  EXPECT_LT(model_error(fitted, device, unseen), 0.02) << "seed " << kSeed;
  EXPECT_NEAR(fitted.of(spec).costs.stretch, truth.stretch, 0.1);
  EXPECT_NEAR(fitted.of(spec).costs.start, truth.start, 1.0);
}

TEST_F(Model, KernelsHaveCostsOfTheirOwnAndThoseWithFewSamplesTheirFamilys) {
  KernelSpec slow = spec, seldom = spec;
  slow.stages += 1, seldom.stages += 2;
  ASSERT_TRUE(validate(slow) && validate(seldom));
  const auto costs = [&](const KernelSpec& kernel) {
    return Costs{.start = kernel == slow ? 7.0 : 4.0, .stretch = kernel == slow ? 1.2 : 1.05};
  };
  auto samples = planted(device, problem, {spec, slow}, parameters, costs, {1, 4, 16}, 0.01, kSeed);
  const auto few = planted(device, problem, {seldom}, parameters, costs, {4}, 0.01, kSeed);
  samples.push_back(few.front());
  const CostModel fitted = fit_model(parameters, device, samples, {});
  EXPECT_NEAR(fitted.of(slow).costs.start, 7, 0.8) << "seed " << kSeed;
  EXPECT_NEAR(fitted.of(spec).costs.start, 4, 0.8) << "seed " << kSeed;
  const Costs family = fitted.families.at(measured_family_of(seldom)).costs;
  EXPECT_NEAR(fitted.of(seldom).costs.start, family.start, 0.35 * family.start);
  // A kernel that was not measured has its family's costs, and a family that was not measured has the device's.
  KernelSpec unseen = spec;
  unseen.warps *= 2;
  EXPECT_EQ(fitted.of(unseen).costs, family);
  unseen.load = LoadPath::vector;
  EXPECT_EQ(fitted.of(unseen), fitted.device);
}

TEST_F(Model, FewSamplesChangeNothingButTheReadLimitDoes) {
  const ModelSample sample{problem, {.batch = 1, .longest_context = 8192}, {spec, 132}, 2, 100.0};
  EXPECT_EQ(fit_model(parameters, device, {&sample, 1}, {}).device, parameters);
  const std::pair<std::int64_t, double> limits[] = {{1 << 20, 3.0}, {4ll << 30, 2000.0}};
  const CostModel fitted = fit_model(parameters, device, {}, limits);
  EXPECT_NEAR(fitted.device.memory_rate, static_cast<double>(4ll << 30) / 2000.0, 1);
}

TEST_F(Model, FittedCostsAreNeverNegative) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> anything(1, 500);
  std::vector<ModelSample> samples;
  for (int i = 0; i < 200; ++i) {
    samples.push_back(
        {problem, {.batch = 1 + i % 7, .longest_context = 100 + 97 * i}, {spec, 1 + i}, 1 + i % 3, anything(random)});
  }
  const CostModel fitted = fit_model(parameters, device, samples, {});
  for (const ModelParameters& level : {fitted.device, fitted.families.begin()->second, fitted.of(spec)}) {
    for (const double cost : as_array(level.costs)) {
      EXPECT_GE(cost, 0);
      EXPECT_TRUE(std::isfinite(cost));
    }
  }
}

TEST_F(Model, NoLaunchTakesLongToStartWhateverTheSamplesHaveInCommon) {
  // With many query rows, twice the bytes, half of which come from the L2, take no longer. The model does not know
  // why.
  std::vector<ModelSample> samples;
  for (const std::int64_t context : {16384, 32768}) {
    const Shape shape{.batch = 1, .longest_context = context};
    for (const std::int64_t grid : useful_grids(device, problem, shape, spec, 2))
      samples.push_back({.problem = problem, .shape = shape, .config = {spec, grid}, .resident = 2, .us = 60});
  }
  const CostModel model = fit_model(parameters, device, samples, {});
  EXPECT_LE(model.device.costs.start, 10);
  EXPECT_LE(model.of(spec).costs.start, 10);
}

TEST_F(Model, DefaultsAreSaneForEveryArch) {
  for (const Arch arch : matrix_arches()) {
    const DeviceFacts any = facts_for_arch(arch, 100).value();
    const ModelParameters p = default_parameters(any);
    EXPECT_GT(p.memory_rate, 3e5);    // 300 GB/s
    EXPECT_LT(p.memory_rate, 1.2e7);  // 12 TB/s
    EXPECT_GE(p.sm_rate * 100, p.memory_rate);
  }
}

}  // namespace
}  // namespace leanattn
