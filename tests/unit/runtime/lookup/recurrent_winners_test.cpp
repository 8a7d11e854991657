// recurrent_winners_test.cpp -- winners of operation `recurrent` among those of attention: which rows are taken, and
// that neither is in the way of the other.
#include <gtest/gtest.h>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

constexpr RecurrentTunables kTuned{.warps = 2, .warp_rows = 16, .row_lanes = 16};

LayeredWinners::Entry row(const RecurrentSpec& spec, int batch) {
  return {.winner = {.problem = to_json(RecurrentProblem{}),
                     .shape = batch_to_json(batch),
                     .policy = "cold",
                     .config = to_json(spec),
                     .median_us = 7,
                     .kernel_revision = kernel_revision(spec)},
          .layer = "site"};
}

RecurrentSpec tuned() { return {.arch = fictional_gpu().arch, .tunables = kTuned}; }

TEST(RecurrentWinners, ARowIsReadAsItWasStored) {
  std::size_t skipped = 0;
  const std::vector rows{row(tuned(), 16)};
  const auto winners = recurrent_winners(fictional_gpu(), {}, rows, skipped);
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].spec, tuned());
  EXPECT_EQ(winners[0].batch, 16);
  EXPECT_EQ(winners[0].us, 7);
  EXPECT_EQ(winners[0].layer, "site");
  EXPECT_FALSE(winners[0].next);
  EXPECT_EQ(skipped, 0u);
}

TEST(RecurrentWinners, RowsOfOtherKernelsProblemsAndDevicesAreLeftOut) {
  std::vector rows{row(tuned(), 1), row(tuned(), 2), row(tuned(), 4), row(tuned(), 8), row(tuned(), 16)};
  rows[0].winner.kernel_revision = "of another version";
  RecurrentSpec other = tuned();
  other.problem.tokens = 2;
  rows[1].winner.config = to_json(other);
  other = tuned(), other.arch = {8, 0, false};
  rows[2].winner.config = to_json(other);
  rows[3].winner.shape = R"({"context":8})";
  std::size_t skipped = 0;
  const auto winners = recurrent_winners(fictional_gpu(), {}, rows, skipped);
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].batch, 16);
  EXPECT_EQ(skipped, 3u) << "a kernel that has changed is nothing to warn of";
}

TEST(RecurrentWinners, ATableHasThemBesideThoseOfAttentionAndReadsThemOnce) {
  LayeredWinners rows = layered({winner(kLlama, kMeasured, tuned_config(kLlama, 224))});
  rows.entries.push_back(row(tuned(), 16));
  rows.entries.push_back(row(tuned(), 64));
  WinnersByProblem source = by_problem(std::move(rows));
  int reads = 0;
  source.read = [&reads, inner = std::move(source.read)](std::span<const std::string> problems) {
    ++reads;
    return inner(problems);
  };
  const WinnerTable table(fictional_gpu(), std::move(source));
  EXPECT_EQ(reads, 0);
  EXPECT_EQ(table.recurrent_winners({}).size(), 2u);
  EXPECT_EQ(table.recurrent_winners({}).size(), 2u);
  EXPECT_EQ(reads, 1);
  EXPECT_TRUE(table.recurrent_winners(usual_problem(RecurrentKind::kda)).empty());
  EXPECT_EQ(table.find(kLlama, kMeasured).provenance, Provenance::exact);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.skipped(), 0u);
  EXPECT_TRUE(table.warnings().empty());
}

}  // namespace
}  // namespace leanattn
