// read_report_test.cpp -- reports that are read from JSON: whatever a file holds, the result can be rendered or is an
// error. tests/cli/reports.py compares whole reports with their copies.
#include "tuner/report/read_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "runtime/lookup/specs.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
namespace {

using nlohmann::json;

ReportedWinner winner(std::int64_t context, int kv_heads) {
  ReportedWinner made;
  made.problem.kv_heads = kv_heads;
  made.shape = {.batch = 4, .max_batch = 0, .longest_context = context, .total_context = 2 * context};
  made.config = {.spec = base_spec({9, 0, true}, made.problem), .grid = 96};
  made.median_us = 12.5, made.low_us = 12.4, made.high_us = 12.7, made.kv_bytes = 1 << 24;
  made.gb_per_s = 1342.2, made.read_limit_us = 10, made.read_limit_share = 0.8;
  made.samples = 16, made.measured = "2026-11-22T00:00:00.000Z";
  made.default_config = Rival{.config = made.config, .median_us = 15, .samples = 12, .over_winner = {1.2, 1.1, 1.3}};
  made.runner_up = Rival{.config = made.config, .median_us = 12.6, .samples = 3, .over_winner = {1.008, 0, 0}};
  made.candidates = CandidateSpread{.configurations = 30, .kernels = 10, .quantiles = {1, 1.1, 1.2, 1.3, 1.5, 2, 9}};
  made.progress = {{1, 0, 20}, {7, 0.25, 12.5}, {30, 1.5, 12.5}};
  made.parts = TimeParts{.start_us = 3,
                         .stream_us = 8,
                         .segments_us = 0.5,
                         .fix_up_us = 2,
                         .unexplained_us = -1,
                         .busy_sms = 96,
                         .contributors = 3,
                         .balance = 0.9,
                         .kib_in_flight = 64,
                         .limited_by = "start-up"};
  return made;
}

/// A report with something in every field.
Report whole() {
  Report report;
  report.library_revision = "r1";
  DeviceReport device;
  device.device = {"GPU", "sm_90a", 132, 60 << 20, std::int64_t{140} << 30, "1g.18gb"};
  device.environments = {{13000, "580.1", "13.0", 1980000, 3201000, 700000, true, "r1"}};
  device.first_trial = device.last_trial = "2026-11-22T00:00:00.000Z";
  device.winners = {winner(1024, 8), winner(4096, 8), winner(4096, 4)};
  for (const std::vector<std::size_t>& of_problem : {std::vector<std::size_t>{0, 1}, std::vector<std::size_t>{2}}) {
    device.problems.push_back(
        {.problem = device.winners[of_problem[0]].problem,
         .winners = of_problem,
         .sensitivity = {{.parameter = "stages", .values = {{"2", 1.2, 1.4, 2, 9}, {"4", 1, 1, 2, 8}}, .spread = 1.2}},
         .model_error = 0.04});
  }
  device.recurrent = {{.spec = {.arch = {9, 0, true}, .problem = usual_problem(RecurrentKind::mamba2)},
                       .batch = 8,
                       .policy = L2Policy::warm,
                       .median_us = 9.5,
                       .low_us = 9.4,
                       .high_us = 9.6,
                       .gb_per_s = 3000,
                       .copy_us = 9,
                       .rule_us = 10,
                       .stale = true,
                       .samples = 12,
                       .measured = "2026-11-22T00:00:00.000Z"}};
  device.trials = {{"ok", 3}, {"incorrect", 2}};
  device.failures = {{.status = "incorrect",
                      .reason = "O[N] is NaN",
                      .example = "O[0] is NaN",
                      .kernel = "lean",
                      .count = 2,
                      .common = {{"stages", "6"}, {"load", "bulk"}}}};
  device.unreadable = 1;
  report.devices.push_back(std::move(device));
  report.regret = regret_from_json(R"({"schema_version": 1, "cases": [{"problem": )" + to_json(DecodeProblem{}) +
                                   R"(, "shape": )" + to_json(winner(1024, 8).shape) +
                                   R"(, "answer": "nearest", "looked_up_us": 12, "best_us": 11, "ratio": 1.07}]})")
                      .value();
  Report before = report;
  before.devices[0].winners[1].config.grid = 64;
  report.difference = difference_from(to_json(before), report).value();
  return report;
}

json document_of(const Report& report) { return json::parse(to_json(report)); }

TEST(ReadReport, WhatWasWrittenIsReadAgain) {
  const Report report = whole();
  const auto again = report_from_json(to_json(report));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(to_json(*again), to_json(report));
  EXPECT_EQ(to_html(*again), to_html(report));
  EXPECT_EQ(to_markdown(*again), to_markdown(report));
  EXPECT_EQ(to_csv(*again), to_csv(report));
}

TEST(ReadReport, WhatAnEarlierVersionDidNotWriteStaysEmpty) {
  json document = document_of(whole());
  json& device = document["devices"][0];
  device.erase("headline");
  device.erase("recurrent");
  for (json& one : device["winners"]) one.erase("progress");
  for (json& one : device["failures"]) one.erase("common");
  document["regret"]["cases"][0].erase("ratio");
  const auto report = report_from_json(document.dump());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->devices[0].winners[0].progress.empty());
  EXPECT_TRUE(report->devices[0].failures[0].common.empty());
  EXPECT_TRUE(report->devices[0].recurrent.empty());
  EXPECT_NEAR(report->regret->cases[0].regret(), 0.07, 1e-9);
  EXPECT_EQ(to_html(*report).find("The search made"), std::string::npos);
}

TEST(ReadReport, WinnersOfAnotherVersionAreLeftOutAndTheOthersKeepTheirProblems) {
  json document = document_of(whole());
  json& winners = document["devices"][0]["winners"];
  const std::string kept = winners[1]["problem"].dump();
  winners[0]["problem"]["layout"] = "of the future";
  document["devices"][0]["recurrent"][0]["config"]["problem"]["kind"] = "of the future";
  const auto report = report_from_json(document.dump());
  ASSERT_TRUE(report) << report.error().message;
  const DeviceReport& device = report->devices[0];
  EXPECT_EQ(device.unreadable, 3) << "the report left one out already";
  EXPECT_TRUE(device.recurrent.empty());
  ASSERT_EQ(device.winners.size(), winners.size() - 1);
  EXPECT_EQ(json::parse(to_json(device.winners[0].problem)), json::parse(kept));
  std::size_t in_problems = 0;
  for (const ProblemReport& problem : device.problems) {
    in_problems += problem.winners.size();
    for (const std::size_t winner : problem.winners) EXPECT_EQ(device.winners.at(winner).problem, problem.problem);
  }
  EXPECT_EQ(in_problems, device.winners.size());
}

TEST(ReadReport, TextsOfAFileAreEscaped) {
  json document = document_of(whole());
  json& device = document["devices"][0];
  const std::string hostile = "<script>alert(1)</script>";
  device["name"] = device["arch"] = device["mig_profile"] = device["first_trial"] = hostile;
  document["library_revision"] = hostile;
  for (json& winner : device["winners"]) {
    winner["measured"] = winner["kernel"] = hostile;
    device["recurrent"][0]["measured"] = device["recurrent"][0]["kernel"] = hostile;
    if (!winner["parts"].is_null()) winner["parts"]["limited_by"] = hostile;
  }
  for (json& problem : device["problems"]) {
    for (json& parameter : problem["sensitivity"]) {
      parameter["parameter"] = hostile;
      for (json& value : parameter["values"]) value["value"] = hostile;
    }
  }
  device["failures"] = json::array({{{"count", 3},
                                     {"status", hostile},
                                     {"reason", hostile},
                                     {"example", "<b>"},
                                     {"kernel", hostile},
                                     {"common", json::array({{{"parameter", hostile}, {"value", hostile}}})}}});
  const auto report = report_from_json(document.dump());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(to_html(*report).find("<script"), std::string::npos);
  EXPECT_EQ(to_markdown(*report).find("<script"), std::string::npos);
}

/// All places of a document, as pointers.
void places(const json& value, const json::json_pointer& at, std::vector<json::json_pointer>& found) {
  found.push_back(at);
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) places(child, at / key, found);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) places(value[i], at / i, found);
  }
}

TEST(ReadReport, WhateverIsChangedTheReportIsReadOrRefused) {
  const json document = document_of(whole());
  std::vector<json::json_pointer> all;
  places(document, json::json_pointer(), all);
  const json others[] = {nullptr,        -1,   0, 1e300, -1e300, 1e-300, 18446744073709551615ull, "x", json::array(),
                         json::object(), true, 7};
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int read = 0, refused = 0;
  const std::size_t changes = all.size() * std::size(others);
  const std::size_t tried = thorough() ? changes : 60;
  for (std::size_t i = 0; i < tried; ++i) {
    const std::size_t change = thorough() ? i : random() % changes;
    const auto& at = all[change / std::size(others)];
    json changed = document;
    changed[at] = others[change % std::size(others)];
    const auto report = report_from_json(changed.dump());
    ++(report ? read : refused);
    if (!report) {
      EXPECT_EQ(report.error().code, ErrorCode::invalid_argument) << at;
      continue;
    }
    for (const std::string& text : {to_html(*report), to_markdown(*report), to_csv(*report)}) {
      EXPECT_EQ(text.find("nan\""), std::string::npos) << at;
      EXPECT_EQ(text.find("inf\""), std::string::npos) << at;
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

TEST(ReadReport, NumbersThatAreNoCountsAreRefused) {
  for (const json& number : {json(-1e300), json(1e300), json(0.5), json(18446744073709551615ull)}) {
    for (const char* at : {"/devices/0/trials/ok", "/devices/0/problems/0/winners/0", "/devices/0/winners/0/samples"}) {
      json changed = document_of(whole());
      ASSERT_TRUE(changed.contains(json::json_pointer(at))) << at;
      changed[json::json_pointer(at)] = number;
      const auto report = report_from_json(changed.dump());
      if (std::string_view(at).ends_with("winners/0") && number.is_number_unsigned())
        continue;  // an index of no winner
      ASSERT_FALSE(report) << at << " " << number;
      EXPECT_NE(report.error().message.find(number.dump()), std::string::npos) << report.error().message;
    }
  }
}

TEST(ReadReport, OtherFilesAreRefusedWithTheReason) {
  EXPECT_EQ(report_from_json("").error().message, "this is not a report");
  EXPECT_EQ(report_from_json("[]").error().message, "this is not a report");
  EXPECT_EQ(report_from_json(R"({"schema_version": 2, "devices": []})").error().message,
            "its schema_version is 2, not 1");
  EXPECT_TRUE(report_from_json(R"({"schema_version": 1, "devices": [{}], "library_revision": "r"})")
                  .error()
                  .message.starts_with("the report is not complete: "));
}

}  // namespace
}  // namespace leanattn
