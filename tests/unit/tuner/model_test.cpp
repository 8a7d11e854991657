#include "tuner/model.hpp"

#include <gtest/gtest.h>

#include <random>

#include "runtime/lookup.hpp"
#include "tuner/search_space.hpp"

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
  EXPECT_GT(better, full * 1.1);
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

TEST_F(Model, FitRecoversTheCostsItWasGeneratedWith) {
  ModelParameters truth = parameters;
  truth.start = 4.5, truth.segment = 2.0, truth.fix_up = 3.0, truth.partial = 0.2, truth.stretch = 1.3;
  std::mt19937_64 random(kSeed);
  std::normal_distribution<double> noise(0, 0.01);
  std::vector<ModelSample> samples, unseen;
  for (const int batch : {1, 2, 3, 8, 16}) {
    for (std::int64_t context = 512; context <= 65536; context *= 2) {
      const Shape shape{.batch = batch, .longest_context = context};
      for (const RankedConfig& ranked : rank_grids(parameters, device, problem, shape, spec, 2)) {
        const double us = predict_us(truth, device, problem, shape, ranked.config, 2) * (1 + noise(random));
        (batch == 3 ? unseen : samples).push_back({problem, shape, ranked.config, 2, us});
      }
    }
  }
  const double before = model_error(parameters, device, unseen);
  const ModelParameters fitted = fit_parameters(parameters, device, samples, {});
  EXPECT_LT(model_error(fitted, device, unseen), 0.03) << "seed " << kSeed;
  EXPECT_GT(before, 0.1);
  EXPECT_NEAR(fitted.stretch, truth.stretch, 0.1);
  EXPECT_NEAR(fitted.start, truth.start, 1.0);
}

TEST_F(Model, FewSamplesChangeNothingButTheReadLimitDoes) {
  const ModelSample sample{problem, {.batch = 1, .longest_context = 8192}, {spec, 132}, 2, 100.0};
  EXPECT_EQ(fit_parameters(parameters, device, {&sample, 1}, {}), parameters);
  const std::pair<std::int64_t, double> limits[] = {{1 << 20, 3.0}, {4ll << 30, 2000.0}};
  const ModelParameters fitted = fit_parameters(parameters, device, {}, limits);
  EXPECT_NEAR(fitted.memory_rate, static_cast<double>(4ll << 30) / 2000.0, 1);
}

TEST_F(Model, FittedCostsAreNeverNegative) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> anything(1, 500);
  std::vector<ModelSample> samples;
  for (int i = 0; i < 200; ++i) {
    samples.push_back(
        {problem, {.batch = 1 + i % 7, .longest_context = 100 + 97 * i}, {spec, 1 + i}, 1 + i % 3, anything(random)});
  }
  const ModelParameters fitted = fit_parameters(parameters, device, samples, {});
  for (const double cost :
       {fitted.start, fitted.stretch, fitted.segment, fitted.fix_up, fitted.partial, fitted.tree_level}) {
    EXPECT_GE(cost, 0);
    EXPECT_TRUE(std::isfinite(cost));
  }
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
