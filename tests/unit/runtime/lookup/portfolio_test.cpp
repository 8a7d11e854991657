// portfolio_test.cpp -- portfolios: their JSON, and the look-ups of untuned shapes.
#include "runtime/lookup/portfolio.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

std::vector<SeenShape> at_every_kind(const ShapeFeatures& here, double log_ratio) {
  std::vector<SeenShape> seen;
  for (const GridKind kind : kGridKinds) seen.push_back({here, kind, log_ratio});
  return seen;
}

class PortfolioTest : public ::testing::Test {
 protected:
  PortfolioTest() {
    KernelSpec spec = default_config(device, problem, {}).spec;
    portfolio.shapes = 6, portfolio.samples = 400, portfolio.held_out_error = 0.03;
    for (const int stages : {2, 3}) {
      spec.load = LoadPath::bulk, spec.warps = 4, spec.warp_tokens = 16, spec.tile = 64, spec.ctas_per_sm = 1;
      spec.stages = stages;
      PortfolioKernel kernel{.spec = spec, .resident = 1, .parameters = default_parameters(device), .seen = {}};
      // So that the model prefers the deeper ring, and either to a kernel of another family at its default costs.
      kernel.parameters.costs.start = stages == 3 ? 2.0 : 2.6;
      portfolio.kernels.push_back(kernel);
    }
  }

  WinnerTable table(bool with_model = true) const {
    LayeredWinners layers;
    layers.entries.push_back(winner(problem, {.batch = 1, .longest_context = 8192}, {portfolio.kernels[0].spec, 64}));
    if (with_model) layers.models.push_back({to_json(problem), "cold", to_json(portfolio)});
    return WinnerTable::build(device, layers);
  }

  /// The best time of the kernel at the unseen shape over its grids, by its model alone.
  double least_us(const PortfolioKernel& kernel) const {
    double least = std::numeric_limits<double>::infinity();
    for (const std::int64_t grid : useful_grids(device, problem, unseen, kernel.spec, kernel.resident))
      least = std::min(least, predict_us(kernel.parameters, device, problem, unseen, {kernel.spec, grid}, 1));
    return least;
  }

  DeviceFacts device = fictional_gpu();
  DecodeProblem problem;
  Portfolio portfolio;
  const Shape unseen{.batch = 3, .longest_context = 3072};
};

TEST_F(PortfolioTest, ComesBackFromItsJsonAsItWas) {
  portfolio.kernels[1].seen = {{{.outputs = 3, .tokens_per_output = 13, .raggedness = 0.5}, GridKind::even, -0.04}};
  const auto read = portfolio_from_json(to_json(portfolio));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, portfolio);
}

TEST_F(PortfolioTest, TextsThatAreNoPortfoliosAreRefused) {
  const auto whole = nlohmann::json::parse(to_json(portfolio));
  const auto refuses = [](const nlohmann::json& json) {
    const auto read = portfolio_from_json(json.dump());
    return !read && read.error().code == ErrorCode::invalid_argument;
  };
  EXPECT_FALSE(portfolio_from_json("{"));
  EXPECT_TRUE(refuses(nlohmann::json::array()));
  for (const auto& [key, value] : whole.items()) {
    auto without = whole;
    without.erase(key);
    EXPECT_TRUE(refuses(without)) << key;
  }
  for (const auto& [key, value] : whole["kernels"][0].items()) {
    auto without = whole;
    without["kernels"][0].erase(key);
    EXPECT_TRUE(refuses(without)) << key;
  }
  auto wrong = whole;
  wrong["kernels"][0]["latency"] = 0;
  EXPECT_TRUE(refuses(wrong)) << "rates must not be 0, because they divide";
  wrong = whole;
  wrong["kernels"][0]["resident"] = 0;
  EXPECT_TRUE(refuses(wrong));
  wrong["kernels"][0]["resident"] = std::numeric_limits<int>::max();
  EXPECT_TRUE(refuses(wrong)) << "the search for a grid would try so many";
  wrong = whole;
  wrong["kernels"][0]["spec"]["stages"] = 0;
  EXPECT_TRUE(refuses(wrong));
  wrong = whole;
  wrong["kernels"][0]["costs"] = {1, 2, 3};
  EXPECT_TRUE(refuses(wrong));
  wrong = whole;
  wrong["format"] = 99;
  EXPECT_TRUE(refuses(wrong));
}

TEST_F(PortfolioTest, TextsNestedToExhaustTheStackAreRefused) {
  auto whole = to_json(portfolio);
  const std::string key = "\"spec\":";
  constexpr std::size_t kDeep = 200'000;
  whole.insert(whole.find(key) + key.size(),
               "{\"x\":" + std::string(kDeep, '[') + std::string(kDeep, ']') + "},\"y\":");
  EXPECT_FALSE(portfolio_from_json(whole));
}

TEST_F(PortfolioTest, KernelsWithoutAPredictionAreNoAnswer) {
  // All of these numbers are finite, but they make times that are infinite, zero and negative.
  for (const double log_ratio : {1e6, -1e6}) {
    const ShapeFeatures here = shape_features_of(problem, unseen, base_spec(device.arch, problem));
    portfolio.kernels[0].seen = at_every_kind(here, log_ratio);
    const Choice choice = table().find(problem, unseen);
    EXPECT_EQ(choice.config.spec, portfolio.kernels[1].spec) << log_ratio;
    EXPECT_GT(choice.predicted_us, 0) << log_ratio;
  }
  portfolio.kernels[0].seen.clear();
  portfolio.kernels[0].parameters.costs.start = -1e9;
  EXPECT_EQ(table().find(problem, unseen).config.spec, portfolio.kernels[1].spec);
}

TEST_F(PortfolioTest, ACorrectionHoldsNearTheShapeWhereItWasSeenAndNotFarAway) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13}, far{.outputs = 3, .tokens_per_output = 22};
  const SeenShape seen[] = {{here, GridKind::even, 0.2}};
  EXPECT_NEAR(correction_at(seen, here, GridKind::even).log_ratio, 0.2, 0.05);
  EXPECT_NEAR(correction_at(seen, far, GridKind::even).log_ratio, 0.0, 1e-6);
  EXPECT_EQ(correction_at({}, {}, GridKind::even).log_ratio, 0);
}

TEST_F(PortfolioTest, ACorrectionHoldsForTheKindOfGridThatWasSeen) {
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

TEST_F(PortfolioTest, DoubtGrowsWithTheDistanceFromWhatWasSeen) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13}, near{.outputs = 3, .tokens_per_output = 14};
  const SeenShape seen[] = {{here, GridKind::even, 0.2}};
  EXPECT_LT(correction_at(seen, here, GridKind::even).doubt, correction_at(seen, near, GridKind::even).doubt);
  EXPECT_LT(correction_at(seen, near, GridKind::even).doubt, correction_at(seen, here, GridKind::whole).doubt);
}

TEST_F(PortfolioTest, DoubtGrowsWhereShapesDisagree) {
  const ShapeFeatures here{.outputs = 3, .tokens_per_output = 13};
  const SeenShape agreed[] = {{here, GridKind::even, 0.01}, {here, GridKind::even, -0.01}};
  const SeenShape disputed[] = {{here, GridKind::even, 0.2}, {here, GridKind::even, -0.2}};
  const Correction sure = correction_at(agreed, here, GridKind::even);
  const Correction unsure = correction_at(disputed, here, GridKind::even);
  EXPECT_NEAR(sure.log_ratio, unsure.log_ratio, 1e-12);
  EXPECT_GT(unsure.doubt, sure.doubt + 0.1);
}

TEST_F(PortfolioTest, OfTwoLikeKernelsTheOneThatWasSeenNearbyIsTaken) {
  // By its model alone the other one is better by 1 %. The predicted time contains no doubt.
  PortfolioKernel& stranger = portfolio.kernels[0];
  PortfolioKernel& known = portfolio.kernels[1];
  known.parameters.costs.start += 1.01 * least_us(stranger) - least_us(known);
  const ShapeFeatures here = shape_features_of(problem, unseen, base_spec(device.arch, problem));
  known.seen = at_every_kind(here, 0);
  const Choice choice = table().find(problem, unseen);
  EXPECT_EQ(choice.config.spec, known.spec);
  EXPECT_NEAR(choice.predicted_us, predict_us(known.parameters, device, problem, unseen, choice.config, 1), 1e-9);
  known.seen.clear();
  EXPECT_EQ(table().find(problem, unseen).config.spec, stranger.spec);
}

TEST_F(PortfolioTest, AnUnseenShapeGetsTheKernelAndGridThatTheModelSaysAreBest) {
  const Choice choice = table().find(problem, unseen);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.config.spec, portfolio.kernels[1].spec);
  const PortfolioKernel& kernel = portfolio.kernels[1];
  const double least = least_us(kernel);
  EXPECT_NEAR(choice.predicted_us, least, 1e-9);
  EXPECT_NEAR(predict_us(kernel.parameters, device, problem, unseen, choice.config, 1), least, 1e-9);
}

TEST_F(PortfolioTest, WhatWasSeenNearbyOverrulesTheModel) {
  const ShapeFeatures here = shape_features_of(problem, unseen, base_spec(device.arch, problem));
  portfolio.kernels[1].seen = {
      {here, GridKind::whole, 0.5}, {here, GridKind::even, 0.5}, {here, GridKind::crossing, 0.5}};
  EXPECT_EQ(table().find(problem, unseen).config.spec, portfolio.kernels[0].spec);
}

TEST_F(PortfolioTest, AFamilyThatWasNotFittedIsTakenWhereItsDefaultCostsAreFarLower) {
  const auto family_at = [&](double start) {
    for (PortfolioKernel& kernel : portfolio.kernels) kernel.parameters.costs.start = start;
    const KernelSpec spec = table().find(problem, unseen).config.spec;
    return std::pair{spec.load, spec.fixup};
  };
  const std::pair fitted{portfolio.kernels[0].spec.load, portfolio.kernels[0].spec.fixup};
  EXPECT_EQ(family_at(2.0), fitted);
  EXPECT_NE(family_at(20.0), fitted);
}

TEST_F(PortfolioTest, AMeasuredShapeIsAnsweredByItsWinner) {
  const Choice choice = table().find(problem, {.batch = 1, .longest_context = 8192});
  EXPECT_EQ(choice.provenance, Provenance::exact);
  EXPECT_EQ(choice.config.spec, portfolio.kernels[0].spec);
  EXPECT_EQ(choice.predicted_us, 0);
}

TEST_F(PortfolioTest, OneOfTooFewShapesIsNoModel) {
  const Choice without = table(false).find(problem, unseen);
  EXPECT_EQ(without.provenance, Provenance::nearest);
  portfolio.shapes = kFewestPortfolioShapes - 1;
  EXPECT_EQ(table().find(problem, unseen).config, without.config);
}

TEST_F(PortfolioTest, AnUnreadableModelIsIgnored) {
  LayeredWinners layers;
  layers.entries.push_back(winner(problem, {.batch = 1, .longest_context = 8192}, {portfolio.kernels[0].spec, 64}));
  layers.models.push_back({to_json(problem), "cold", "{\"format\":99}"});
  const WinnerTable with_it = WinnerTable::build(device, layers);
  EXPECT_EQ(with_it.find(problem, unseen).config, table(false).find(problem, unseen).config);
  EXPECT_EQ(with_it.skipped(), 0u);
}

TEST_F(PortfolioTest, OtherKvHeadsAndPagesAreAnsweredWithKernelsThatFitThem) {
  DecodeProblem other = problem;
  other.q_heads = 2 * problem.q_heads, other.kv_heads = 2 * problem.kv_heads;
  other.features.page_size = 16;
  const Choice choice = table().find(other, unseen);
  EXPECT_GT(choice.predicted_us, 0);
  EXPECT_EQ(choice.config.spec.features.page_size, 16);
  EXPECT_TRUE(validate(choice.config.spec));
  // The costs of another group's kernels say nothing.
  DecodeProblem wider = problem;
  wider.q_heads = 2 * problem.q_heads;
  EXPECT_EQ(table().find(wider, unseen).config, table(false).find(wider, unseen).config);
}

TEST_F(PortfolioTest, AWinnerCloseToTheShapeGoesBeforeTheModelOfAnotherProblem) {
  DecodeProblem other = problem;
  other.layout = KvLayout::strided;  // half an octave away
  KernelSpec strided = portfolio.kernels[0].spec;
  strided.layout = other.layout;
  LayeredWinners layers;
  layers.models.push_back({to_json(problem), "cold", to_json(portfolio)});
  layers.entries.push_back(winner(other, {.batch = 1, .longest_context = 8192}, {strided, 64}));
  const WinnerTable both = WinnerTable::build(device, layers);
  const Choice near = both.find(other, {.batch = 1, .longest_context = 8000});
  EXPECT_EQ(near.provenance, Provenance::bucket);
  LayeredWinners alone;
  alone.entries = layers.entries;
  const WinnerTable without = WinnerTable::build(device, alone);
  EXPECT_EQ(near.predicted_us, without.find(other, {.batch = 1, .longest_context = 8000}).predicted_us);
  // Far from all winners the model of the other problem is the better guide.
  const Shape far{.batch = 16, .longest_context = 500};
  EXPECT_NE(both.find(other, far).predicted_us, without.find(other, far).predicted_us);
}

TEST_F(PortfolioTest, DependentLaunchesAreExpectedToStartSooner) {
  DecodeProblem dependent = problem;
  dependent.pdl = true;
  const Choice ordinary = table().find(problem, unseen), choice = table().find(dependent, unseen);
  EXPECT_TRUE(choice.config.spec.pdl);
  EXPECT_LT(choice.predicted_us, ordinary.predicted_us);
}

TEST_F(PortfolioTest, FarFromEveryTunedShapeAUsualKernelMayGoBeforeThoseOfThePortfolio) {
  // The portfolio has one CTA an SM. Of thousands of short requests several CTAs an SM each take some, so that one
  // streams while another one ends a segment.
  const ShapeFeatures tuned = shape_features_of(problem, {.longest_context = 8192}, base_spec(device.arch, problem));
  for (PortfolioKernel& kernel : portfolio.kernels) {
    kernel.seen = at_every_kind(tuned, 0), kernel.parameters.costs.start = 4, kernel.parameters.costs.segment = 1;
  }
  const Choice near = table().find(problem, {.batch = 1, .longest_context = 7000});
  EXPECT_EQ(near.config.spec.ctas_per_sm, 1);
  const Choice far = table().find(problem, {.batch = 4096, .longest_context = 96});
  EXPECT_GT(far.config.spec.ctas_per_sm, 1);
}

TEST_F(PortfolioTest, RaggedBatchesGetKernelsThatWaitForNobodyAndASegmentCost) {
  portfolio.kernels[1].spec.fixup = FixUp::wait;
  const Shape ragged{.batch = 16, .longest_context = 65536, .total_context = 65536 + 15 * 512};
  const Choice choice = table().find(problem, ragged);
  EXPECT_EQ(choice.config.spec.fixup, FixUp::ticket);
  EXPECT_GT(choice.config.segment_cost, 0);
}

TEST_F(PortfolioTest, KernelsThatWaitNeverGetMoreCtasThanAreCertainlyResident) {
  for (PortfolioKernel& kernel : portfolio.kernels) kernel.spec.fixup = FixUp::wait, kernel.resident = 3;
  for (const int batch : {1, 7, 64}) {
    const Choice choice = table().find(problem, {.batch = batch, .longest_context = 5000});
    EXPECT_LE(choice.config.grid, device.sm_count * choice.config.spec.ctas_per_sm) << batch;
  }
}

}  // namespace
}  // namespace leanattn
