// dependent_launch_test.cpp -- the answers of look-ups for problems with programmatic dependent launch.
#include "runtime/lookup/dependent_launch.hpp"

#include <gtest/gtest.h>

#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const DecodeProblem kDependent{.q_heads = 32, .kv_heads = 8, .head_dim = 128, .pdl = true};

TEST(LookupPdl, DependentAndOrdinaryWinnersOfOneShapeStandSideBySide) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12),
                               winner(kDependent, kMeasured, tuned_config(kDependent, 64), 10)});
  ASSERT_EQ(table.size(), 2u);
  const Choice ordinary = table.find(kLlama, kMeasured), dependent = table.find(kDependent, kMeasured);
  EXPECT_EQ(ordinary.provenance, Provenance::exact);
  EXPECT_EQ(ordinary.config, tuned_config(kLlama, 224));
  EXPECT_FALSE(ordinary.tuned_pdl);
  EXPECT_EQ(dependent.provenance, Provenance::exact);
  EXPECT_EQ(dependent.config, tuned_config(kDependent, 64));
  EXPECT_TRUE(dependent.tuned_pdl);
  EXPECT_TRUE(dependent.config.spec.pdl);
}

TEST(LookupPdl, WithoutAWinnerOfItsOwnTheAnswerRestsOnTheOrdinaryOne) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 131), 12.5, "cold", "site")});
  const Choice choice = table.find(kDependent, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::without_pdl);
  EXPECT_TRUE(choice.config.spec.pdl);
  EXPECT_GE(choice.config.grid, 128);
  EXPECT_EQ(choice.tuned_us, 12.5);
  EXPECT_EQ(choice.tuned_shape, kMeasured);
  EXPECT_FALSE(choice.tuned_pdl);
  EXPECT_EQ(choice.layer, "site");
  const Choice same_bucket = table.find(kDependent, {.batch = 4, .longest_context = 5000});
  EXPECT_EQ(same_bucket.provenance, Provenance::without_pdl);
  EXPECT_TRUE(same_bucket.config.spec.pdl);
  const Choice elsewhere = table.find(kDependent, {.batch = 4, .longest_context = 100000});
  EXPECT_EQ(elsewhere.provenance, Provenance::nearest);
  EXPECT_TRUE(elsewhere.config.spec.pdl);
  EXPECT_FALSE(elsewhere.tuned_pdl);
}

TEST(LookupPdl, AWinnerOfItsOwnInTheBucketGoesBeforeTheOrdinaryOneOfTheShape) {
  const auto table =
      table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12),
                winner(kDependent, {.batch = 3, .longest_context = 5000}, tuned_config(kDependent, 48), 7)});
  const Choice choice = table.find(kDependent, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::bucket);
  EXPECT_EQ(choice.tuned_us, 7);
  EXPECT_TRUE(choice.tuned_pdl);
}

TEST(LookupPdl, LanesThatBringScalesWithRowsStartInTurn) {
  DecodeProblem problem = kDependent;
  problem.features = {.page_size = 16, .kv_format = KvFormat::int4, .kv_scale = KvScale::in_row};
  EXPECT_TRUE(as_launched(problem, {9, 0, true}).pdl);
  const Choice boxes = table_of({}).find(problem, kMeasured);
  EXPECT_TRUE(boxes.config.spec.pdl);
  EXPECT_EQ(boxes.config.spec.load, LoadPath::tensor);
  EXPECT_TRUE(validate(boxes.config.spec));

  problem.features.page_size = 8;  // too short for boxes
  EXPECT_FALSE(as_launched(problem, {9, 0, true}).pdl);
  EXPECT_FALSE(base_spec({9, 0, true}, problem).pdl);
  const Choice choice = table_of({}).find(problem, kMeasured);
  EXPECT_FALSE(choice.config.spec.pdl);
  EXPECT_EQ(choice.config.spec.load, LoadPath::cp_async);
  EXPECT_TRUE(validate(choice.config.spec));
}

TEST(LookupPdl, AnOrdinaryProblemNeverGetsADependentKernel) {
  const auto table = table_of({winner(kDependent, kMeasured, tuned_config(kDependent, 224), 9)});
  const Choice choice = table.find(kLlama, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_FALSE(choice.config.spec.pdl);
  EXPECT_TRUE(choice.tuned_pdl);
}

TEST(LookupPdl, LinksOfAChainThatWaitDoNotLeaveSmsIdleWhereAnOrdinaryLaunchMay) {
  // On an H200 the ordinary winner of 1 x 16384 tokens of 40/10 heads has 80 CTAs, and takes 24 % longer as a link of a
  // chain of dependent launches than alone.
  const DecodeProblem heads{.q_heads = 40, .kv_heads = 10, .head_dim = 128};
  DecodeProblem dependent = heads;
  dependent.pdl = true;
  Config idle = tuned_config(heads, 80);
  idle.spec.load = LoadPath::tensor, idle.spec.fixup = FixUp::wait;
  idle.spec.warps = 8, idle.spec.warp_tokens = 16, idle.spec.stages = 4, idle.spec.tile = 128;
  ASSERT_TRUE(validate(idle.spec));
  const Shape shape{.batch = 1, .longest_context = 16384};
  DeviceFacts h200 = fictional_gpu();
  h200.memory_bytes = 140ll << 30;
  const Choice choice = WinnerTable::build(h200, layered({winner(heads, shape, idle, 22.8)})).find(dependent, shape);
  EXPECT_EQ(choice.provenance, Provenance::without_pdl);
  EXPECT_GE(choice.config.grid, 106) << "with a fifth of the room free, links took 7 % longer";
}

TEST(LookupPdl, WithoutAnyWinnerNoAnswerIsExpectedToTakeLongerThanTheOrdinaryOne) {
  const DeviceFacts device = fictional_gpu();
  const WinnerTable table = WinnerTable::build(device, {});
  int same_configurations = 0, asked = 0;
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const int batch : {1, 4, 33, 64, 120, 700}) {
      for (const std::int64_t context : {96, 200, 896, 7168, 61440}) {  // look-ups round none of these up
        const DecodeProblem ordinary{.q_heads = 64, .kv_heads = 8, .head_dim = head_dim};
        DecodeProblem dependent = ordinary;
        dependent.pdl = true;
        const Shape shape = canonical({.batch = batch, .longest_context = context});
        const Config without = table.find(ordinary, shape).config, with = table.find(dependent, shape).config;
        const auto modelled_us = [&](const Config& config) {
          return predict_us(default_parameters(device), {device, dependent, shape}, config,
                            guess_resident(device, config.spec));
        };
        ++asked;
        EXPECT_LE(modelled_us(with), 1.02 * modelled_us(without)) << to_json(dependent) << to_json(shape);
        Config as_dependent = without;
        as_dependent.spec.pdl = true;
        if (!with.spec.pdl) {
          EXPECT_EQ(with, without) << to_json(dependent) << to_json(shape);
        } else if (with == as_dependent) {
          ++same_configurations;
        } else {
          EXPECT_GT(modelled_us(as_dependent), 1.02 * modelled_us(with)) << to_json(dependent) << to_json(shape);
        }
      }
    }
  }
  EXPECT_LT(same_configurations, asked);
  EXPECT_GT(same_configurations, 0);
}

TEST(LookupPdl, AnOrdinaryLaunchAnswersWhereNoDependentOneIsExpectedToBeFaster) {
  // A third of the SMs have no CTA, so that the next launch begins there and the rest of it comes late. By the measured
  // time no other grid comes near.
  const DecodeProblem heads{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  DecodeProblem dependent = heads;
  dependent.pdl = true;
  Config idle = tuned_config(heads, 80);
  idle.spec.load = LoadPath::tensor, idle.spec.warps = 8, idle.spec.warp_tokens = 16, idle.spec.stages = 4;
  idle.spec.tile = 128;
  ASSERT_TRUE(validate(idle.spec));
  const Shape shape{.batch = 10, .longest_context = 16384};
  const auto table = WinnerTable::build(fictional_gpu(), layered({winner(heads, shape, idle, 100.0)}));
  const Choice choice = table.find(dependent, shape);
  EXPECT_EQ(choice.provenance, Provenance::without_pdl);
  EXPECT_EQ(choice.config.spec, idle.spec);
  EXPECT_EQ(choice.config.grid, idle.grid);
  EXPECT_FALSE(choice.tuned_pdl);
}

TEST(LookupPdl, BeforeHopperAProblemWithPdlIsAnsweredAsOneWithout) {
  const Arch ampere{8, 0, false};
  Config config = tuned_config(kLlama, 216, ampere);
  config.spec.load = LoadPath::cp_async;
  const auto table = WinnerTable::build(fictional_gpu(ampere, 108), layered({winner(kLlama, kMeasured, config, 30)}));
  const Choice choice = table.find(kDependent, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::exact);
  EXPECT_EQ(choice.config, config);
  ASSERT_EQ(table.find(kDependent, kMeasured).provenance, Provenance::exact);
  const Choice untuned = WinnerTable::build(fictional_gpu(ampere, 108), {}).find(kDependent, kMeasured);
  EXPECT_TRUE(validate(untuned.config.spec));
  EXPECT_FALSE(untuned.config.spec.pdl);
}

TEST(LookupPdl, AConfigForTheOtherKindOfLaunchIsSkipped) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kDependent, 132)),
                               winner(kDependent, kMeasured, tuned_config(kLlama, 132))});
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.skipped(), 2u);
}

}  // namespace
}  // namespace leanattn
