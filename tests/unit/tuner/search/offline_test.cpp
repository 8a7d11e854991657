// offline_test.cpp -- without a GPU candidates are ranked, and what the model cannot tell apart is a tie.
#include "tuner/search/offline.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tuner/model/search_space.hpp"

namespace leanattn {
namespace {

OfflineShape with_predictions(const std::vector<double>& predictions, int rejected) {
  OfflineShape shape;
  for (const double us : predictions) {
    OfflineCandidate candidate;
    candidate.accepted = true;
    candidate.predicted_us = us;
    shape.candidates.push_back(candidate);
  }
  shape.candidates.resize(predictions.size() + static_cast<std::size_t>(rejected));
  return shape;
}

TEST(ModelTies, HoldWhatIsWithinTheModelsResolutionOfTheirFirst) {
  const auto counts = [](const OfflineShape& shape) {
    std::vector<std::size_t> found;
    std::size_t next = 0;
    for (const OfflineTie& tie : model_ties(shape)) {
      EXPECT_EQ(tie.first, next);
      next += tie.count;
      found.push_back(tie.count);
    }
    return found;
  };
  EXPECT_EQ(counts(with_predictions({10, 10.1, 10.29, 10.31, 10.5, 20}, 0)), (std::vector<std::size_t>{3, 2, 1}));
  EXPECT_EQ(counts(with_predictions({10, 10, 10}, 2)), std::vector<std::size_t>{3});
  EXPECT_TRUE(counts(with_predictions({}, 3)).empty());
  static_assert(kModelResolution == 0.03, "the numbers above are made for it");
}

TEST(OfflineTuning, ADryRunRanksWithoutCompilingAndWithoutProgress) {
  TuneRequest request;
  request.problem = {.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  request.shapes = {{.batch = 1, .longest_context = 4096}, {.batch = 16, .longest_context = 1024}};
  request.dry_run = true;
  const DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  int reports = 0;
  const auto planned = tune_offline(
      request, device, nullptr, [&](const TuneProgress&) { ++reports; }, nullptr);
  ASSERT_TRUE(planned.has_value()) << planned.error().message;
  EXPECT_EQ(reports, 0);
  ASSERT_EQ(planned->size(), 2u);
  for (const OfflineShape& shape : *planned) {
    EXPECT_GT(shape.candidates.size(), 10u);
    EXPECT_EQ(shape.skipped, 0);
    for (const OfflineCandidate& candidate : shape.candidates) {
      EXPECT_EQ(candidate.registers, 0);
      EXPECT_EQ(candidate.compile_ms, 0);
      EXPECT_GT(candidate.predicted_us, 0);
    }
  }
}

}  // namespace
}  // namespace leanattn
