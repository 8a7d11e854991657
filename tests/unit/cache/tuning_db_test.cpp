#include "cache/tuning/tuning_db.hpp"

#include <cmath>
#include <limits>
#include <map>

#include "cache/tuning/rows.hpp"
#include "cache/tuning/schema.hpp"
#include "cache/tuning/winners.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

class TuningDbTest : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::unique_ptr<TuningDb> db_ = open_quietly(directory_.path());
};

TEST_F(TuningDbTest, CreatesAPrivateFileThatIsMarkedAsOurs) {
  struct stat status {};
  ASSERT_EQ(::stat((directory_ / "tuning.db").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  RawDatabase raw(directory_ / "tuning.db");
  EXPECT_EQ(raw.ask("PRAGMA application_id"), std::to_string(0x4C41746E));
  EXPECT_EQ(raw.ask("PRAGMA user_version"), "6");
  EXPECT_EQ(
      raw.ask(
          "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND name NOT LIKE 'sqlite%' AND strict = 0"),
      "0")
      << "every table is STRICT";
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u) << "nothing else is left in the directory";
}

TEST_F(TuningDbTest, KeepsEverythingATrialSaysOverAReopen) {
  const auto session = db_->begin_session(h200(), environment(), "leanattn tune --model llama-3-8b");
  ASSERT_TRUE(session);
  Trial put = trial(R"({"tile":64})", 14.125, 0.25);
  put.reason = "because: \"quotes\", \n newlines and \xE2\x82\xAC";
  put.throttle = "sw_power_cap";
  put.status = TrialStatus::incorrect;
  const auto uuid = db_->add_trial(*session, put);
  ASSERT_TRUE(uuid) << uuid.error().message;
  EXPECT_EQ(uuid->size(), 36u);
  ASSERT_TRUE(db_->finish_session(*session));
  db_ = open_quietly(directory_.path());
  const auto trials = db_->trials(h200(), put.problem, put.shape, put.policy);
  ASSERT_TRUE(trials);
  ASSERT_EQ(trials->size(), 1u);
  const Trial& got = trials->front();
  EXPECT_EQ(got.uuid, *uuid);
  EXPECT_EQ(got.problem, put.problem);
  EXPECT_EQ(got.shape, put.shape);
  EXPECT_EQ(got.policy, put.policy);
  EXPECT_EQ(got.config, put.config);
  EXPECT_EQ(got.status, put.status);
  EXPECT_EQ(got.reason, put.reason);
  EXPECT_EQ(got.samples, put.samples);
  EXPECT_EQ(got.median_us, put.median_us);
  EXPECT_EQ(got.mad_us, put.mad_us);
  EXPECT_EQ(got.low_us, put.low_us);
  EXPECT_EQ(got.high_us, put.high_us);
  EXPECT_EQ(got.samples_json, put.samples_json);
  EXPECT_EQ(got.throttle, put.throttle);
  EXPECT_EQ(got.registers, put.registers);
  EXPECT_EQ(got.compile_ms, put.compile_ms);
  EXPECT_EQ(got.bytes, put.bytes);
  EXPECT_EQ(got.created.size(), std::string("2026-11-21T09:30:00.123Z").size());
  EXPECT_EQ(db_->device_models().value(), std::vector<DeviceModel>{h200()});
  EXPECT_EQ(db_->environments(h200()).value(), std::vector<Environment>{environment()});
  const auto sessions = db_->sessions().value();
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0].uuid, *session);
  EXPECT_EQ(sessions[0].command, "leanattn tune --model llama-3-8b");
  EXPECT_EQ(sessions[0].trials, 1);
  EXPECT_GE(sessions[0].finished, sessions[0].started);
}

TEST_F(TuningDbTest, FindsTrialsByAnyPartOfTheKey) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  Trial other = trial("{}", 10);
  other.shape = R"({"batch":16})";
  ASSERT_TRUE(db_->add_trial(session, trial("{}", 10)));
  ASSERT_TRUE(db_->add_trial(session, other));
  other.policy = "warm";
  ASSERT_TRUE(db_->add_trial(session, other));
  EXPECT_EQ(db_->trials(h200(), "", "", "")->size(), 3u);
  EXPECT_EQ(db_->trials(h200(), "", other.shape, "")->size(), 2u);
  EXPECT_EQ(db_->trials(h200(), other.problem, other.shape, "warm")->size(), 1u);
  EXPECT_EQ(db_->trials(h200(), "{\"no\":1}", "", "")->size(), 0u);
  DeviceModel slice = h200();
  slice.sm_count = 16;
  EXPECT_EQ(db_->trials(slice, "", "", "")->size(), 0u);
}

TEST_F(TuningDbTest, RefusesTrialsThatMakeNoSense) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  const auto expect_refused = [&](auto&& change) {
    Trial bad = trial("{}", 10);
    change(bad);
    const auto added = db_->add_trial(session, bad);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, ErrorCode::invalid_argument) << added.error().message;
  };
  expect_refused([](Trial& t) { t.problem.clear(); });
  expect_refused([](Trial& t) { t.shape.clear(); });
  expect_refused([](Trial& t) { t.config.clear(); });
  expect_refused([](Trial& t) { t.policy = "lukewarm"; });
  expect_refused([](Trial& t) { t.median_us = std::nan(""); });
  expect_refused([](Trial& t) { t.high_us = std::numeric_limits<double>::infinity(); });
  expect_refused([](Trial& t) { t.mad_us = -1; });
  expect_refused([](Trial& t) { t.median_us = 0; });
  expect_refused([](Trial& t) { t.samples = -1; });
  EXPECT_EQ(db_->add_trial("no-such-session", trial("{}", 10)).error().code, ErrorCode::not_found);
  EXPECT_EQ(db_->finish_session("no-such-session").error().code, ErrorCode::not_found);
  EXPECT_EQ(db_->stats()->trials, 0);
}

TEST_F(TuningDbTest, AddsATrialWithAGivenUuidOnce) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  Trial put = trial("{}", 10);
  put.uuid = "00000000-0000-4000-8000-000000000001";
  put.created = "2026-01-01T00:00:00.000Z";
  EXPECT_EQ(db_->add_trial(session, put).value(), put.uuid);
  EXPECT_EQ(db_->add_trial(session, put).value(), put.uuid);
  put.median_us = 11;
  put.high_us = 11;
  EXPECT_EQ(db_->add_trial(session, put).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(db_->stats()->trials, 1);
}

TEST_F(TuningDbTest, DerivesWinnersFromOkTrialsOnly) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  Trial wrong = trial("{\"fast\":\"and wrong\"}", 1);
  wrong.status = TrialStatus::incorrect;
  ASSERT_TRUE(db_->add_trial(session, wrong));
  EXPECT_TRUE(db_->rebuild_winners());
  EXPECT_TRUE(db_->winners(h200())->empty());
  ASSERT_TRUE(db_->add_trial(session, trial("{\"tile\":64}", 15, 0.1)));
  const auto best = db_->add_trial(session, trial("{\"tile\":128}", 14, 0.1)).value();
  EXPECT_TRUE(db_->winners(h200())->empty()) << "winners change only when they are rebuilt";
  const Trial key = trial("", 1);
  EXPECT_TRUE(db_->rebuild_winners(h200(), key.problem, key.shape, key.policy));
  const auto winners = db_->winners(h200()).value();
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].config, "{\"tile\":128}");
  EXPECT_EQ(winners[0].trial_uuid, best);
  EXPECT_EQ(winners[0].median_us, 14);
  EXPECT_EQ(winners[0].low_us, 13.9);
  EXPECT_FALSE(winners[0].stale);
  EXPECT_EQ(db_->stats()->winners, 1);
}

TEST_F(TuningDbTest, NamesTheNextBestOfAWinnersKeyButNoneThatWasEverWrong) {
  const auto next = [&] {
    EXPECT_TRUE(db_->rebuild_winners());
    const auto winners = db_->winners(h200()).value();
    return winners.size() == 1 ? std::pair(winners[0].next_config, winners[0].next_us)
                               : std::pair(std::string("?"), 0.0);
  };
  const auto session = db_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(db_->add_trial(session, trial("{\"tile\":128}", 14)));
  ASSERT_TRUE(db_->add_trial(session, trial("{\"tile\":128}", 15)));
  EXPECT_EQ(next(), std::pair(std::string(), 0.0));
  ASSERT_TRUE(db_->add_trial(session, trial("{\"tile\":32}", 17)));
  ASSERT_TRUE(db_->add_trial(session, trial("{\"tile\":64}", 16)));
  EXPECT_EQ(next(), std::pair(std::string("{\"tile\":64}"), 16.0));
  Trial wrong = trial("{\"tile\":64}", 0);
  wrong.status = TrialStatus::incorrect;
  ASSERT_TRUE(db_->add_trial(session, wrong));
  EXPECT_EQ(next(), std::pair(std::string("{\"tile\":32}"), 17.0));
}

TEST_F(TuningDbTest, KeepsWinnersOfPoliciesShapesAndDevicesApart) {
  DeviceModel slice = h200();
  slice.mig_profile = "1g.18gb";
  const auto whole = db_->begin_session(h200(), environment(), "").value();
  const auto part = db_->begin_session(slice, environment(), "").value();
  Trial warm = trial("{\"w\":1}", 5);
  warm.policy = "warm";
  Trial big = trial("{\"b\":1}", 50);
  big.shape = "{\"batch\":64}";
  for (const Trial& put : {trial("{\"c\":1}", 10), warm, big}) ASSERT_TRUE(db_->add_trial(whole, put));
  ASSERT_TRUE(db_->add_trial(part, trial("{\"m\":1}", 80)));
  ASSERT_TRUE(db_->rebuild_winners());
  EXPECT_EQ(db_->winners(h200())->size(), 3u);
  ASSERT_EQ(db_->winners(slice)->size(), 1u);
  EXPECT_EQ(db_->winners(slice)->front().config, "{\"m\":1}");
}

TEST_F(TuningDbTest, CallsWinnersStaleOnceTheirEnvironmentIsOld) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(db_->add_trial(session, trial("{}", 10)));
  ASSERT_TRUE(db_->rebuild_winners());
  Environment clocks = environment();
  clocks.clock_khz = 1500000;
  ASSERT_TRUE(db_->begin_session(h200(), clocks, ""));
  EXPECT_FALSE(db_->winners(h200())->front().stale) << "clocks do not make a winner stale";
  for (const auto change :
       {+[](Environment& e) { e.driver_version = 13010; }, +[](Environment& e) { e.driver_release = "590.1"; },
        +[](Environment& e) { e.nvrtc_version = "13.1"; }, +[](Environment& e) { e.library_revision = "r2"; }}) {
    TemporaryDirectory directory;
    const auto db = open_quietly(directory.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment(), "").value(), trial("{}", 10)));
    ASSERT_TRUE(db->rebuild_winners());
    // Sessions of one millisecond are ordered by uuid; rewriting the older one's start makes the order certain.
    RawDatabase(directory / "tuning.db").exec("UPDATE sessions SET started = '2020-01-01T00:00:00.000Z'");
    EXPECT_FALSE(db->winners(h200())->front().stale);
    Environment newer = environment();
    change(newer);
    ASSERT_TRUE(db->begin_session(h200(), newer, ""));
    EXPECT_TRUE(db->winners(h200())->front().stale);
  }
}

TEST_F(TuningDbTest, CallsAWinnerStaleWhoseKernelHasChangedAndNoOther) {
  const auto session = db_->begin_session(h200(), environment("r1"), "").value();
  for (const char* shape : {"{\"of\":1}", "{\"of\":2}"}) {
    Trial put = trial(std::string("{\"c\":") + shape + "}", 10);
    put.shape = shape;
    put.kernel_revision = "k1";
    ASSERT_TRUE(db_->add_trial(session, put));
  }
  Trial earlier = trial("{}", 10);  // of before kernels had revisions
  earlier.shape = "{\"of\":3}";
  ASSERT_TRUE(db_->add_trial(session, earlier));
  ASSERT_TRUE(db_->rebuild_winners());
  const auto stale = [&](const Software& now) {
    std::string text;
    const auto winners = db_->winners(h200(), std::nullopt, now).value();
    EXPECT_EQ(winners.size(), 3u);
    for (const Winner& winner : winners) text += winner.stale ? '1' : '0';
    return text;
  };
  const auto kernels = [](const std::string& config) { return config == "{\"c\":{\"of\":2}}" ? "k2" : "k1"; };
  EXPECT_EQ(db_->winners(h200())->at(0).kernel_revision, "k1");
  EXPECT_EQ(stale({environment("r1"), kernels}), "010") << "another kernel of the same library";
  EXPECT_EQ(stale({environment("r2"), kernels}), "011") << "of the third, only the library's revision is known";
  EXPECT_EQ(stale({std::nullopt, kernels}), "010");
  EXPECT_EQ(stale({environment("r2")}), "001") << "nothing is known of today's kernels";
  EXPECT_EQ(stale({environment("r1"), [](const std::string&) { return ""; }}), "110") << "there is no such kernel now";
  Environment driver = environment("r1");
  driver.driver_release = "590.1";
  EXPECT_EQ(stale({driver, kernels}), "111");
}

TEST_F(TuningDbTest, VouchesForTheRevisionOfAKernel) {
  Trial put = trial("{}", 10);
  put.kernel_revision = "k1";
  ASSERT_TRUE(db_->add_trial(db_->begin_session(h200(), environment(), "").value(), put));
  EXPECT_TRUE(db_->check()->empty());
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET kernel_revision = 'k2'");
  EXPECT_FALSE(db_->check()->empty());
}

TEST_F(TuningDbTest, TakesTheWinnerFromTheNewestSoftwareSoThatRevalidationEndsStaleness) {
  const auto before = db_->begin_session(h200(), environment(), "").value();
  Trial old_winner = trial("{\"a\":1}", 10), old_second = trial("{\"b\":1}", 12);
  old_winner.created = old_second.created = "2026-01-01T00:00:00.000Z";
  ASSERT_TRUE(db_->add_trial(before, old_winner));
  ASSERT_TRUE(db_->add_trial(before, old_second));
  Environment updated = environment();
  updated.driver_release = "590.1";
  const auto after = db_->begin_session(h200(), updated, "").value();
  // Slower than what the old driver showed: were the old times to count, they would win and stay stale for ever.
  ASSERT_TRUE(db_->add_trial(after, trial("{\"a\":1}", 14)));
  ASSERT_TRUE(db_->add_trial(after, trial("{\"b\":1}", 13)));
  ASSERT_TRUE(db_->rebuild_winners());
  const auto winners = db_->winners(h200()).value();
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].config, "{\"b\":1}");
  EXPECT_EQ(winners[0].median_us, 13);
  EXPECT_EQ(winners[0].environment, updated);
  EXPECT_FALSE(winners[0].stale);
}

TEST_F(TuningDbTest, CountsWhatItHoldsOfEachDeviceModel) {
  DeviceModel slice = h200(), other = h200();
  slice.mig_profile = "1g.18gb", slice.sm_count = 16;
  other.name = "NVIDIA L4", other.arch = "sm_89", other.sm_count = 58;
  const auto whole = db_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(db_->add_trial(whole, trial("{\"c\":1}", 10)));
  ASSERT_TRUE(db_->add_trial(whole, trial("{\"c\":2}", 20)));
  ASSERT_TRUE(db_->add_trial(db_->begin_session(slice, environment(), "").value(), trial("{\"m\":1}", 80)));
  ASSERT_TRUE(db_->begin_session(other, environment(), ""));
  ASSERT_TRUE(db_->rebuild_winners());
  const auto stats = db_->stats();
  ASSERT_TRUE(stats);
  ASSERT_EQ(stats->devices.size(), 3u);
  const auto expect = [&](std::size_t i, const DeviceModel& model, int sessions, int trials, int winners) {
    EXPECT_EQ(stats->devices[i].model, model);
    EXPECT_EQ(stats->devices[i].sessions, sessions);
    EXPECT_EQ(stats->devices[i].trials, trials);
    EXPECT_EQ(stats->devices[i].winners, winners);
  };
  expect(0, h200(), 1, 2, 1);
  expect(1, slice, 1, 1, 1);
  expect(2, other, 1, 0, 0);
}

TEST_F(TuningDbTest, InterpolatesReadLimitsBetweenMeasuredSizesOnly) {
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 16 << 20, 6.0));
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 64 << 20, 18.0));
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 64 << 20, 17.0));
  ASSERT_TRUE(db_->set_read_limit(h200(), "warm", 32 << 20, 3.0));
  using Limits = std::vector<std::pair<std::int64_t, double>>;
  EXPECT_EQ(db_->read_limits(h200(), "cold").value(), (Limits{{16 << 20, 6.0}, {64 << 20, 17.0}}));
  const auto session = db_->begin_session(h200(), environment(), "").value();
  for (const std::int64_t bytes : {0, 8 << 20, 16 << 20, 40 << 20, 128 << 20}) {
    Trial put = trial("{}", 30);
    put.shape = "{\"bytes\":" + std::to_string(bytes) + "}";
    put.bytes = bytes;
    ASSERT_TRUE(db_->add_trial(session, put));
  }
  ASSERT_TRUE(db_->rebuild_winners());
  std::map<std::string, double> limits;
  const auto winners = db_->winners(h200()).value();
  for (const Winner& winner : winners) limits[winner.shape] = winner.read_limit_us;
  EXPECT_EQ(limits["{\"bytes\":0}"], 0);
  EXPECT_EQ(limits["{\"bytes\":8388608}"], 0) << "below what was measured nothing is known";
  EXPECT_EQ(limits["{\"bytes\":16777216}"], 6.0);
  EXPECT_EQ(limits["{\"bytes\":41943040}"], 11.5);
  EXPECT_EQ(limits["{\"bytes\":134217728}"], 0);
  EXPECT_EQ(db_->set_read_limit(h200(), "cold", 0, 1).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(db_->set_read_limit(h200(), "cold", 1, 0).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(db_->set_read_limit(h200(), "hot", 1, 1).error().code, ErrorCode::invalid_argument);
}

TEST_F(TuningDbTest, CountsWhatItHolds) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(db_->add_trial(session, trial("{\"i\":" + std::to_string(i % 2) + "}", 10 + i)));
  ASSERT_TRUE(db_->rebuild_winners());
  const DbStats stats = db_->stats().value();
  EXPECT_EQ(stats.device_models, 1);
  EXPECT_EQ(stats.environments, 1);
  EXPECT_EQ(stats.problems, 1);
  EXPECT_EQ(stats.configs, 2);
  EXPECT_EQ(stats.sessions, 1);
  EXPECT_EQ(stats.trials, 5);
  EXPECT_EQ(stats.winners, 1);
  EXPECT_EQ(stats.bytes, static_cast<std::int64_t>(std::filesystem::file_size(directory_ / "tuning.db")));
}

TEST_F(TuningDbTest, WhatLostLaterOverrulesALuckyTimeIfItMatchesItsDigest) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  const auto add = [&](Trial put, TrialStatus status, int samples, const std::string& created) {
    put.status = status, put.samples = samples, put.created = created;
    return db_->add_trial(session, put).value();
  };
  const auto winner = [&] {
    EXPECT_TRUE(db_->rebuild_winners());
    return db_->winners(h200())->at(0).config;
  };
  add(trial("lucky", 9.7), TrialStatus::ok, 3, "2026-01-01T00:00:00.000Z");
  add(trial("steady", 10), TrialStatus::ok, 12, "2026-01-02T00:00:00.000Z");
  EXPECT_EQ(winner(), "lucky");
  const std::string loss = add(trial("lucky", 10.2), TrialStatus::pruned, 12, "2026-01-02T00:00:01.000Z");
  EXPECT_EQ(winner(), "steady");
  ASSERT_TRUE(db_->rebuild_winners(h200(), trial("", 1).problem, trial("", 1).shape, "cold"));
  EXPECT_EQ(db_->winners(h200())->at(0).config, "steady");
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET samples = 13 WHERE uuid = '" + loss + "'");
  EXPECT_EQ(winner(), "lucky") << "anybody may have written that";
}

TEST_F(TuningDbTest, ChecksOutSoundAndNamesWhatIsNot) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  const auto uuid = db_->add_trial(session, trial("{}", 10)).value();
  ASSERT_TRUE(db_->rebuild_winners());
  EXPECT_EQ(db_->check().value(), std::vector<std::string>{});
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET median_us = 1");
  const auto tampered = db_->check().value();
  ASSERT_EQ(tampered.size(), 2u);
  EXPECT_EQ(tampered[0], "trial " + uuid + " does not match its digest");
  EXPECT_NE(tampered[1].find("1 winners"), std::string::npos) << "which the trial made";
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET session_id = 77");
  const auto findings = db_->check().value();
  ASSERT_FALSE(findings.empty());
  EXPECT_NE(findings[0].find("refers to a missing row of sessions"), std::string::npos) << findings[0];
}

TEST_F(TuningDbTest, GivesNoWinnerOfAnotherDeviceModelAndNamesItWhenChecked) {
  DeviceModel slice = h200();
  slice.sm_count = 16;
  ASSERT_TRUE(db_->add_trial(db_->begin_session(h200(), environment(), "").value(), trial("{\"whole\":1}", 10)));
  ASSERT_TRUE(db_->add_trial(db_->begin_session(slice, environment(), "").value(), trial("{\"slice\":1}", 80)));
  ASSERT_TRUE(db_->rebuild_winners());
  RawDatabase(directory_ / "tuning.db").exec("UPDATE winners SET trial_id = 1 WHERE trial_id = 2");
  EXPECT_EQ(db_->winners(h200())->size(), 1u);
  EXPECT_TRUE(db_->winners(slice)->empty());
  const auto findings = db_->check().value();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find("1 winners do not match their digests, or point at trials of something"),
            std::string::npos)
      << findings[0];
  ASSERT_TRUE(db_->rebuild_winners());
  EXPECT_EQ(db_->winners(slice)->front().config, "{\"slice\":1}");
}

TEST_F(TuningDbTest, ServesNoTrialThatIsNotOkHoweverTheWinnerPointsAtIt) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  Trial wrong = trial("{\"wrong\":1}", 5);
  wrong.status = TrialStatus::incorrect, wrong.reason = "max error 3";
  ASSERT_TRUE(db_->add_trial(session, wrong));
  ASSERT_TRUE(db_->add_trial(session, trial("{\"right\":1}", 10)));
  ASSERT_TRUE(db_->add_trial(session, trial("{\"slower\":1}", 20)));
  ASSERT_TRUE(db_->rebuild_winners());
  ASSERT_EQ(db_->winners(h200())->front().config, "{\"right\":1}");
  // One flipped bit of a trial's id, either of them.
  for (const char* change : {"trial_id = 1", "trial_id = 3", "trial_id = 77", "fastest_trial_id = 3"}) {
    {
      RawDatabase raw(directory_ / "tuning.db");
      raw.exec(std::string("PRAGMA foreign_keys = OFF; UPDATE winners SET ") + change);
    }
    EXPECT_TRUE(db_->winners(h200())->empty()) << change;
    EXPECT_TRUE(db_->take_warning());
    EXPECT_FALSE(db_->check()->empty());
    ASSERT_TRUE(db_->rebuild_winners());
    EXPECT_EQ(db_->winners(h200())->front().config, "{\"right\":1}");
  }
}

TEST_F(TuningDbTest, UsesNoReadLimitThatWasChangedBehindItsBack) {
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 1000, 5));
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 2000, 9));
  RawDatabase(directory_ / "tuning.db").exec("UPDATE read_limits SET us = 50 WHERE bytes = 1000");
  EXPECT_EQ(db_->read_limits(h200(), "cold")->size(), 1u);
  EXPECT_TRUE(db_->take_warning());
  EXPECT_EQ(db_->check()->size(), 1u);
  ASSERT_TRUE(db_->set_read_limit(h200(), "cold", 1000, 5));
  EXPECT_TRUE(db_->check()->empty()) << "measuring again mends it";
}

/// Gives every trial the digest of what it says now, as a program that knows the format could.
void sign_trials(const std::filesystem::path& file) {
  SQLite::Database database(file.string(), SQLite::OPEN_READWRITE);
  SQLite::Statement read(database, std::string("SELECT t.id, ") + detail::kSessionColumns + ", " +
                                       detail::kTrialColumns + detail::kTrialJoin);
  std::vector<std::pair<std::int64_t, detail::Digest>> digests;
  while (read.executeStep()) {
    digests.emplace_back(
        read.getColumn(0).getInt64(),
        detail::trial_digest(detail::read_session(read, 1), detail::read_trial(read, 1 + detail::kSessionColumnCount)));
  }
  read.tryReset();
  for (const auto& [id, digest] : digests) {
    SQLite::Statement write(database, "UPDATE trials SET digest = ?2 WHERE id = ?1");
    write.bind(1, id);
    detail::bind_digest(write, 2, digest);
    write.exec();
  }
  detail::sign_winners(database);
}

TEST_F(TuningDbTest, RefusesWhatAddTrialRefusesWhenReadingAndMergingToo) {
  for (const char* change : {"median_us = 9e999", "median_us = -1", "low_us = 9e999", "samples = -3", "bytes = -1"}) {
    SCOPED_TRACE(change);
    TemporaryDirectory other;
    const auto theirs = open_quietly(other.path());
    const auto session = theirs->begin_session(h200(), environment(), "").value();
    ASSERT_TRUE(theirs->add_trial(session, trial("{\"i\":1}", 10)));
    ASSERT_TRUE(theirs->rebuild_winners());
    RawDatabase(other / "tuning.db").exec(std::string("UPDATE trials SET ") + change);
    sign_trials(other / "tuning.db");
    EXPECT_TRUE(theirs->winners(h200())->empty());
    EXPECT_TRUE(theirs->trials(h200(), "", "", "")->empty());
    EXPECT_EQ(theirs->check()->size(), 2u) << "the trial and its winner";
    EXPECT_EQ(db_->import_from(other / "tuning.db").value(), 0);
    EXPECT_TRUE(db_->take_warning());
    ASSERT_TRUE(theirs->rebuild_winners());
    EXPECT_TRUE(theirs->winners(h200())->empty());
  }
  Trial long_text = trial("{}", 10);
  long_text.samples_json.assign(9 << 20, '1');
  const auto session = db_->begin_session(h200(), environment(), "").value();
  EXPECT_EQ(db_->add_trial(session, long_text).error().code, ErrorCode::invalid_argument);
}

TEST_F(TuningDbTest, PutsSessionsThatBeginInOneMillisecondInTheirOrder) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(db_->begin_session(h200(), environment("r" + std::to_string(i)), ""));
  const auto environments = db_->environments(h200()).value();
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(environments[static_cast<std::size_t>(i)].library_revision, "r" + std::to_string(i));
  std::set<std::string> moments;
  const auto sessions = db_->sessions().value();
  for (const SessionInfo& session : sessions) moments.insert(session.started);
  EXPECT_EQ(moments.size(), 20u);
}

TEST_F(TuningDbTest, DoesNotLetAClockThatRanAheadPinItsSoftware) {
  const auto ahead = db_->begin_session(h200(), environment("old"), "").value();
  Trial early = trial("{\"old\":1}", 5);
  early.created = "2099-01-01T00:00:00.000Z";
  ASSERT_TRUE(db_->add_trial(ahead, early));
  RawDatabase(directory_ / "tuning.db").exec("UPDATE sessions SET started = '2099-01-01T00:00:00.000Z'");
  const auto now = db_->begin_session(h200(), environment("new"), "").value();
  EXPECT_LT(db_->sessions()->front().started, "2099") << "the clock is not taken from there";
  ASSERT_TRUE(db_->add_trial(now, trial("{\"new\":1}", 10)));
  ASSERT_TRUE(db_->rebuild_winners());
  const auto winner = db_->winners(h200())->front();
  EXPECT_EQ(winner.config, "{\"new\":1}");
  EXPECT_FALSE(winner.stale);
}

TEST_F(TuningDbTest, NeverLetsATamperedTrialWin) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(db_->add_trial(session, trial("{\"a\":1}", 12)));
  const auto honest = db_->add_trial(session, trial("{\"b\":1}", 10)).value();
  ASSERT_TRUE(db_->rebuild_winners());
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET median_us = 2 WHERE median_us = 12");
  ASSERT_TRUE(db_->rebuild_winners());
  EXPECT_EQ(db_->winners(h200())->front().trial_uuid, honest);
  RawDatabase(directory_ / "tuning.db").exec("UPDATE trials SET median_us = 3");
  EXPECT_TRUE(db_->winners(h200())->empty());
  const auto warning = db_->take_warning();
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("1 damaged winners were left out"), std::string::npos) << *warning;
  EXPECT_FALSE(db_->take_warning()) << "a warning is given once";
}

/// A file that a library of version 3 wrote (data/tuning_version3.sql), or one of an earlier version, which had less.
void make_version(int version, const std::filesystem::path& directory) {
  const auto sql = read_bytes(std::filesystem::path(LEANATTN_SOURCE_DIR) / "tests/unit/cache/data/tuning_version3.sql");
  ASSERT_FALSE(sql.empty());
  RawDatabase raw(directory / "tuning.db");
  raw.exec("PRAGMA auto_vacuum = INCREMENTAL");
  raw.exec(std::string(sql.begin(), sql.end()));
  // Version 2 changed no table: it only keeps libraries away that would take dependent launches for ordinary ones.
  if (version < 3) raw.exec("DROP TABLE cost_models");
  raw.exec("PRAGMA application_id = 1279358062; PRAGMA user_version = " + std::to_string(version));
}

class TuningDbVersions : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { make_version(GetParam(), directory_.path()); }

  void expect_everything(TuningDb& db) {
    EXPECT_EQ(db.trials(h200(), "", "", "")->size(), 6u);
    const auto winners = db.winners(h200());
    ASSERT_TRUE(winners) << winners.error().message;
    ASSERT_EQ(winners->size(), 2u);
    for (const Winner& winner : *winners) {
      EXPECT_EQ(winner.config, "{\"tile\":0}");
      EXPECT_EQ(winner.read_limit_us, winner.policy == "cold" ? 9.25 : 0);
      EXPECT_FALSE(winner.stale);
    }
    EXPECT_FALSE(db.take_warning());
    EXPECT_TRUE(db.check()->empty()) << db.check()->front();
  }

  TemporaryDirectory directory_;
};

TEST_P(TuningDbVersions, AreReadInPlaceAndBroughtForwardByTheFirstWriter) {
  const auto before = read_bytes(directory_ / "tuning.db");
  {
    const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
    ASSERT_TRUE(db) << db.error().message;
    expect_everything(**db);
  }
  {
    TemporaryDirectory other;
    const auto importing = open_quietly(other.path());
    ASSERT_TRUE(importing->import_from(directory_ / "tuning.db"));
    expect_everything(*importing);
  }
  EXPECT_EQ(read_bytes(directory_ / "tuning.db"), before);
  {
    const auto db = open_quietly(directory_.path());
    ASSERT_NE(db, nullptr);
    expect_everything(*db);
  }
  EXPECT_EQ(RawDatabase(directory_ / "tuning.db").ask("PRAGMA user_version"), "6");
  EXPECT_TRUE(files_with_prefix(directory_.path(), "tuning.db.corrupt").empty());
}

TEST_P(TuningDbVersions, AreRepairedWithoutLosingTrials) {
  std::int64_t root = 0;
  {
    RawDatabase raw(directory_ / "tuning.db");
    root = std::stoll(raw.ask("SELECT rootpage FROM sqlite_schema WHERE name = 'trials_by_key'"));
  }
  auto bytes = read_bytes(directory_ / "tuning.db");
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>((root - 1) * 4096), 4096, '\xEE');
  write_bytes(directory_ / "tuning.db", bytes);
  std::string warning;
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_write, &warning);
  ASSERT_TRUE(db) << db.error().message;
  EXPECT_NE(warning.find("with the 12 trials"), std::string::npos) << warning;
  expect_everything(**db);
}

INSTANTIATE_TEST_SUITE_P(Older, TuningDbVersions, ::testing::Values(1, 2, 3), ::testing::PrintToStringParamName());

TEST(TuningDbVersion4, LosesItsCostModelsAndNothingElse) {
  TemporaryDirectory directory;
  {
    const auto db = open_quietly(directory.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment(), "").value(), trial("{}", 10)));
    ASSERT_TRUE(db->rebuild_winners());
  }
  {
    RawDatabase raw(directory / "tuning.db");
    raw.exec(detail::tuning_schema().migrations[2]);  // of version 3, which has the table
    raw.exec(R"sql(
ALTER TABLE trials DROP COLUMN kernel_revision;
ALTER TABLE cost_models ADD COLUMN digest BLOB NOT NULL DEFAULT x'';
INSERT INTO cost_models VALUES(1, 1, 'cold', '{"fit":1}', '2026-11-22T23:36:09.007Z', x'');
PRAGMA user_version = 4;)sql");
  }
  const auto db = open_quietly(directory.path());
  ASSERT_NE(db, nullptr);
  EXPECT_EQ(db->winners(h200())->size(), 1u);
  EXPECT_FALSE(db->take_warning());
  EXPECT_TRUE(db->check()->empty());
  RawDatabase raw(directory / "tuning.db");
  EXPECT_EQ(raw.ask("PRAGMA user_version"), "6");
  EXPECT_EQ(raw.ask("SELECT count(*) FROM sqlite_schema WHERE name = 'cost_models'"), "0");
}

TEST(TuningDbVersion5, HasTrialsWhoseKernelsAreKnownByTheirLibrary) {
  TemporaryDirectory directory, other;
  {
    const auto db = open_quietly(directory.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment("r1"), "").value(), trial("{}", 10)));
    ASSERT_TRUE(db->rebuild_winners());
    RawDatabase raw(directory / "tuning.db");
    raw.exec("ALTER TABLE trials DROP COLUMN kernel_revision; PRAGMA user_version = 5");
  }
  const auto read = TuningDb::open(directory.path(), OpenMode::read_only, nullptr);
  ASSERT_TRUE(read) << read.error().message;
  const auto importing = open_quietly(other.path());
  ASSERT_EQ(importing->import_from(directory / "tuning.db").value(), 1);
  const auto migrated = open_quietly(directory.path());
  for (TuningDb* const db : {read->get(), importing.get(), migrated.get()}) {
    const auto stale = [&](const char* revision) {
      const Software now{environment(revision), [](const std::string&) { return "k1"; }};
      return db->winners(h200(), std::nullopt, now).value().at(0).stale;
    };
    EXPECT_FALSE(stale("r1"));
    EXPECT_TRUE(stale("r2"));
    EXPECT_TRUE(db->check()->empty());
    EXPECT_FALSE(db->take_warning());
  }
  EXPECT_EQ(RawDatabase(directory / "tuning.db").ask("PRAGMA user_version"), "6");
}

TEST(TuningDbInMemory, WorksWithoutADirectoryAndLeavesNothing) {
  std::string warning = "stale text";
  auto db = TuningDb::open(std::nullopt, OpenMode::read_write, &warning);
  ASSERT_TRUE(db);
  EXPECT_EQ(warning, "");
  const auto session = (*db)->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE((*db)->add_trial(session, trial("{}", 10)));
  ASSERT_TRUE((*db)->rebuild_winners());
  EXPECT_EQ((*db)->winners(h200())->size(), 1u);
  ASSERT_TRUE((*db)->finish_session(session));
  EXPECT_TRUE((*db)->check()->empty());
}

TEST(TuningDbReadOnly, ReadsButNeverWrites) {
  TemporaryDirectory directory;
  {
    const auto db = open_quietly(directory.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment(), "").value(), trial("{}", 10)));
    ASSERT_TRUE(db->rebuild_winners());
  }
  const auto before = read_bytes(directory / "tuning.db");
  auto db = TuningDb::open(directory.path(), OpenMode::read_only, nullptr);
  ASSERT_TRUE(db);
  EXPECT_EQ((*db)->winners(h200())->size(), 1u);
  EXPECT_EQ((*db)->begin_session(h200(), environment(), "").error().code, ErrorCode::cache_unavailable);
  EXPECT_EQ((*db)->collect_garbage({.keep_days = 0}).error().code, ErrorCode::cache_unavailable);
  EXPECT_EQ((*db)->rebuild_winners().error().code, ErrorCode::cache_unavailable);
  EXPECT_EQ(read_bytes(directory / "tuning.db"), before);
}

TEST(TuningDbReadOnly, SaysSoWhenThereIsNothing) {
  TemporaryDirectory directory;
  EXPECT_EQ(TuningDb::open(directory.path(), OpenMode::read_only, nullptr).error().code, ErrorCode::not_found);
  EXPECT_TRUE(files_with_prefix(directory.path(), "").empty());
}

}  // namespace
}  // namespace leanattn
