#include <rapidcheck.h>

#include <algorithm>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

#include "cache/tuning/rows.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

class TuningMerge : public ::testing::Test {
 protected:
  TemporaryDirectory a_directory_, b_directory_, files_;
  std::unique_ptr<TuningDb> a_ = open_quietly(a_directory_.path()), b_ = open_quietly(b_directory_.path());
};

TEST_F(TuningMerge, OfAnExportGivesTheSameTrialsSessionsWinnersAndLimits) {
  const auto session = a_->begin_session(h200(), environment(), "leanattn tune").value();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(a_->add_trial(session, trial("{\"i\":" + std::to_string(i) + "}", 20 - i)));
  ASSERT_TRUE(a_->finish_session(session));
  ASSERT_TRUE(a_->begin_session(h200(), environment("r0"), "without trials"));
  ASSERT_TRUE(a_->set_read_limit(h200(), "cold", 33554432, 9.2));
  ASSERT_TRUE(a_->rebuild_winners());
  ASSERT_TRUE(a_->export_to(files_ / "out.db"));
  EXPECT_EQ(files_with_prefix(files_.path(), "").size(), 1u);
  EXPECT_EQ(b_->import_from(files_ / "out.db").value(), 4);
  EXPECT_EQ(b_->sessions()->size(), 2u);
  EXPECT_EQ(b_->trials(h200(), "", "", "")->size(), 4u);
  const auto winners = b_->winners(h200()).value();
  ASSERT_EQ(winners.size(), 1u);
  EXPECT_EQ(winners[0].config, "{\"i\":3}");
  EXPECT_EQ(winners[0].read_limit_us, 9.2);
  EXPECT_TRUE(b_->check()->empty());
  EXPECT_EQ(b_->import_from(files_ / "out.db").value(), 0) << "a second import adds nothing";
  EXPECT_EQ(a_->import_from(files_ / "out.db").value(), 0) << "nor does one's own export";
  EXPECT_EQ(a_->import_from(a_directory_ / "tuning.db").value(), 0) << "nor oneself";
}

TEST_F(TuningMerge, ExportRefusesToOverwriteAnything) {
  write_bytes(files_ / "precious", {'x'});
  EXPECT_EQ(a_->export_to(files_ / "precious").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(read_bytes(files_ / "precious").size(), 1u);
  std::filesystem::create_symlink(files_ / "nowhere", files_ / "link");
  EXPECT_EQ(a_->export_to(files_ / "link").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(a_->export_to(files_.path()).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(a_->export_to(files_ / "no/such/directory.db").error().code, ErrorCode::cache_unavailable);
  EXPECT_EQ(files_with_prefix(files_.path(), "").size(), 2u) << "no partial file is left";
}

TEST_F(TuningMerge, RecomputesWinnersInsteadOfTakingTheMinimum) {
  // b measured the very same two configurations, and its slower one was once lucky: 9.99 is the lowest time of all.
  const auto ours = a_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(a_->add_trial(ours, trial("{\"a\":1}", 10.00, 0.3)));
  ASSERT_TRUE(a_->add_trial(ours, trial("{\"b\":1}", 10.10, 0.3)));
  const auto theirs = b_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(b_->add_trial(theirs, trial("{\"a\":1}", 10.05, 0.3)));
  ASSERT_TRUE(b_->add_trial(theirs, trial("{\"b\":1}", 9.99, 0.3)));
  for (const auto& [to, from] :
       {std::pair{a_.get(), b_directory_ / "tuning.db"}, {b_.get(), a_directory_ / "tuning.db"}}) {
    ASSERT_EQ(to->import_from(from).value(), 2);
    ASSERT_EQ(to->winners(h200())->size(), 1u);
    EXPECT_EQ(to->winners(h200())->front().config, "{\"a\":1}")
        << "overlapping intervals are a tie, which the config text breaks";
  }
}

TEST_F(TuningMerge, OfTwoMachinesGivesTheTimesOfTheNewestKernelsInEitherOrder) {
  const auto add = [](TuningDb& db, const char* revision, const char* config, double us, const char* kernel,
                      const char* day) {
    Trial put = trial(config, us);
    put.kernel_revision = kernel;
    put.created = std::string("2026-01-0") + day + "T00:00:00.000Z";
    ASSERT_TRUE(db.add_trial(db.begin_session(h200(), environment(revision), "").value(), put));
  };
  add(*a_, "r1", "{\"a\":1}", 5, "k1", "1");  // its kernel has become slower since
  add(*b_, "r2", "{\"a\":1}", 9, "k2", "2");
  add(*b_, "r2", "{\"b\":1}", 8, "k3", "1");
  ASSERT_TRUE(a_->rebuild_winners());
  EXPECT_EQ(a_->winners(h200())->at(0).median_us, 5);
  for (const auto& [to, from] :
       {std::pair{a_.get(), b_directory_ / "tuning.db"}, {b_.get(), a_directory_ / "tuning.db"}}) {
    ASSERT_TRUE(to->import_from(from));
    const auto winners = to->winners(h200()).value();
    ASSERT_EQ(winners.size(), 1u);
    EXPECT_EQ(winners[0].median_us, 8);
    EXPECT_EQ(winners[0].kernel_revision, "k3");
  }
}

TEST_F(TuningMerge, KeepsTheLaterOfTwoReadLimits) {
  for (const auto& [db, directory, us, measured] :
       {std::tuple{a_.get(), &a_directory_, 5.0, "2026-01-01T00:00:00.000Z"},
        {b_.get(), &b_directory_, 7.0, "2026-01-02T00:00:00.000Z"}}) {
    ASSERT_TRUE(db->set_read_limit(h200(), "cold", 1000, us));
    RawDatabase(*directory / "tuning.db").exec(std::string("UPDATE read_limits SET measured = '") + measured + "'");
    SQLite::Database database((*directory / "tuning.db").string(), SQLite::OPEN_READWRITE);
    detail::sign_read_limits(database);
  }
  ASSERT_TRUE(b_->import_from(a_directory_ / "tuning.db"));
  EXPECT_EQ(b_->read_limits(h200(), "cold")->front().second, 7.0) << "the smaller is the older one here";
  ASSERT_TRUE(a_->import_from(b_directory_ / "tuning.db"));
  EXPECT_EQ(a_->read_limits(h200(), "cold")->front().second, 7.0);
}

TEST_F(TuningMerge, LeavesOutTrialsThatDoNotMatchTheirDigests) {
  const auto session = b_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(b_->add_trial(session, trial("{\"good\":1}", 10)));
  ASSERT_TRUE(b_->add_trial(session, trial("{\"bad\":1}", 11)));
  RawDatabase(b_directory_ / "tuning.db").exec("UPDATE trials SET median_us = 1 WHERE median_us = 11");
  EXPECT_EQ(a_->import_from(b_directory_ / "tuning.db").value(), 1);
  const auto warning = a_->take_warning();
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("1 trials"), std::string::npos) << *warning;
  EXPECT_EQ(a_->winners(h200())->front().config, "{\"good\":1}");
}

TEST_F(TuningMerge, RefusesFilesThatAreNotSoundDatabasesOfOursAndChangesNothing) {
  const auto session = a_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(a_->add_trial(session, trial("{}", 10)));
  const auto before = read_bytes(a_directory_ / "tuning.db");
  EXPECT_EQ(a_->import_from(files_ / "missing.db").error().code, ErrorCode::not_found);
  EXPECT_EQ(a_->import_from(files_.path()).error().code, ErrorCode::cache_unavailable);
  write_bytes(files_ / "text.db", std::vector<char>(5000, 'x'));
  EXPECT_EQ(a_->import_from(files_ / "text.db").error().code, ErrorCode::database_corrupt);
  RawDatabase(files_ / "other.db").exec("CREATE TABLE t(x)");
  EXPECT_EQ(a_->import_from(files_ / "other.db").error().code, ErrorCode::database_corrupt);
  ASSERT_TRUE(b_->export_to(files_ / "newer.db"));
  RawDatabase(files_ / "newer.db").exec("PRAGMA user_version = 99");
  EXPECT_EQ(a_->import_from(files_ / "newer.db").error().code, ErrorCode::database_newer);
  ASSERT_TRUE(a_->export_to(files_ / "cut.db"));
  auto cut = read_bytes(files_ / "cut.db");
  cut.resize(cut.size() / 2);
  write_bytes(files_ / "cut.db", cut);
  EXPECT_EQ(a_->import_from(files_ / "cut.db").error().code, ErrorCode::database_corrupt);
  EXPECT_EQ(read_bytes(a_directory_ / "tuning.db"), before);
}

/// Everything a database says but its row ids, as text.
std::string describe(const std::filesystem::path& directory) {
  RawDatabase raw(directory / "tuning.db");
  std::string text;
  for (const char* sql : {"SELECT group_concat(x, char(10)) FROM (SELECT t.uuid || ' ' || s.uuid || ' ' || p.json || "
                          "h.json || c.json || t.policy ||"
                          " t.median_us || hex(t.digest) AS x FROM trials t JOIN sessions s ON s.id = t.session_id "
                          "JOIN problems p ON p.id = t.problem_id"
                          " JOIN shapes h ON h.id = t.shape_id JOIN configs c ON c.id = t.config_id ORDER BY t.uuid)",
                          "SELECT group_concat(x, char(10)) FROM (SELECT s.uuid || s.started || s.finished || "
                          "d.sm_count || e.library_revision AS x FROM"
                          " sessions s JOIN device_models d ON d.id = s.device_model_id JOIN environments e ON e.id = "
                          "s.environment_id ORDER BY s.uuid)",
                          "SELECT group_concat(x, char(10)) FROM (SELECT d.sm_count || p.json || h.json || w.policy || "
                          "t.uuid || f.uuid AS x FROM winners w"
                          " JOIN device_models d ON d.id = w.device_model_id JOIN problems p ON p.id = w.problem_id "
                          "JOIN shapes h ON h.id = w.shape_id"
                          " JOIN trials t ON t.id = w.trial_id JOIN trials f ON f.id = w.fastest_trial_id ORDER BY x)",
                          "SELECT group_concat(x, char(10)) FROM (SELECT d.sm_count || r.policy || r.bytes || ' ' || "
                          "r.us || r.measured AS x FROM read_limits r"
                          " JOIN device_models d ON d.id = r.device_model_id ORDER BY x)"}) {
    text += raw.ask(sql) + "\n--\n";
  }
  return text;
}

/// A database with a few random sessions and trials; some uuids are shared between databases, as after an earlier
/// exchange.
void fill_at_random(TuningDb& db, const std::vector<Trial>& common, const std::string& common_session_file) {
  RC_ASSERT(db.import_from(common_session_file).has_value());
  const int sessions = *rc::gen::inRange(0, 3);
  for (int s = 0; s < sessions; ++s) {
    DeviceModel device = h200();
    device.sm_count = *rc::gen::element(16, 132);
    const auto session = db.begin_session(device, environment(*rc::gen::element<std::string>("r1", "r2")), "random");
    RC_ASSERT(session.has_value());
    const int count = *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      Trial put = trial("{\"c\":" + std::to_string(*rc::gen::inRange(0, 3)) + "}", *rc::gen::inRange(95, 110) / 10.0,
                        *rc::gen::inRange(0, 5) / 10.0);
      put.policy = *rc::gen::element<std::string>("cold", "warm");
      put.kernel_revision = *rc::gen::element<std::string>("", "k1", "k2");
      put.status = *rc::gen::element(TrialStatus::ok, TrialStatus::ok, TrialStatus::incorrect);
      put.created = "2026-01-0" + std::to_string(*rc::gen::inRange(1, 9)) + "T00:00:00.000Z";
      RC_ASSERT(db.add_trial(*session, put).has_value());
    }
    RC_ASSERT(db.set_read_limit(device, "cold", *rc::gen::inRange(1, 4), *rc::gen::inRange(1, 100)).has_value());
    if (*rc::gen::arbitrary<bool>()) RC_ASSERT(db.finish_session(*session).has_value());
  }
  RC_ASSERT(common.size() <= static_cast<std::size_t>(db.stats()->trials));
}

TEST(TuningMergeProperty, IsCommutativeAssociativeAndIdempotent) {
  EXPECT_TRUE(rc::check("merging is a union", [] {
    TemporaryDirectory seed_directory;
    const auto seed = open_quietly(seed_directory.path());
    std::vector<Trial> common;
    const auto session = seed->begin_session(h200(), environment(), "common").value();
    const int shared = *rc::gen::inRange(0, 4);
    for (int i = 0; i < shared; ++i) {
      common.push_back(trial("{\"c\":" + std::to_string(i) + "}", 10 + i * 0.1, 0.2));
      RC_ASSERT(seed->add_trial(session, common.back()).has_value());
    }
    TemporaryDirectory directories[3];
    std::unique_ptr<TuningDb> parts[3];
    for (int i = 0; i < 3; ++i) {
      parts[i] = open_quietly(directories[i].path());
      fill_at_random(*parts[i], common, (seed_directory / "tuning.db").string());
    }
    std::vector<std::string> results;
    // One order, and one of the other ways to the same union.
    const int other = *rc::gen::inRange(0, 3);
    const std::vector<int> orders[] = {{2, 1, 0}, {1, 0, 2, 1, 0}};
    for (const auto& order : {std::vector<int>{0, 1, 2}, other < 2 ? orders[other] : std::vector<int>()}) {
      if (order.empty()) continue;
      TemporaryDirectory merged;
      const auto db = open_quietly(merged.path());
      for (const int part : order) {
        RC_ASSERT(db->import_from(directories[part] / "tuning.db").has_value());
      }
      RC_ASSERT(db->check()->empty());
      results.push_back(describe(merged.path()));
    }
    if (other == 2) {  // (1 + 2) merged into 0
      TemporaryDirectory inner;
      const auto db = open_quietly(inner.path());
      RC_ASSERT(db->import_from(directories[1] / "tuning.db").has_value());
      RC_ASSERT(db->import_from(directories[2] / "tuning.db").has_value());
      RC_ASSERT(parts[0]->import_from(inner / "tuning.db").has_value());
      results.push_back(describe(directories[0].path()));
    }
    RC_ASSERT(results.size() == 2u);
    RC_ASSERT(results[0] == results[1]);
  }));
}

class TuningGarbage : public ::testing::Test {
 protected:
  static std::string days_ago(int days) {
    const std::time_t then = std::time(nullptr) - std::time_t{86400} * days;
    std::tm utc{};
    gmtime_r(&then, &utc);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", &utc);
    return text;
  }
  static std::string all_winners(TuningDb& db) {
    std::ostringstream text;
    const auto winners = db.winners(h200()).value();
    for (const Winner& w : winners)
      text << w.problem << w.shape << w.policy << w.config << w.trial_uuid << w.median_us << '\n';
    return text.str();
  }
  TemporaryDirectory directory_;
  std::unique_ptr<TuningDb> db_ = open_quietly(directory_.path());
};

TEST_F(TuningGarbage, DropsOldLosersAndKeepsWinnersAndYoungTrials) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  const auto add = [&](const std::string& config, double us, int days, TrialStatus status = TrialStatus::ok) {
    Trial put = trial(config, us);
    put.created = days_ago(days);
    put.status = status;
    return db_->add_trial(session, put).value();
  };
  const auto winner = add("{\"winner\":1}", 10, 300);
  add("{\"loser\":1}", 20, 200);
  add("{\"wrong\":1}", 5, 200, TrialStatus::incorrect);
  const auto young = add("{\"young\":1}", 30, 1);
  EXPECT_EQ(db_->collect_garbage({.keep_days = 1000})->trials, 0);
  EXPECT_EQ(db_->collect_garbage({.keep_days = 90})->trials, 2);
  EXPECT_EQ(db_->collect_garbage({.keep_days = 90})->trials, 0);
  std::set<std::string> left;
  const auto trials = db_->trials(h200(), "", "", "").value();
  for (const Trial& got : trials) left.insert(got.uuid);
  EXPECT_EQ(left, (std::set<std::string>{winner, young}));
  EXPECT_EQ(db_->winners(h200())->front().trial_uuid, winner);
  EXPECT_EQ(db_->stats()->configs, 2) << "what nothing refers to goes as well";
  EXPECT_TRUE(db_->check()->empty());
  EXPECT_EQ(db_->collect_garbage({})->trials, 0) << "without a limit nothing goes";
  EXPECT_EQ(db_->collect_garbage({.keep_days = -1}).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(db_->collect_garbage({.max_bytes = -1}).error().code, ErrorCode::invalid_argument);
}

TEST_F(TuningGarbage, KeepsAllOfAKeyWithTrialsFromTheFuture) {
  // As a clock that is four days behind sees it. Under the right one, the winner is the one that was measured last, and
  // the trials of its software decide.
  const auto old_session = db_->begin_session(h200(), environment("r1"), "").value();
  const auto session = db_->begin_session(h200(), environment("r2"), "").value();
  const auto add = [&](const std::string& in, const std::string& shape, const std::string& config, double us,
                       int days) {
    Trial put = trial(config, us);
    put.shape = shape;
    put.created = days_ago(days);
    return db_->add_trial(in, put).value();
  };
  std::set<std::string> of_the_key = {add(old_session, "1", "{\"old\":1}", 10, 1),
                                      add(session, "1", "{\"a\":1}", 20, 200), add(session, "1", "{\"b\":1}", 30, -4)};
  add(session, "2", "{\"loser\":1}", 40, 200);
  add(session, "2", "{\"winner\":1}", 10, 150);
  EXPECT_EQ(db_->collect_garbage({.keep_days = 90})->trials, 1) << "other keys are none of its business";
  EXPECT_EQ(db_->collect_garbage({.keep_days = 0, .max_bytes = 1})->trials, 0);
  const auto left = db_->trials(h200(), "", "1", "").value();
  for (const Trial& got : left) of_the_key.erase(got.uuid);
  EXPECT_TRUE(of_the_key.empty());
}

TEST_F(TuningGarbage, ShrinksTheFile) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  for (int i = 0; i < 50; ++i) {
    Trial put = trial("{\"i\":" + std::to_string(i) + "}", 10 + i);
    put.samples_json = "[" + std::string(8000, '1') + "]";
    put.created = days_ago(100 + i);
    ASSERT_TRUE(db_->add_trial(session, put));
  }
  const auto before = std::filesystem::file_size(directory_ / "tuning.db");
  const auto collected = db_->collect_garbage({.keep_days = 30});
  ASSERT_TRUE(collected);
  EXPECT_EQ(collected->trials, 49);
  EXPECT_LT(collected->bytes, static_cast<std::int64_t>(before) / 2);
  EXPECT_EQ(std::filesystem::file_size(directory_ / "tuning.db"), static_cast<std::uintmax_t>(collected->bytes));
}

TEST_F(TuningGarbage, DropsTheOldestUntilTheFileIsSmallEnough) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  // The youngest is the winner, too: what goes is told by age alone.
  for (int i = 0; i < 60; ++i) {
    Trial put = trial("{\"days\":" + std::to_string(i) + "}", 10 + i);
    put.samples_json = "[" + std::string(8000, '1') + "]";
    put.created = days_ago(i);
    ASSERT_TRUE(db_->add_trial(session, put));
  }
  const auto size = [&] { return static_cast<std::int64_t>(std::filesystem::file_size(directory_ / "tuning.db")); };
  const std::int64_t before = size();
  EXPECT_EQ(db_->collect_garbage({.max_bytes = before})->trials, 0);
  const std::int64_t limit = before / 2;
  const auto collected = db_->collect_garbage({.max_bytes = limit});
  ASSERT_TRUE(collected);
  EXPECT_LE(size(), limit);
  EXPECT_EQ(size(), collected->bytes);
  EXPECT_GT(size(), limit * 3 / 4) << "and no smaller than it has to be";
  const auto left = db_->trials(h200(), "", "", "").value();
  ASSERT_EQ(static_cast<std::int64_t>(left.size()), 60 - collected->trials);
  for (const Trial& got : left) EXPECT_GT(got.created, days_ago(static_cast<int>(left.size())));
  EXPECT_TRUE(db_->check()->empty());
}

TEST_F(TuningGarbage, KeepsWinnersEvenWhereTheyAreLargerThanTheLimitAndSaysSo) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  for (int i = 0; i < 20; ++i) {
    Trial put = trial("{}", 10);
    put.shape = "{\"batch\":" + std::to_string(i) + "}";
    put.samples_json = "[" + std::string(8000, '1') + "]";
    ASSERT_TRUE(db_->add_trial(session, put));
    put.config = "{\"slower\":1}", put.median_us = put.low_us = put.high_us = 20, put.created = days_ago(1);
    ASSERT_TRUE(db_->add_trial(session, put));
  }
  const auto collected = db_->collect_garbage({.max_bytes = 1});
  ASSERT_TRUE(collected);
  EXPECT_EQ(collected->trials, 20);
  EXPECT_GT(collected->bytes, 20 * 8000);
  EXPECT_EQ(db_->winners(h200())->size(), 20u);
}

TEST_F(TuningGarbage, LeavesASessionThatHasJustBegun) {
  const auto session = db_->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(open_quietly(directory_.path())->collect_garbage({.keep_days = 0, .max_bytes = 0}));
  EXPECT_TRUE(db_->add_trial(session, trial("{}", 10))) << "another process was about to write its first trial";
  EXPECT_FALSE(db_->take_warning());
}

TEST_F(TuningGarbage, NeverChangesAWinnerNowOrAfterARebuild) {
  EXPECT_TRUE(rc::check("winners survive", [] {
    TemporaryDirectory directory;
    const auto db = open_quietly(directory.path());
    for (const char* revision : {"r1", "r2", "r1"}) {
      const auto session = db->begin_session(h200(), environment(revision), "").value();
      const int count = *rc::gen::inRange(0, 14);
      for (int i = 0; i < count; ++i) {
        Trial put = trial("{\"c\":" + std::to_string(*rc::gen::inRange(0, 4)) + "}", *rc::gen::inRange(95, 110) / 10.0,
                          *rc::gen::inRange(0, 5) / 10.0);
        put.policy = *rc::gen::element<std::string>("cold", "warm");
        put.kernel_revision = *rc::gen::element<std::string>("", "k1", "k2");
        put.created = days_ago(*rc::gen::inRange(0, 100));
        put.status = *rc::gen::element(TrialStatus::ok, TrialStatus::ok, TrialStatus::pruned, TrialStatus::incorrect);
        put.samples = *rc::gen::inRange(2, 6);
        RC_ASSERT(db->add_trial(session, put).has_value());
      }
    }
    RC_ASSERT(db->rebuild_winners().has_value());
    const std::string before = all_winners(*db);
    const std::int64_t most = db->stats()->bytes;
    GarbageLimits limits;
    if (*rc::gen::arbitrary<bool>()) limits.keep_days = *rc::gen::inRange(0, 100);
    if (*rc::gen::arbitrary<bool>()) limits.max_bytes = *rc::gen::inRange<std::int64_t>(most / 2, most);
    RC_ASSERT(db->collect_garbage(limits).has_value());
    RC_ASSERT(all_winners(*db) == before);
    RC_ASSERT(db->rebuild_winners().has_value());
    RC_ASSERT(all_winners(*db) == before);
  }));
}

}  // namespace
}  // namespace leanattn
