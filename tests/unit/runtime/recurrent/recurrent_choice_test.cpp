// Which tunables a step of operation `recurrent` has, without a tuning and with winners of batches near and far.
#include "runtime/recurrent/recurrent_choice.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

RecurrentTunables chosen(int v_heads, int batch, RecurrentKind kind = RecurrentKind::gated_delta) {
  RecurrentProblem problem = usual_problem(kind);
  problem.qk_heads = v_heads, problem.v_heads = v_heads;
  return default_spec(facts_for_arch({9, 0, true}, 132).value(), problem, batch).tunables;
}

TEST(RecurrentChoice, LargeBatchesHaveTheUsualTunables) {
  for (const int batch : {1, 4, 16, 64, 128, 1000})
    EXPECT_EQ(chosen(32, batch), (RecurrentTunables{.warps = 4, .warp_rows = 4, .row_lanes = 16})) << batch;
}

TEST(RecurrentChoice, CtasOfFewHeadsAreSmallSoThatAllSmsHaveWork) {
  EXPECT_EQ(rows_of_cta(chosen(16, 1)), 16) << "128 CTAs";
  EXPECT_EQ(rows_of_cta(chosen(8, 1)), 8);
}

TEST(RecurrentChoice, RowsOfChannelsWithGatesLieOverMoreLanes) {
  EXPECT_EQ(chosen(32, 64, RecurrentKind::kda).row_lanes, 32);
}

const DeviceFacts& hopper() {
  static const DeviceFacts facts = facts_for_arch({9, 0, true}, 132).value();
  return facts;
}

constexpr RecurrentTunables kTuned{.warps = 2, .warp_rows = 16, .row_lanes = 16};

RecurrentWinner won(int batch, const RecurrentTunables& tunables = kTuned, L2Policy policy = L2Policy::cold) {
  return {.spec = {.arch = hopper().arch, .tunables = tunables}, .batch = batch, .policy = policy, .us = 5};
}

RecurrentChoice answer(int batch, std::vector<RecurrentWinner> winners) {
  return recurrent_launch_order(hopper(), {}, batch, winners).front();
}

TEST(RecurrentLaunchOrder, WithoutWinnersTheRuleAnswers) {
  const auto order = recurrent_launch_order(hopper(), {}, 16, {});
  ASSERT_EQ(order.size(), 1u);
  EXPECT_EQ(order[0].spec, default_spec(hopper(), {}, 16));
  EXPECT_EQ(order[0].provenance, Provenance::fallback);
  EXPECT_FALSE(order[0].winner);
}

TEST(RecurrentLaunchOrder, TheWinnerOfTheBatchComesFirstThenTheNextBestThenTheRule) {
  RecurrentWinner winner = won(16);
  winner.next = RecurrentSpec{.arch = hopper().arch, .tunables = {.warps = 8, .warp_rows = 4, .row_lanes = 8}};
  const auto order = recurrent_launch_order(hopper(), {}, 16, std::vector{won(15), winner, won(17)});
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order[0].spec, winner.spec);
  EXPECT_EQ(order[0].provenance, Provenance::exact);
  EXPECT_EQ(order[1].spec, winner.next);
  EXPECT_EQ(order[1].provenance, Provenance::nearest);
  EXPECT_EQ(order[2].spec, default_spec(hopper(), {}, 16));
  winner.next = default_spec(hopper(), {}, 16);
  EXPECT_EQ(recurrent_launch_order(hopper(), {}, 16, std::vector{winner}).size(), 2u) << "none twice";
}

TEST(RecurrentLaunchOrder, TheNearestBatchHasTheLeastQuotientAndOfTwoIsTheLarger) {
  const auto nearest = [](int batch, std::vector<int> tuned) {
    std::vector<RecurrentWinner> winners;
    for (const int each : tuned) winners.push_back(won(each));
    const auto choice = answer(batch, winners);
    return choice.winner ? choice.winner->batch : 0;
  };
  EXPECT_EQ(nearest(48, {32, 64}), 64);
  EXPECT_EQ(nearest(40, {32, 64}), 32);
  EXPECT_EQ(nearest(64, {32, 128}), 128);
  EXPECT_EQ(nearest(64, {128, 32}), 128) << "in any order";
  EXPECT_EQ(nearest(100, {50}), 50) << "twice is near";
  EXPECT_EQ(nearest(100, {49, 201}), 0) << "more is not";
}

TEST(RecurrentLaunchOrder, ANearWinnersTunablesTakeThePlaceOfTheUsualOnes) {
  const RecurrentChoice choice = answer(100, {won(128)});
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.spec.tunables, kTuned);
}

TEST(RecurrentLaunchOrder, ANearWinnersTunablesGiveWayWhereTheyWouldLeaveSmsIdle) {
  // 32 heads of 4 CTAs with 32 rows each are 128 CTAs for 132 SMs. Of 5 requests they would be 160.
  const RecurrentTunables whole{.warps = 4, .warp_rows = 32, .row_lanes = 32};
  ASSERT_EQ(answer(4, {won(4, whole)}).spec.tunables, whole);
  const RecurrentChoice choice = answer(5, {won(4, whole)});
  EXPECT_EQ(choice.winner.value().batch, 4);
  EXPECT_NE(choice.spec.tunables, whole);
  EXPECT_LT(rows_of_cta(choice.spec.tunables), rows_of_cta(whole));
}

TEST(RecurrentLaunchOrder, ColdWinnersGoBeforeWarmOnes) {
  constexpr RecurrentTunables kWarm{.warps = 8, .warp_rows = 4, .row_lanes = 8};
  EXPECT_EQ(answer(16, {won(16, kWarm, L2Policy::warm), won(16)}).spec.tunables, kTuned);
  EXPECT_EQ(answer(16, {won(16, kWarm, L2Policy::warm)}).spec.tunables, kWarm);
}

}  // namespace
}  // namespace leanattn
