// unfinished_test.cpp -- a process that is killed inside a commit leaves a journal. Whoever comes next, reader or
// writer, finds the database as it was before that commit.
#include "cache/sqlite/unfinished.hpp"

#include <SQLiteCpp/SQLiteCpp.h>

#include <algorithm>
#include <csignal>

#include "cache/sqlite/database.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/schema.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kUnfinishedTrials = 60;

class UnfinishedCommit : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto db = open_quietly(directory_.path());
    const auto session = db->begin_session(h200(), environment(), "fill").value();
    for (int i = 0; i < kUnfinishedTrials; ++i) {
      Trial put = trial("{\"tile\":" + std::to_string(i) + "}", 10 + i);
      put.samples_json = "[" + std::string(400, '1') + "]";
      ASSERT_TRUE(db->add_trial(session, put));
    }
    ASSERT_TRUE(db->rebuild_winners());
    ASSERT_TRUE(db->finish_session(session));
  }

  /// A child changes every trial, which does not fit into its page cache, and is killed before it can commit.
  void kill_inside_commit() const {
    const int status = wait_for(start_process([&] {
      RawDatabase raw(file());
      raw.exec("PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE trials SET reason = 'half', median_us = 1");
      return ::raise(SIGKILL);
    }));
    ASSERT_EQ(status, 128 + SIGKILL);
    ASSERT_TRUE(detail::has_journal(file()));
  }

  static void expect_whole(TuningDb& db) {
    const auto trials = db.trials(h200(), "", "", "");
    ASSERT_TRUE(trials) << trials.error().message;
    EXPECT_EQ(trials->size(), static_cast<std::size_t>(kUnfinishedTrials));
    for (const Trial& got : *trials) EXPECT_EQ(got.reason, "");
    EXPECT_TRUE(db.check()->empty());
  }

  /// Files that the unprivileged user may read and not change.
  void make_read_only() const {
    for (const auto& path : files_with_prefix(directory_.path(), "")) ::chmod(path.c_str(), 0444);
    ::chmod(directory_.path().c_str(), 0555);
  }

  std::filesystem::path file() const { return directory_ / "tuning.db"; }

  TemporaryDirectory directory_;
};

TEST_F(UnfinishedCommit, IsRolledBackByTheFirstReader) {
  kill_inside_commit();
  const auto layers = load_layered_winners(h200(), directory_.path());
  EXPECT_TRUE(layers.warnings.empty()) << layers.warnings.front();
  ASSERT_EQ(layers.entries.size(), 1u);
  EXPECT_EQ(layers.entries[0].winner.config, "{\"tile\":0}");
  EXPECT_FALSE(detail::has_journal(file())) << "who comes after reads the file alone";
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
  ASSERT_TRUE(db);
  expect_whole(**db);
}

TEST_F(UnfinishedCommit, IsRolledBackByAReaderThatWasThereBefore) {
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
  ASSERT_TRUE(db);
  kill_inside_commit();
  expect_whole(**db);
}

TEST_F(UnfinishedCommit, IsReadPastWhereTheFileMustNotBeChanged) {
  kill_inside_commit();
  make_read_only();
  const auto before = read_bytes(file());
  EXPECT_EQ(run_unprivileged([&] {
              const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
              return db && (*db)->check()->empty() && (*db)->trials(h200(), "", "", "")->size() == kUnfinishedTrials &&
                             (*db)->winners(h200())->size() == 1
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_EQ(read_bytes(file()), before);
  EXPECT_TRUE(detail::has_journal(file())) << "whose owner may still need it";
}

TEST_F(UnfinishedCommit, IsReadPastWhereItIsInTheWriteAheadLog) {
  detail::OpenPolicy policy;
  policy.sqlite_version = 3051003;
  ASSERT_EQ(wait_for(start_process([&] {
              auto db = detail::open_read_write(detail::tuning_schema(), directory_.path(), policy);
              if (!db) return 1;
              RawDatabase raw(file());  // keeps the log when the other connection goes
              raw.exec("UPDATE trials SET reason = 'committed'");
              raw.exec("PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE trials SET reason = 'half'");
              return ::raise(SIGKILL);
            })),
            128 + SIGKILL);
  ASSERT_TRUE(detail::has_journal(file()));
  std::filesystem::remove(file().string() + "-shm");
  make_read_only();
  EXPECT_EQ(run_unprivileged([&] {
              const auto db = detail::open_tuning_file(file(), policy);
              if (!db) return 1;
              const auto trials = (*db)->trials(h200(), "", "", "");
              return trials && trials->size() == kUnfinishedTrials && trials->front().reason == "committed" ? 0 : 2;
            }),
            0);
}

TEST_F(UnfinishedCommit, IsAnErrorWithARemedyWhereNoCopyCanBeMade) {
  kill_inside_commit();
  make_read_only();
  const ScopedVariable nowhere("TMPDIR", "/no/such/directory");
  EXPECT_EQ(run_unprivileged([&] {
              const auto db = TuningDb::open(directory_.path(), OpenMode::read_only, nullptr);
              return !db && db.error().code == ErrorCode::cache_unavailable &&
                             db.error().message.find("in the middle of a change") != std::string::npos &&
                             db.error().hint.find("leanattn db rebuild") != std::string::npos
                         ? 0
                         : 1;
            }),
            0);
}

TEST_F(UnfinishedCommit, LeavesNoCopyBehind) {
  kill_inside_commit();
  TemporaryDirectory copies;
  const ScopedVariable here("TMPDIR", copies.path().string());
  ASSERT_TRUE(detail::read_past_journal(file(), 0));
  EXPECT_TRUE(files_with_prefix(copies.path(), "").empty());
}

}  // namespace
}  // namespace leanattn
