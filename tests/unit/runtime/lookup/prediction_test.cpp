// prediction_test.cpp -- what is expected of the kernels that a look-up considers, and which of them is taken.
#include "runtime/lookup/prediction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

std::vector<SeenShape> at_every_kind(const ShapeFeatures& here, double log_ratio) {
  std::vector<SeenShape> seen;
  for (const GridKind kind : kGridKinds) seen.push_back({here, kind, log_ratio});
  return seen;
}

class PredictionTest : public ::testing::Test {
 protected:
  PredictionTest() {
    KernelSpec spec = default_config({device, problem, {}}).spec;
    for (const int stages : {2, 3}) {
      spec.load = LoadPath::bulk, spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.ctas_per_sm = 1;
      spec.stages = stages;
      EstimatedKernel kernel{.spec = spec, .resident = 1, .parameters = default_parameters(device), .seen = {}};
      kernel.parameters.costs.start.fill(stages == 3 ? 2.0 : 2.6);  // so that the model prefers the deeper ring
      kernels.push_back(kernel);
    }
  }

  PredictedConfig best(const DecodeProblem& of, const Shape& shape) const {
    const auto found = best_predicted(kernels, {device, of, shape});
    EXPECT_TRUE(found);
    return found.value_or(PredictedConfig{});
  }
  PredictedConfig best() const { return best(problem, unseen); }

  /// The best time of the kernel at the unseen shape over its grids, by its model alone.
  double least_us(const EstimatedKernel& kernel) const {
    double least = std::numeric_limits<double>::infinity();
    for (const std::int64_t grid : useful_grids({device, problem, unseen}, kernel.spec, kernel.resident))
      least = std::min(least, predict_us(kernel.parameters, {device, problem, unseen}, {kernel.spec, grid}, 1));
    return least;
  }

  DeviceFacts device = fictional_gpu();
  DecodeProblem problem;
  std::vector<EstimatedKernel> kernels;
  const Shape unseen{.batch = 3, .longest_context = 3072};
};

TEST_F(PredictionTest, KernelsWithoutAPredictionAreNoAnswer) {
  // All of these numbers are finite, but they make times that are infinite, zero and negative.
  for (const double log_ratio : {1e6, -1e6}) {
    const ShapeFeatures here = shape_features_of({device, problem, unseen});
    kernels[0].seen = at_every_kind(here, log_ratio);
    EXPECT_EQ(best().config.spec, kernels[1].spec) << log_ratio;
    EXPECT_GT(best().us, 0) << log_ratio;
  }
  kernels[0].seen.clear();
  kernels[0].parameters.costs.start.fill(-1e9);
  EXPECT_EQ(best().config.spec, kernels[1].spec);
  kernels.pop_back();
  EXPECT_FALSE(best_predicted(kernels, {device, problem, unseen}));
}

TEST_F(PredictionTest, ACorrectionHoldsNearTheShapeWhereItWasSeenAndNotFarAway) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13}, far{.outputs = 3, .tokens_per_output = 22};
  const SeenShape seen[] = {{here, GridKind::even, 0.2}};
  EXPECT_NEAR(correction_at(seen, here, GridKind::even).log_ratio, 0.2, 0.05);
  EXPECT_NEAR(correction_at(seen, far, GridKind::even).log_ratio, 0.0, 1e-6);
  EXPECT_EQ(correction_at({}, {}, GridKind::even).log_ratio, 0);
}

TEST_F(PredictionTest, ACorrectionHoldsForTheKindOfGridThatWasSeen) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13};
  const SeenShape seen[] = {{here, GridKind::even, 0.2}, {here, GridKind::crossing, -0.1}};
  EXPECT_GT(correction_at(seen, here, GridKind::even).log_ratio, 0.1);
  EXPECT_LT(correction_at(seen, here, GridKind::crossing).log_ratio, 0);
  // It also counts a little for other kinds, most for those with the same answer to whether SMs stay idle.
  const SeenShape only[] = {{here, GridKind::idle_even, 0.2}};
  const double even = correction_at(only, here, GridKind::even).log_ratio;
  const double idle_crossing = correction_at(only, here, GridKind::idle_crossing).log_ratio;
  EXPECT_GT(even, 0);
  EXPECT_GT(idle_crossing, 1.5 * even);
  EXPECT_GT(correction_at(only, here, GridKind::idle_even).log_ratio, idle_crossing);
}

TEST_F(PredictionTest, DoubtGrowsWithTheDistanceFromWhatWasSeen) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13}, near{.outputs = 3, .tokens_per_output = 14};
  const SeenShape seen[] = {{here, GridKind::even, 0.2}};
  EXPECT_LT(correction_at(seen, here, GridKind::even).doubt, correction_at(seen, near, GridKind::even).doubt);
  EXPECT_LT(correction_at(seen, near, GridKind::even).doubt, correction_at(seen, here, GridKind::whole).doubt);
}

TEST_F(PredictionTest, DoubtGrowsWhereShapesDisagree) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13};
  const SeenShape agreed[] = {{here, GridKind::even, 0.01}, {here, GridKind::even, -0.01}};
  const SeenShape disputed[] = {{here, GridKind::even, 0.2}, {here, GridKind::even, -0.2}};
  const Correction sure = correction_at(agreed, here, GridKind::even);
  const Correction unsure = correction_at(disputed, here, GridKind::even);
  EXPECT_NEAR(sure.log_ratio, unsure.log_ratio, 1e-12);
  EXPECT_GT(unsure.doubt, sure.doubt + 0.1);
}

TEST_F(PredictionTest, WhatWasSeenNearbyOverrulesTheModel) {
  const ShapeFeatures here = shape_features_of({device, problem, unseen});
  kernels[1].seen = {{here, GridKind::whole, 0.5}, {here, GridKind::even, 0.5}, {here, GridKind::crossing, 0.5}};
  EXPECT_EQ(best().config.spec, kernels[0].spec);
}

TEST_F(PredictionTest, OfTwoLikeKernelsTheOneThatWasSeenNearbyIsTaken) {
  // By its model alone the other one is better by 1 %. The predicted time contains no doubt.
  EstimatedKernel& stranger = kernels[0];
  EstimatedKernel& known = kernels[1];
  const double later_us = 1.01 * least_us(stranger) - least_us(known);
  for (double& us : known.parameters.costs.start) us += later_us;
  const ShapeFeatures here = shape_features_of({device, problem, unseen});
  known.seen = at_every_kind(here, 0);
  const PredictedConfig chosen = best();
  EXPECT_EQ(chosen.config.spec, known.spec);
  EXPECT_NEAR(chosen.us, predict_us(known.parameters, {device, problem, unseen}, chosen.config, 1), 1e-9);
  known.seen.clear();
  EXPECT_EQ(best().config.spec, stranger.spec);
}

TEST_F(PredictionTest, TheKernelAndGridAreTakenThatTheModelSaysAreBest) {
  const PredictedConfig chosen = best();
  const EstimatedKernel& kernel = kernels[1];
  const double least = least_us(kernel);
  EXPECT_EQ(chosen.config.spec, kernel.spec);
  EXPECT_NEAR(chosen.us, least, 1e-9);
  EXPECT_NEAR(predict_us(kernel.parameters, {device, problem, unseen}, chosen.config, 1), least, 1e-9);
}

TEST_F(PredictionTest, ASurchargeComparesKernelsAndIsNoTime) {
  const double us = best().us;
  kernels[1].doubt = 0.02;
  EXPECT_EQ(best().config.spec, kernels[1].spec);
  EXPECT_NEAR(best().us, us, 1e-9);
  kernels[1].doubt = 0.5;
  EXPECT_EQ(best().config.spec, kernels[0].spec);
}

TEST_F(PredictionTest, DependentLaunchesAreExpectedToStartSooner) {
  const EstimatedKernel& kernel = kernels[1];
  DecodeProblem dependent = problem;
  dependent.pdl = true;
  Config config = best().config;
  config.spec.pdl = true;
  EXPECT_LT(predict(kernel, {device, dependent, unseen}, config).us, best().us) << "the costs are of ordinary launches";
}

TEST_F(PredictionTest, WhatIsExpectedElsewhereChangesTimesFarFromTunedShapesAndNoChoice) {
  const PredictedConfig before = best();
  for (EstimatedKernel& kernel : kernels) kernel.log_ratio = std::log(2.0);
  EXPECT_NEAR(best().us, 2 * before.us, 1e-9);
  EXPECT_EQ(best().config, before.config);
  EXPECT_EQ(best().doubtful_us, before.doubtful_us);
  const ShapeFeatures here = shape_features_of({device, problem, unseen});
  for (EstimatedKernel& kernel : kernels) {
    for (int i = 0; i < 5; ++i) {
      for (const SeenShape& at : at_every_kind(here, 0)) kernel.seen.push_back(at);
    }
  }
  EXPECT_LT(best().us, 1.1 * before.us) << "where shapes were seen, they say how far the model is off";
}

TEST_F(PredictionTest, RaggedBatchesGetKernelsThatWaitForNobodyAndASegmentCost) {
  kernels[1].spec.fixup = FixUp::wait;
  const Shape ragged{.batch = 16, .longest_context = 65536, .total_context = 65536 + 15 * 512};
  EXPECT_EQ(best(problem, ragged).config.spec.fixup, FixUp::ticket);
  EXPECT_GT(best(problem, ragged).config.segment_cost, 0);
}

TEST_F(PredictionTest, KernelsThatWaitNeverGetMoreCtasThanAreCertainlyResident) {
  for (EstimatedKernel& kernel : kernels) kernel.spec.fixup = FixUp::wait, kernel.resident = 3;
  for (const int batch : {1, 7, 64}) {
    const Config chosen = best(problem, {.batch = batch, .longest_context = 5000}).config;
    EXPECT_LE(chosen.grid, device.sm_count * chosen.spec.ctas_per_sm) << batch;
  }
}

}  // namespace
}  // namespace leanattn
