// difference_test.cpp -- what changed between two reports, and which earlier reports are refused.
#include "tuner/report/difference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/lookup/specs.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
namespace {

using nlohmann::json;

ReportedWinner winner(std::int64_t context, double us, double half_interval, std::int64_t grid = 64) {
  ReportedWinner made;
  made.shape = {.batch = 1, .max_batch = 0, .longest_context = context, .total_context = 0};
  made.policy = L2Policy::cold;
  made.config = {.spec = base_spec({9, 0, true}, made.problem), .grid = grid};
  made.median_us = us, made.low_us = us - half_interval, made.high_us = us + half_interval;
  made.kv_bytes = kv_bytes(made.problem, made.shape);
  return made;
}

Report report_of(std::vector<ReportedWinner> winners, const char* name = "GPU") {
  Report report;
  report.library_revision = "r1";
  DeviceReport device;
  device.device.name = name, device.device.arch = "sm_90a", device.device.sm_count = 132;
  device.winners = std::move(winners);
  report.devices.push_back(std::move(device));
  return report;
}

const WinnerChange& change_at(const ReportDifference& difference, std::int64_t context) {
  for (const WinnerChange& change : difference.changes) {
    if (shape_from_json(change.shape).value().longest_context == context) return change;
  }
  throw std::out_of_range("no such change");
}

TEST(ReportDifference, AChangeCountsOnlyBeyondBothIntervals) {
  const Report before = report_of({winner(1024, 10, 0.2), winner(2048, 10, 0.2), winner(4096, 10, 0.2)});
  const Report after = report_of({winner(1024, 10.3, 0.2), winner(2048, 11, 0.2), winner(4096, 9, 0.2)});
  const auto difference = difference_from(to_json(before), after);
  ASSERT_TRUE(difference) << difference.error().message;
  EXPECT_EQ(change_at(*difference, 1024).verdict(), "same");
  EXPECT_EQ(change_at(*difference, 2048).verdict(), "slower");
  EXPECT_EQ(change_at(*difference, 4096).verdict(), "faster");
  EXPECT_NEAR(change_at(*difference, 2048).ratio_low, 10.8 / 10.2, 1e-9);
  EXPECT_NEAR(change_at(*difference, 2048).ratio_high, 11.2 / 9.8, 1e-9);
  EXPECT_NEAR(difference->geometric_mean, std::cbrt(1.03 * 1.1 * 0.9), 1e-9);
  EXPECT_EQ(difference->changes.front().verdict(), "faster") << "the largest change comes first";
}

TEST(ReportDifference, WinnersOfAnotherGpuAreDifferentOnes) {
  const auto difference =
      difference_from(to_json(report_of({winner(1024, 10, 0.2)}, "Other")), report_of({winner(1024, 10, 0.2)}));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->count("new"), 1u);
  EXPECT_EQ(difference->count("lost"), 1u);
  EXPECT_EQ(difference->geometric_mean, 0);
}

TEST(ReportDifference, AnotherGridIsAnotherConfiguration) {
  const auto difference = difference_from(to_json(report_of({winner(1024, 10, 0.2, 64), winner(2048, 10, 0.2)})),
                                          report_of({winner(1024, 10, 0.2, 128), winner(2048, 10, 0.2)}));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->replaced(), 1u);
  EXPECT_EQ(change_at(*difference, 1024).old_grid, 64);
  EXPECT_EQ(change_at(*difference, 1024).new_grid, 128);
}

TEST(ReportDifference, AReportOfAnEarlierVersionIsRead) {
  std::ifstream file(std::string(LEANATTN_SOURCE_DIR) + "/tests/unit/tuner/earlier_report.json");
  std::ostringstream text;
  text << file.rdbuf();
  const json document = json::parse(text.str());
  const auto difference = difference_from(text.str(), report_of({}));
  ASSERT_TRUE(difference) << difference.error().message;
  EXPECT_EQ(difference->count("lost"), document["devices"][0]["winners"].size());
  for (const WinnerChange& change : difference->changes)
    EXPECT_TRUE(problem_from_json(change.problem)) << change.problem;
}

TEST(ReportDifference, AnEarlierReportWithAnUnknownL2PolicyIsRefused) {
  json document = json::parse(to_json(report_of({winner(1024, 10, 0.2)})));
  document["devices"][0]["winners"][0]["policy"] = "tepid";
  const auto difference = difference_from(document.dump(), report_of({}));
  ASSERT_FALSE(difference);
  EXPECT_EQ(difference.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(difference.error().message.find("tepid"), std::string::npos) << difference.error().message;
}

TEST(ReportDifference, WinnersUnderTheTwoL2PoliciesAreDifferentOnes) {
  ReportedWinner warm = winner(1024, 10, 0.2);
  warm.policy = L2Policy::warm;
  const auto difference = difference_from(to_json(report_of({winner(1024, 10, 0.2)})), report_of({warm}));
  ASSERT_TRUE(difference) << difference.error().message;
  EXPECT_EQ(difference->count("new"), 1u);
  EXPECT_EQ(difference->count("lost"), 1u);
}

TEST(ReportDifference, AnEarlierReportTooDeeplyNestedIsRefused) {
  constexpr std::size_t kDeep = 200'000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  EXPECT_FALSE(difference_from(R"({"devices":[],"schema_version":)" + deep + "}", report_of({})));
}

}  // namespace
}  // namespace leanattn
