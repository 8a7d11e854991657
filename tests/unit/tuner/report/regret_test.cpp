// regret_test.cpp -- held-out cases are read from JSON, and their regrets are sorted and summed up.
#include "tuner/report/regret.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace leanattn {
namespace {

using nlohmann::json;

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

TEST(ReportRegret, APairedRatioCountsMoreThanTheTimes) {
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

TEST(ReportRegret, AFileTooDeeplyNestedIsRefused) {
  constexpr std::size_t kDeep = 200'000;
  const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
  EXPECT_FALSE(regret_from_json(R"({"schema_version":1,"cases":[{"problem":)" + deep + "}]}"));
}

}  // namespace
}  // namespace leanattn
