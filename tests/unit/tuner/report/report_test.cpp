// report_test.cpp -- a report has what its database has, and each format shows it whole and safely.
#include "tuner/report/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/report/render.hpp"
#include "tuner/report/time_parts.hpp"

namespace leanattn {
namespace {

using nlohmann::json;

const DeviceModel kGpu{.name = "Fictional, \"GPU\" | 9000",
                       .arch = "sm_90a",
                       .sm_count = 100,
                       .l2_bytes = 50 << 20,
                       .memory_bytes = std::int64_t{80} << 30,
                       .mig_profile = ""};

Environment environment() {
  return {.driver_version = 13000,
          .driver_release = "580.1",
          .nvrtc_version = "13.0",
          .clock_khz = 1980000,
          .memory_clock_khz = 3200000,
          .power_limit_mw = 700000,
          .ecc = true,
          .library_revision = "r1"};
}

/// Each tune() is a session on a database in memory with a trial that wins, a slower one and an incorrect one.
class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    db_ = std::move(*opened);
  }

  void tune(const Shape& shape, double median_us, const DecodeProblem& problem = {}, const char* policy = "cold") {
    const auto session = db_->begin_session(kGpu, environment(), "test");
    ASSERT_TRUE(session.has_value()) << session.error().message;
    Trial trial;
    trial.problem = to_json(problem);
    trial.shape = to_json(shape);
    trial.policy = policy;
    trial.samples = 10;
    trial.bytes = kv_bytes(problem, shape);
    for (const auto& [grid, status, us] :
         {std::tuple{100, TrialStatus::ok, median_us}, std::tuple{200, TrialStatus::ok, 2 * median_us},
          std::tuple{300, TrialStatus::incorrect, 0.0}}) {
      trial.config = to_json(Config{.spec = base_spec({9, 0, true}, problem), .grid = grid});
      trial.status = status;
      trial.median_us = us;
      trial.low_us = us * 0.99;
      trial.high_us = us * 1.01;
      ASSERT_TRUE(db_->add_trial(*session, trial).has_value());
    }
    ASSERT_TRUE(db_->finish_session(*session).has_value());
    ASSERT_TRUE(db_->set_read_limit(kGpu, policy, kv_bytes(problem, shape), median_us * 0.8).has_value());
    ASSERT_TRUE(db_->rebuild_winners().has_value());
  }

  Report report() {
    auto made = make_report(*db_);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
    return made.value_or(Report{});
  }

  std::unique_ptr<TuningDb> db_;
};

TEST_F(ReportTest, AnEmptyDatabaseGivesNoDevices) {
  EXPECT_TRUE(report().devices.empty());
  EXPECT_NE(to_markdown(report()).find("Nothing has been tuned"), std::string::npos);
  EXPECT_EQ(json::parse(to_json(report()))["devices"].size(), 0u);
}

TEST_F(ReportTest, BandwidthAndShareFollowFromBytesAndMedian) {
  const Shape shape{.batch = 1, .max_batch = 0, .longest_context = 8192, .total_context = 0};
  tune(shape, 15.0);
  const Report made = report();
  ASSERT_EQ(made.devices.size(), 1u);
  ASSERT_EQ(made.devices[0].winners.size(), 1u);
  const ReportedWinner& winner = made.devices[0].winners[0];
  EXPECT_EQ(winner.config.grid, 100);
  EXPECT_EQ(winner.kv_bytes, 2LL * 8 * 8192 * 128 * 2);
  EXPECT_NEAR(winner.gb_per_s, 33554432.0 / 15e-6 / 1e9, 1e-9);
  EXPECT_NEAR(winner.read_limit_share, 0.8, 1e-9);
  EXPECT_EQ(made.devices[0].trials.at("ok"), 2);
  EXPECT_EQ(made.devices[0].trials.at("incorrect"), 1);
  ASSERT_EQ(made.devices[0].environments.size(), 1u);
  EXPECT_EQ(made.devices[0].environments[0], environment());
}

TEST_F(ReportTest, WinnersComeByBatchThenContext) {
  tune({.batch = 16, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 10);
  tune({.batch = 1, .max_batch = 0, .longest_context = 65536, .total_context = 0}, 30);
  tune({.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 8);
  const Report made = report();
  ASSERT_EQ(made.devices[0].winners.size(), 3u);
  EXPECT_EQ(made.devices[0].winners[0].shape.longest_context, 1024);
  EXPECT_EQ(made.devices[0].winners[1].shape.longest_context, 65536);
  EXPECT_EQ(made.devices[0].winners[2].shape.batch, 16);
}

TEST_F(ReportTest, JsonCarriesASchemaVersionAndNestedConfigs) {
  tune({.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 8);
  const json document = json::parse(to_json(report()));
  EXPECT_EQ(document["schema_version"], 1);
  const json& winner = document["devices"][0]["winners"][0];
  EXPECT_EQ(document["devices"][0]["name"], kGpu.name);
  EXPECT_TRUE(winner["config"].is_object());
  EXPECT_EQ(winner["problem"]["head_dim"], 128);
  EXPECT_EQ(winner["stale"], false);
}

TEST_F(ReportTest, CsvQuotesNamesAndHasAsManyFieldsAsTheHeader) {
  tune({.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 8);
  const std::string text = to_csv(report());
  const std::string header = text.substr(0, text.find('\n'));
  const std::string row = text.substr(text.find('\n') + 1);
  EXPECT_EQ(row.substr(0, 32), "\"Fictional, \"\"GPU\"\" | 9000\",sm_9");
  // The quoted name has one comma, which separates no fields.
  EXPECT_EQ(std::count(row.begin(), row.end(), ',') - 1, std::count(header.begin(), header.end(), ','));
}

TEST_F(ReportTest, DependentLaunchesAreKeptApartFromOrdinaryOnes) {
  const Shape shape{.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0};
  tune(shape, 5, {.pdl = true});
  tune(shape, 6);
  const Report made = report();
  ASSERT_EQ(made.devices[0].winners.size(), 2u);
  EXPECT_FALSE(made.devices[0].winners[0].problem.pdl);
  EXPECT_TRUE(made.devices[0].winners[1].problem.pdl);
  const json winners = json::parse(to_json(made))["devices"][0]["winners"];
  EXPECT_FALSE(winners[0]["problem"].contains("pdl"));
  EXPECT_EQ(winners[1]["problem"]["pdl"], true);
  const std::string csv = to_csv(made);
  EXPECT_NE(csv.find(",stale,pdl,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",false,false,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",false,true,"), std::string::npos) << csv;
  EXPECT_NE(to_markdown(made).find("| 32/8 x 128 bf16 pdl |"), std::string::npos) << to_markdown(made);
}

TEST_F(ReportTest, MarkdownCellsCannotBreakTheTable) {
  tune({.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 8);
  const std::string text = to_markdown(report());
  EXPECT_NE(text.find("\\| 9000"), std::string::npos) << text;
  EXPECT_NE(text.find("| 80% |"), std::string::npos) << text;
}

TEST_F(ReportTest, DatesOfAnEditedDatabaseStayTextInMarkdown) {
  Report report;
  DeviceReport& device = report.devices.emplace_back();
  device.trials["ok"] = 1;
  device.first_trial = "<img src=x>", device.last_trial = "[a](b)";
  const std::string text = to_markdown(report);
  EXPECT_EQ(text.find("<img"), std::string::npos);
  EXPECT_EQ(text.find("[a](b)"), std::string::npos);
}

TEST_F(ReportTest, EveryFormatNamesTheL2Policy) {
  tune({.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0}, 8, {}, "warm");
  const Report made = report();
  ASSERT_EQ(made.devices[0].winners.size(), 1u);
  EXPECT_EQ(made.devices[0].winners[0].policy, L2Policy::warm);
  EXPECT_EQ(json::parse(to_json(made))["devices"][0]["winners"][0]["policy"], "warm");
  EXPECT_NE(to_csv(made).find(",warm,"), std::string::npos);
  EXPECT_NE(to_markdown(made).find("| warm |"), std::string::npos);
  EXPECT_NE(to_html(made).find("warm L2"), std::string::npos);
}

TEST_F(ReportTest, AWinnerThatThisVersionCannotReadIsLeftOutAndCounted) {
  const Shape shape{.batch = 1, .max_batch = 0, .longest_context = 1024, .total_context = 0};
  tune(shape, 8);
  const auto session = db_->begin_session(kGpu, environment(), "test");
  ASSERT_TRUE(session.has_value()) << session.error().message;
  Trial trial;
  trial.problem = to_json(DecodeProblem{});
  trial.shape = to_json(Shape{.batch = 2, .max_batch = 0, .longest_context = 1024, .total_context = 0});
  trial.policy = "cold";
  trial.config = R"({"written by": "a later version"})";
  trial.status = TrialStatus::ok;
  trial.samples = 10;
  trial.median_us = trial.low_us = trial.high_us = 9;
  ASSERT_TRUE(db_->add_trial(*session, trial).has_value());
  ASSERT_TRUE(db_->finish_session(*session).has_value());
  ASSERT_TRUE(db_->rebuild_winners().has_value());
  ASSERT_EQ(db_->winners(kGpu)->size(), 2u);
  const Report made = report();
  ASSERT_EQ(made.devices[0].winners.size(), 1u);
  EXPECT_EQ(made.devices[0].winners[0].shape.batch, 1);
  EXPECT_EQ(made.devices[0].unreadable, 1);
}

TEST_F(ReportTest, StepsOfRecurrentStatesStandBesideTheCopyAndTheRule) {
  const RecurrentProblem problem = usual_problem(RecurrentKind::kda);
  const auto facts = detail::facts_of(kGpu);
  ASSERT_TRUE(facts) << facts.error().message;
  const RecurrentTunables by_rule = default_spec(*facts, problem, 16).tunables,
                          tuned{.warps = 2, .warp_rows = 16, .row_lanes = 16};
  ASSERT_NE(by_rule, tuned);
  const auto add = [&](const std::string& config, TrialStatus status, double us, const Environment& under) {
    const auto session = db_->begin_session(kGpu, under, "test").value();
    const Trial trial{.problem = to_json(problem),
                      .shape = batch_to_json(16),
                      .policy = "cold",
                      .config = config,
                      .status = status,
                      .samples = 12,
                      .median_us = us,
                      .low_us = us * 0.99,
                      .high_us = us * 1.01};
    ASSERT_TRUE(db_->add_trial(session, trial).has_value());
    ASSERT_TRUE(db_->finish_session(session).has_value());
  };
  const auto config = [&](const RecurrentTunables& tunables) {
    return to_json(RecurrentSpec{.arch = {9, 0, true}, .problem = problem, .tunables = tunables});
  };
  constexpr const char* kCopy = R"({"copy":"128x4","operation":"recurrent","writes":1})";
  Environment other = environment();
  other.driver_version = 12000;
  add(kCopy, TrialStatus::pruned, 5, other);
  add(config(tuned), TrialStatus::ok, 22, environment());
  add(config(by_rule), TrialStatus::pruned, 25, environment());
  add(config({.warps = 8, .warp_rows = 4, .row_lanes = 8}), TrialStatus::incorrect, 0, environment());
  add(kCopy, TrialStatus::pruned, 20, environment());
  add(kCopy, TrialStatus::pruned, 5, other);
  ASSERT_TRUE(db_->rebuild_winners().has_value());

  const Report made = report();
  ASSERT_EQ(made.devices.size(), 1u);
  const DeviceReport& device = made.devices[0];
  EXPECT_TRUE(device.winners.empty());
  EXPECT_EQ(device.unreadable, 0);
  ASSERT_EQ(device.recurrent.size(), 1u);
  const ReportedRecurrent& winner = device.recurrent[0];
  EXPECT_EQ(winner.spec.tunables, tuned);
  EXPECT_EQ(winner.batch, 16);
  EXPECT_NEAR(winner.over_copy(), 1.1, 1e-9) << "of the winner's software";
  EXPECT_NEAR(winner.over_rule(), 0.88, 1e-9);
  EXPECT_NEAR(winner.gb_per_s, 2.0 * 16 * 32 * 128 * 128 * 4 / 22e-6 / 1e9, 1e-6);
  EXPECT_EQ(winner.samples, 12);
  EXPECT_EQ(device.trials.at("pruned"), 1) << "copies are no candidates";
  ASSERT_EQ(device.failures.size(), 1u);
  EXPECT_TRUE(device.failures[0].kernel.starts_with("recurrent_sm90a_kda_"));

  const json row = json::parse(to_json(made))["devices"][0]["recurrent"][0];
  EXPECT_NEAR(row["over_copy"].get<double>(), 1.1, 1e-9);
  EXPECT_EQ(row["problem"]["kind"], "kda");
  const std::string markdown = to_markdown(made);
  EXPECT_NE(markdown.find("1 step of recurrent states is tuned."), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("| 16 | cold | `" + kernel_name(winner.spec) + "` | 22.0 |"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("| 1.100 | 0.880 |"), std::string::npos) << markdown;
  EXPECT_NE(to_html(made).find("Recurrent states"), std::string::npos);
}

TEST_F(ReportTest, MarkdownNamesRaggedShapes) {
  tune({.batch = 32, .max_batch = 0, .longest_context = 131072, .total_context = 162816}, 100);
  const std::string text = to_markdown(report());
  EXPECT_NE(text.find("| 32/8 x 128 bf16 | 32 x up to 128k, 159k in all | cold | `"), std::string::npos) << text;
}

}  // namespace
}  // namespace leanattn
