// repair_test.cpp -- a damaged tuning.db is replaced in one step: whenever the process that repairs it is killed, the
// next one finds every trial that could be read.
#include <fcntl.h>
#include <sys/syscall.h>

#include "cache/files.hpp"
#include "cache/sqlite/database.hpp"
#include "cache/tuning/open.hpp"
#include "cache/tuning/schema.hpp"
#include "cache_fixture.hpp"
#include "failing_vfs.hpp"

// These stand before the C library's in this program, so that a test can end the process at any of them.
extern "C" int rename(const char* from, const char* to) noexcept {
  leanattn::cache_test::FailingVfs::count_change();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int link(const char* from, const char* to) noexcept {
  leanattn::cache_test::FailingVfs::count_change();
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kRepairTrials = 30;

class Repair : public ::testing::Test {
 protected:
  /// A database one index of which is noise: all of its trials can still be read.
  static void make_damaged(const std::filesystem::path& directory) {
    {
      const auto db = open_quietly(directory);
      const auto session = db->begin_session(h200(), environment(), "fill").value();
      for (int i = 0; i < kRepairTrials; ++i)
        ASSERT_TRUE(db->add_trial(session, trial("{\"tile\":" + std::to_string(i) + "}", 10 + i)));
      ASSERT_TRUE(db->rebuild_winners());
      ASSERT_TRUE(db->finish_session(session));
    }
    spoil_an_index(directory / "tuning.db");
  }

  static void make_unreadable(const std::filesystem::path& directory) {
    write_bytes(directory / "tuning.db", std::vector<char>(8192, 'x'));
  }

  static std::vector<std::filesystem::path> asides(const std::filesystem::path& directory) {
    return files_with_prefix(directory, "tuning.db.corrupt-");
  }

  TemporaryDirectory directory_;
  detail::OpenPolicy policy_{
      .busy_timeout_ms = 20, .network_filesystem = false, .sqlite_version = sqlite3_libversion_number()};
};

TEST_F(Repair, LosesNothingWhereverItIsKilled) {
  TemporaryDirectory original;
  make_damaged(original.path());
  const auto damaged = read_bytes(original / "tuning.db");
  const int step = tries(4, 1);
  int deaths = 0;
  for (int n = 1;; n += step) {
    SCOPED_TRACE("change " + std::to_string(n));
    TemporaryDirectory directory;
    write_bytes(directory / "tuning.db", damaged);
    const int status = wait_for(start_process([&] {
      FailingVfs disk;
      disk.arm(n, FailingVfs::Kind::death, false);
      return TuningDb::open(directory.path(), OpenMode::read_write, nullptr) ? 0 : 1;
    }));
    ASSERT_TRUE(status == 0 || status == FailingVfs::kDeathStatus) << status;
    // A reader finds the damaged file or the repaired one, never an empty one.
    if (const auto reader = TuningDb::open(directory.path(), OpenMode::read_only, nullptr)) {
      if (const auto trials = (*reader)->trials(h200(), "", "", "")) {
        EXPECT_EQ(trials->size(), static_cast<std::size_t>(kRepairTrials));
      }
    }
    const auto db = TuningDb::open(directory.path(), OpenMode::read_write, nullptr);
    ASSERT_TRUE(db) << db.error().message;
    EXPECT_EQ((*db)->stats()->trials, kRepairTrials);
    EXPECT_TRUE((*db)->check()->empty());
    const auto aside = asides(directory.path());
    ASSERT_EQ(aside.size(), 1u);
    EXPECT_EQ(read_bytes(aside[0]), damaged);
    EXPECT_TRUE(files_with_prefix(directory.path(), "tuning.db.new").empty());
    if (status == 0) break;
    ++deaths;
  }
  EXPECT_GT(deaths * step, 20) << "repairing changes files";
}

TEST_F(Repair, LeavesTheFileWhereNothingCanBeReadOfItAndOnlyItsTrialsMatter) {
  make_unreadable(directory_.path());
  const auto before = read_bytes(directory_ / "tuning.db");
  const auto db = TuningDb::open(directory_.path(), OpenMode::maintain, nullptr);
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, ErrorCode::database_corrupt);
  EXPECT_EQ(read_bytes(directory_ / "tuning.db"), before);
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u);
  std::string warning;
  EXPECT_TRUE(TuningDb::open(directory_.path(), OpenMode::read_write, &warning)) << "who brings new trials goes on";
  EXPECT_NE(warning.find("with the 0 trials"), std::string::npos) << warning;
}

TEST_F(Repair, IsDoneByAChildThatOpensTheFileAnewAfterFork) {
  make_damaged(directory_.path());
  const auto damaged = read_bytes(directory_ / "tuning.db");
  const auto db = open_quietly((directory_ / "other"));
  ASSERT_NE(db, nullptr);
  write_bytes(directory_ / "other" / "tuning.db", damaged);
  EXPECT_EQ(wait_for(start_process([&] {
              const auto session = db->begin_session(h200(), environment(), "child");
              return session && db->stats()->trials == kRepairTrials && db->take_warning() ? 0 : 1;
            })),
            0);
}

TEST_F(Repair, IsDoneByTheEndOfASessionThatWentOnInMemory) {
  make_damaged(directory_.path());
  const auto damaged = read_bytes(directory_ / "tuning.db");
  std::filesystem::remove(directory_ / "tuning.db");
  auto db = detail::open_tuning_db(directory_.path(), OpenMode::read_write, policy_, nullptr).value();
  {
    RawDatabase other(directory_ / "tuning.db");
    other.exec("BEGIN EXCLUSIVE");
    const auto session = db->begin_session(h200(), environment(), "goes on in memory").value();
    ASSERT_TRUE(db->take_warning());
    ASSERT_TRUE(db->add_trial(session, trial("{\"new\":1}", 5)));
    other.exec("ROLLBACK");
    write_bytes(directory_ / "tuning.db", damaged);
    ASSERT_TRUE(db->finish_session(session));
  }
  const auto said = db->take_warning();
  ASSERT_TRUE(said);
  EXPECT_NE(said->find("could be written again"), std::string::npos) << *said;
  EXPECT_EQ(open_quietly(directory_.path())->stats()->trials, kRepairTrials + 1);
}

TEST_F(Repair, ByAnotherProcessIsNoticedByAWriterThatHasTheOldFileOpen) {
  const auto db = open_quietly(directory_.path());
  const auto session = db->begin_session(h200(), environment(), "long").value();
  ASSERT_TRUE(db->add_trial(session, trial("{\"i\":1}", 10)));
  // What a repair by another process does to the names.
  std::filesystem::copy_file(directory_ / "tuning.db", directory_ / "tuning.db.new");
  ASSERT_TRUE(detail::keep_aside(directory_ / "tuning.db"));
  std::filesystem::rename(directory_ / "tuning.db.new", directory_ / "tuning.db");
  ASSERT_TRUE(db->add_trial(session, trial("{\"i\":2}", 11)));
  EXPECT_FALSE(db->take_warning());
  EXPECT_EQ(open_quietly(directory_.path())->stats()->trials, 2) << "the trial is in the file that has the name";
}

TEST_F(Repair, LeavesAFileThatAnotherProcessIsReadingUntilItHasFinished) {
  make_damaged(directory_.path());
  const auto before = read_bytes(directory_ / "tuning.db");
  RawDatabase reader(directory_ / "tuning.db");
  reader.exec("BEGIN; SELECT count(*) FROM sessions");
  const auto busy = detail::open_tuning_db(directory_.path(), OpenMode::read_write, policy_, nullptr);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, ErrorCode::database_busy);
  EXPECT_EQ(read_bytes(directory_ / "tuning.db"), before);
  reader.exec("COMMIT");
  EXPECT_TRUE(detail::open_tuning_db(directory_.path(), OpenMode::read_write, policy_, nullptr));
}

}  // namespace
}  // namespace leanattn
