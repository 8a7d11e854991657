// Which tunables a step of operation `recurrent` has without a tuning.
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
    EXPECT_EQ(chosen(32, batch), (RecurrentTunables{.warps = 4, .warp_rows = 8, .row_lanes = 8})) << batch;
}

TEST(RecurrentChoice, CtasOfFewHeadsAreSmallSoThatAllSmsHaveWork) {
  EXPECT_EQ(rows_of_cta(chosen(16, 1)), 16) << "128 CTAs";
  EXPECT_EQ(rows_of_cta(chosen(8, 1)), 8);
}

TEST(RecurrentChoice, RowsOfChannelsWithGatesLieOverMoreLanes) {
  EXPECT_EQ(chosen(32, 64, RecurrentKind::kda).row_lanes, 16);
}

}  // namespace
}  // namespace leanattn
