// cost_model_fit_test.cpp -- the cost model's predictions, and what its fit learns from samples with known costs.
#include "tuner/model/cost_model_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/fitted_costs.hpp"
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
    parameters = default_parameters(device);
  }
  ModelledTime modelled(const Shape& shape, std::int64_t grid, int resident = 2) const {
    return modelled_time(parameters, {device, problem, shape}, {spec, grid}, resident);
  }
  /// Of the busiest CTA after its first.
  double segments(const Shape& shape, std::int64_t grid, int resident = 2) {
    parameters.costs = {.segment = 1, .sm_rate = 1};
    return modelled(shape, grid, resident).segments;
  }
  double predict(const Shape& shape, std::int64_t grid, int resident = 2) const {
    return predict_us(parameters, {device, problem, shape}, {spec, grid}, resident);
  }

  DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  DecodeProblem problem;
  KernelSpec spec;
  ModelParameters parameters;
};

TEST_F(Model, NeverBeatsTheMemory) {
  for (const std::int64_t context : {1, 1000, 65536, 1 << 20}) {
    const Shape shape{.batch = 2, .longest_context = context};
    for (const std::int64_t grid : useful_grids({device, problem, shape}, spec, 2)) {
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

TEST_F(Model, MergesAreChargedOnlyWhereOutputTilesAreShared) {
  const Shape shape{.batch = 16, .longest_context = 4096};
  EXPECT_EQ(modelled(shape, 128).merge, 0);
  EXPECT_GT(modelled(shape, 132).merge, 0);
}

TEST_F(Model, WaitingMergesManyPartialsTogetherAndTicketsMakeATree) {
  problem.q_heads = 8, problem.kv_heads = 1;
  spec = base_spec(device.arch, problem);
  spec.warps = 8;  // a thread for each of the 256 columns
  parameters.costs.partial = 1;
  const Shape shape{.batch = 1, .longest_context = 131072};
  const auto merge = [&](FixUp fixup, std::int64_t contributors) {
    spec.fixup = fixup;
    return modelled(shape, contributors, 1).merge;
  };
  // Sixteen contributors merge in one go. Of 128, nine groups of 12 and one of 20 merge first, then the groups.
  EXPECT_EQ(merge(FixUp::ticket, 16), 16);
  EXPECT_EQ(merge(FixUp::ticket, 32), 8 + 4);
  EXPECT_EQ(merge(FixUp::ticket, 128), 20 + 10);
  // These are the figures of the kernel itself.
  const std::string source = emit(spec).value().source;
  for (const char* constant : {"constexpr u32 kFlat = 16;", "constexpr u32 kMinWidth = 8;"})
    EXPECT_NE(source.find(constant), std::string::npos) << constant;
  // Contributors that wait take as long for each doubling of their number.
  EXPECT_DOUBLE_EQ(merge(FixUp::wait, 128), 7 * merge(FixUp::wait, 2));
  parameters = default_parameters(device);
  for (const std::int64_t many : {16, 128}) EXPECT_GT(merge(FixUp::ticket, many), merge(FixUp::wait, many));
}

TEST_F(Model, FewWarpsMergeColumnsInTurns) {
  problem.q_heads = 8, problem.kv_heads = 1;
  spec = base_spec(device.arch, problem);
  const auto merge = [&](FixUp fixup, int warps, std::int64_t contributors) {
    spec.fixup = fixup, spec.warps = warps;
    return modelled({.batch = 1, .longest_context = 8192}, contributors, 1).merge;
  };
  // Each turn of a ticket's merge goes through all partials again.
  EXPECT_DOUBLE_EQ(merge(FixUp::ticket, 4, 8), 2 * merge(FixUp::ticket, 8, 8));
  EXPECT_DOUBLE_EQ(merge(FixUp::ticket, 2, 8), 4 * merge(FixUp::ticket, 8, 8));
  // Contributors that wait share the columns out: 256 columns in two shares of two turns each, or in eight of one.
  EXPECT_DOUBLE_EQ(merge(FixUp::wait, 2, 2), 2 * merge(FixUp::wait, 8, 2));
  EXPECT_DOUBLE_EQ(merge(FixUp::wait, 2, 8), merge(FixUp::wait, 8, 8));
}

TEST_F(Model, LargePartialsTakeLongWhereOneCtaMergesThem) {
  problem = {.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  problem.features.latent = true, problem.features.v_head_dim = 512;
  spec = base_spec(device.arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  ASSERT_TRUE(layout_of(spec).has_large_partials);
  const auto merge = [&](FixUp fixup) {
    spec.fixup = fixup;
    return modelled({.batch = 1, .longest_context = 65536}, 128, 1).merge;
  };
  EXPECT_GT(merge(FixUp::ticket), 5 * merge(FixUp::wait));
}

TEST_F(Model, ManyQueryRowsAreBoundByTheStepsOfTheirWarps) {
  problem = {.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  problem.features.latent = true, problem.features.v_head_dim = 512;
  spec = base_spec(device.arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2;
  const Shape shape{.batch = 8, .longest_context = 131072};
  const double memory_us = static_cast<double>(kv_bytes(problem, shape)) / parameters.memory_rate;
  EXPECT_GT(modelled(shape, 128, 1).stream, 1.5 * memory_us);
  parameters.costs.work.fill(0), parameters.costs.step = 0;
  EXPECT_LT(modelled(shape, 128, 1).stream, 1.2 * memory_us);
}

TEST_F(Model, DependentLaunchesStartSoonerAndDoNotWantRoomLeftFree) {
  spec.load = LoadPath::tensor, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 128;
  const Shape shape{.batch = 1, .longest_context = 65536};
  const ModelledTime ordinary = modelled(shape, 80, 1), ordinary_full = modelled(shape, 132, 1);
  spec.pdl = true;
  EXPECT_LT(modelled(shape, 80, 1).start, ordinary.start);
  EXPECT_GT(modelled(shape, 80, 1).stream, ordinary.stream);
  EXPECT_GT(modelled(shape, 80, 1).stream - modelled(shape, 120, 1).stream, 0);
  EXPECT_EQ(modelled(shape, 132, 1).stream, ordinary_full.stream);
}

TEST_F(Model, CtasThatFollowEachOtherStartAndEnd) {
  // 4096 requests of 100 tokens, with a CTA for each output tile or with many output tiles for each CTA.
  spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.stages = 2;
  const Shape shape{.batch = 4096, .longest_context = 100};
  const double one_each = modelled(shape, 32768, 3).stream;
  EXPECT_GT(one_each, 1.2 * modelled(shape, 396, 3).stream);
  parameters.costs.cta = parameters.costs.row = 0;
  EXPECT_LT(modelled(shape, 32768, 3).stream, 0.9 * one_each);
}

TEST_F(Model, AKernelThatWaitsSavesNothingAsADependentLaunchWithoutAProducer) {
  const auto saved = [&](LoadPath load, FixUp fixup) {
    spec.load = load, spec.fixup = fixup, spec.pdl = false;
    const double ordinary = modelled({}, 8).start;
    spec.pdl = true;
    return ordinary - modelled({}, 8).start;
  };
  for (const LoadPath load : {LoadPath::bulk, LoadPath::cp_async, LoadPath::vector}) {
    EXPECT_GT(saved(load, FixUp::ticket), 0);
    EXPECT_EQ(saved(load, FixUp::wait), 0);
  }
  EXPECT_GT(saved(LoadPath::tensor, FixUp::wait), 0);
}

TEST_F(Model, CostsGoByTheClock) {
  const Shape shape{.batch = 1, .longest_context = 1024};
  device.clock_khz = kFittedClockKhz;
  EXPECT_EQ(default_parameters(device), parameters);
  const ModelledTime fast = modelled(shape, 132);
  const double memory_rate = parameters.memory_rate;
  device.clock_khz /= 2;
  parameters = default_parameters(device);
  EXPECT_DOUBLE_EQ(modelled(shape, 132).start, 2 * fast.start);
  EXPECT_DOUBLE_EQ(modelled(shape, 132).merge, 2 * fast.merge);
  EXPECT_EQ(parameters.memory_rate, memory_rate) << "memory does not";
}

TEST_F(Model, OneCtaTooManyForAWaveTakesAlmostAsLongAsItsWholeStream) {
  // There are 132 CTA slots for whole output tiles of equal length. There is one KV head, so that a request is an
  // output tile.
  problem.q_heads = 4, problem.kv_heads = 1;
  const auto streamed = [&](int batch) {
    const Shape shape{.batch = batch, .longest_context = 65536};
    return modelled(shape, batch, 1).stream;
  };
  const double full = streamed(132), more = streamed(133), twice = streamed(264);
  // Alone, an SM reads no more than some times its share of the memory's rate. Its ring is slower.
  EXPECT_GT(more, 1.4 * full);
  EXPECT_LT(more, 1.95 * full);
  EXPECT_NEAR(twice, 2 * full, 0.01 * full);
}

TEST_F(Model, KindsOfGridsAreToldApart) {
  const auto kind = [&](int batch, std::int64_t context, std::int64_t grid) {
    const Shape shape{.batch = batch, .longest_context = context};
    return modelled(shape, grid).kind;
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
    const auto tiles = static_cast<unsigned>(lean_tiles({device, problem, shape}, spec));
    const auto outputs = static_cast<unsigned>(output_tiles({device, problem, shape}, spec));
    for (const std::int64_t grid : useful_grids({device, problem, shape}, spec, 2)) {
      const double found = segments(shape, grid, 32);
      const Counted counted = count(tiles, tiles / outputs, static_cast<unsigned>(grid));
      // There is one wave, so that the segments are those of the busiest CTA alone.
      if (grid > 32 * device.sm_count) continue;
      ++grids;
      const double expected = static_cast<double>(counted.segments) - 1;
      EXPECT_GE(found, expected) << to_json(shape) << " grid " << grid << ", seed " << kSeed;
      EXPECT_LE(found, expected + 1) << to_json(shape) << " grid " << grid << ", seed " << kSeed;
      const GridKind kind = modelled(shape, grid, 32).kind;
      EXPECT_EQ(kind != GridKind::whole && kind != GridKind::idle_whole, counted.contributors > 1 || found > 0)
          << to_json(shape) << " grid " << grid;
      exact += found == expected;
    }
  }
  EXPECT_GT(exact, grids * 9 / 10) << "of " << grids;
}

TEST_F(Model, RangesThatEndWithOutputTilesCrossNone) {
  // An output tile has 48 LeanTiles. Of eight such output tiles 56 CTAs take seven or six LeanTiles each, and none of
  // them crosses into another output tile. With 60 CTAs, which are no multiple of eight, some do.
  spec.tile = 32, spec.warp_tokens = 32;
  const Shape shape{.batch = 1, .longest_context = 1505};
  EXPECT_EQ(segments(shape, 56), 0);
  EXPECT_EQ(segments(shape, 60), 1);
}

/// Samples of every useful grid of some kernels at batches times contexts, with planted factors and noise.
std::vector<ModelSample> planted(const DeviceFacts& device, const DecodeProblem& problem,
                                 const std::vector<KernelSpec>& specs, const ModelParameters& parameters,
                                 const std::function<PartFactors(const KernelSpec&)>& factors,
                                 const std::vector<int>& batches, double noise, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<ModelSample> samples;
  for (const KernelSpec& spec : specs) {
    ModelParameters truth = parameters;
    truth.factors = factors(spec);
    for (const int batch : batches) {
      for (std::int64_t context = 512; context <= 65536; context *= 4) {
        const Shape shape{.batch = batch, .longest_context = context};
        for (const RankedConfig& ranked : rank_grids(truth, {device, problem, shape}, spec, 2))
          samples.push_back({problem, shape, ranked.config, 2, ranked.predicted_us * (1 + normal(random))});
      }
    }
  }
  return samples;
}

TEST_F(Model, FitRecoversThePlantedFactors) {
  const PartFactors truth{1.6, 1.3, 2.0, 3.0};
  const auto factors = [&](const KernelSpec&) { return truth; };
  const auto samples = planted(device, problem, {spec}, parameters, factors, {1, 2, 8, 16}, 0.01, kSeed);
  const auto unseen = planted(device, problem, {spec}, parameters, factors, {3, 6}, 0.01, kSeed + 1);
  const CostModel fitted = fit_model(parameters, device, samples, {});
  EXPECT_GT(model_error(default_model(device), device, unseen), 0.1);
  EXPECT_LT(model_error(fitted, device, unseen), 0.02) << "seed " << kSeed;
  for (std::size_t i = 0; i < kTimeParts; ++i) EXPECT_NEAR(fitted.of(spec).factors[i], truth[i], 0.1 * truth[i]) << i;
}

TEST_F(Model, KernelsHaveFactorsOfTheirOwnAndThoseWithFewSamplesTheirFamilys) {
  KernelSpec slow = spec, seldom = spec;
  slow.stages += 1, seldom.stages += 2;
  ASSERT_TRUE(validate(slow) && validate(seldom));
  const auto factors = [&](const KernelSpec& kernel) {
    return PartFactors{kernel == slow ? 2.0 : 1.2, kernel == slow ? 1.2 : 1.05, 1, 1};
  };
  auto samples = planted(device, problem, {spec, slow}, parameters, factors, {1, 4, 16}, 0.01, kSeed);
  const auto few = planted(device, problem, {seldom}, parameters, factors, {4}, 0.01, kSeed);
  samples.push_back(few.front());
  const CostModel fitted = fit_model(parameters, device, samples, {});
  EXPECT_NEAR(fitted.of(slow).factors[0], 2, 0.2) << "seed " << kSeed;
  EXPECT_NEAR(fitted.of(spec).factors[0], 1.2, 0.2) << "seed " << kSeed;
  const PartFactors family = fitted.families.at(measured_family_of(seldom));
  EXPECT_NEAR(fitted.of(seldom).factors[0], family[0], 0.35 * family[0]);
  // A kernel that was not measured has its family's factors, and a family that was not measured has the device's.
  KernelSpec unseen = spec;
  unseen.warps *= 2;
  EXPECT_EQ(fitted.of(unseen).factors, family);
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

TEST_F(Model, FittedFactorsAreNeverNegative) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> anything(1, 500);
  std::vector<ModelSample> samples;
  for (int i = 0; i < 200; ++i) {
    samples.push_back(
        {problem, {.batch = 1 + i % 7, .longest_context = 100 + 97 * i}, {spec, 1 + i}, 1 + i % 3, anything(random)});
  }
  const CostModel fitted = fit_model(parameters, device, samples, {});
  for (const PartFactors& level : {fitted.device.factors, fitted.families.begin()->second, fitted.of(spec).factors}) {
    for (const double factor : level) {
      EXPECT_GE(factor, 0);
      EXPECT_TRUE(std::isfinite(factor));
    }
  }
}

TEST_F(Model, NoLaunchTakesLongToStartWhateverTheSamplesHaveInCommon) {
  // With many query rows, twice the bytes, half of which come from the L2, take no longer. The model does not know
  // why.
  std::vector<ModelSample> samples;
  for (const std::int64_t context : {16384, 32768}) {
    const Shape shape{.batch = 1, .longest_context = context};
    for (const std::int64_t grid : useful_grids({device, problem, shape}, spec, 2))
      samples.push_back({.problem = problem, .shape = shape, .config = {spec, grid}, .resident = 2, .us = 60});
  }
  const CostModel model = fit_model(parameters, device, samples, {});
  EXPECT_LE(modelled_time(model.of(spec), {device, problem, samples.front().shape}, samples.front().config, 2).start,
            10);
}

TEST_F(Model, DefaultsAreSaneForEveryArch) {
  for (const Arch arch : matrix_arches()) {
    const DeviceFacts any = facts_for_arch(arch, 100).value();
    const ModelParameters p = default_parameters(any);
    EXPECT_GT(p.memory_rate, 3e5);    // 300 GB/s
    EXPECT_LT(p.memory_rate, 1.2e7);  // 12 TB/s
    EXPECT_GE(p.costs.sm_rate, 1);
  }
}

}  // namespace
}  // namespace leanattn
