// Sections that come from other files: an earlier report and held-out regret.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/lookup.hpp"
#include "tuner/paper.hpp"
#include "tuner/report_render.hpp"

namespace leanattn {
namespace {

using nlohmann::json;

ReportedWinner winner(std::int64_t context, double us, double half_interval, std::int64_t grid = 64) {
  ReportedWinner made;
  made.shape = {.batch = 1, .max_batch = 0, .longest_context = context, .total_context = 0};
  made.policy = "cold";
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

TEST(ReportDifference, WinnersOfAnotherGpuAreOthers) {
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

std::string regret_file(const std::vector<std::pair<double, double>>& times) {
  json cases = json::array();
  for (const auto& [looked_up, best] : times) {
    cases.push_back({{"problem", json::parse(to_json(DecodeProblem{}))},
                     {"shape", json::parse(to_json(Shape{}))},
                     {"answer", "nearest"},
                     {"looked_up_us", looked_up},
                     {"best_us", best},
                     {"regret", 99}});
  }
  return json{{"schema_version", 1}, {"cases", cases}}.dump();
}

TEST(ReportRegret, IsComputedFromTheTimes) {
  std::vector<std::pair<double, double>> times;
  for (int i = 0; i <= 100; ++i) times.emplace_back(100.0 + i, 100.0);
  const auto report = regret_from_json(regret_file(times));
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_NEAR(report->median, 0.50, 1e-9);
  EXPECT_NEAR(report->ninetieth, 0.90, 1e-9);
  EXPECT_NEAR(report->largest, 1.00, 1e-9);
  EXPECT_NEAR(report->cases.front().regret(), 1.00, 1e-9);
  EXPECT_EQ(report->cases.front().answer, "nearest");
}

TEST(ReportRegret, APairedRatioGoesBeforeTheTimes) {
  json document = json::parse(regret_file({{12, 10}, {11, 10}}));
  document["cases"][1]["ratio"] = 1.5;
  const auto report = regret_from_json(document.dump());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_NEAR(report->cases[0].regret(), 0.5, 1e-9);
  EXPECT_NEAR(report->cases[1].regret(), 0.2, 1e-9);
}

TEST(ReportRegret, ACaseThatMakesNoSenseIsNamed) {
  const auto report = regret_from_json(regret_file({{10, 10}, {10, 0}}));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(report.error().message.find("case 1"), std::string::npos) << report.error().message;
  EXPECT_FALSE(regret_from_json(R"({"schema_version":1,"cases":[]})"));
  EXPECT_FALSE(regret_from_json(R"({"schema_version":2,"cases":[{}]})"));
}

TEST(GivenFiles, NestedToExhaustTheStackAreRefused) {
  constexpr std::size_t kDeep = 200'000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  EXPECT_FALSE(regret_from_json(R"({"schema_version":1,"cases":[{"problem":)" + deep + "}]}"));
  EXPECT_FALSE(difference_from(R"({"devices":[],"schema_version":)" + deep + "}", report_of({})));
  EXPECT_FALSE(paper_from_json(
      R"({"kind":"leanattn bench --paper","schema_version":1,"device":{"name":"","arch":"","x":)" + deep + "}}"));
}

}  // namespace
}  // namespace leanattn
