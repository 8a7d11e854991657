// storage_attack_test.cpp -- the caches under attack for minutes: kills at random moments, and many processes at once.
// Run with LEANATTN_ATTACK=1; without it, these tests are skipped. Each prints its figures.
#include <time.h>

#include <csignal>

#include "cache/sqlite/unfinished.hpp"
#include "cache/tuning/open.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kAttackTrials = 1500;

/// How often, for a test that does its thing `usual` times: LEANATTN_ATTACK multiplies it.
int rounds(int usual) {
  const char* factor = std::getenv("LEANATTN_ATTACK");
  return usual * std::max(1, std::atoi(factor));
}

void pause_us(long microseconds) {
  const timespec time{.tv_sec = microseconds / 1000000, .tv_nsec = microseconds % 1000000 * 1000};
  ::nanosleep(&time, nullptr);
}

class StorageAttack : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("LEANATTN_ATTACK") == nullptr) GTEST_SKIP() << "LEANATTN_ATTACK=1 runs it";
    fill(original_.path(), "own", kAttackTrials);
    fill(source_.path(), "source", 200);
  }

  static void fill(const std::filesystem::path& directory, const std::string& name, int count) {
    TemporaryDirectory memory;
    const auto db = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr).value();
    const auto session = db->begin_session(h200(), environment(), name).value();
    for (int i = 0; i < count; ++i) {
      Trial put = trial("{\"" + name + "\":" + std::to_string(i) + "}", 10 + i);
      put.shape = "{\"batch\":" + std::to_string(i % 40) + "}";
      put.samples_json = "[" + std::string(300, '1') + "]";
      ASSERT_TRUE(db->add_trial(session, put));
    }
    ASSERT_TRUE(db->rebuild_winners());
    ASSERT_TRUE(db->finish_session(session));
    ASSERT_TRUE(db->export_to(memory / "made.db"));
    std::filesystem::create_directories(directory);
    write_bytes(directory / "tuning.db", read_bytes(memory / "made.db"));
  }

  void copy_original(const std::filesystem::path& directory) const {
    write_bytes(directory / "tuning.db", read_bytes(original_ / "tuning.db"));
  }

  TemporaryDirectory original_, source_;
};

TEST_F(StorageAttack, KillsOfMaintenance) {
  std::mt19937_64 random(random_seed());
  int kills = 0, journals = 0;
  for (int round = 0; round < rounds(150) && !HasFailure(); ++round) {
    TemporaryDirectory directory;
    copy_original(directory.path());
    const pid_t child = start_process([&] {
      for (;;) {
        auto db = TuningDb::open(directory.path(), OpenMode::maintain, nullptr);
        if (!db) return 1;
        static_cast<void>((*db)->import_from(source_ / "tuning.db"));
        static_cast<void>((*db)->rebuild_winners());
        static_cast<void>((*db)->collect_garbage({.keep_days = 0, .max_bytes = 200000}));
        RawDatabase raw(directory / "tuning.db");
        raw.exec("PRAGMA cache_size = 1; BEGIN IMMEDIATE; UPDATE trials SET reason = 'half'; ROLLBACK");
      }
    });
    pause_us(static_cast<long>(random() % 400000));
    ::kill(child, SIGKILL);
    kills += wait_for(child) == 128 + SIGKILL;
    journals += detail::has_journal(directory / "tuning.db");
    // A reader comes first.
    const auto layers = load_layered_winners(h200(), directory.path());
    EXPECT_TRUE(layers.warnings.empty()) << layers.warnings.front();
    EXPECT_EQ(layers.entries.size(), 40u);
    const auto reader = TuningDb::open(directory.path(), OpenMode::read_only, nullptr);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_TRUE((*reader)->check()->empty());
  }
  std::printf("kills of maintenance: %d, of which %d left a journal; all read at once\n", kills, journals);
}

TEST_F(StorageAttack, KillsOfRepair) {
  std::mt19937_64 random(random_seed());
  auto damaged = read_bytes(original_ / "tuning.db");
  std::int64_t root = 0;
  {
    RawDatabase raw(original_ / "tuning.db");
    root = std::stoll(raw.ask("SELECT rootpage FROM sqlite_schema WHERE name = 'winners_by_trial'"));
  }
  std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>((root - 1) * 4096), 4096, '\xEE');
  int kills = 0, finished = 0;
  for (int round = 0; round < rounds(90) && !HasFailure(); ++round) {
    TemporaryDirectory directory;
    write_bytes(directory / "tuning.db", damaged);
    const pid_t child =
        start_process([&] { return TuningDb::open(directory.path(), OpenMode::read_write, nullptr) ? 0 : 1; });
    pause_us(static_cast<long>(random() % 300000));
    ::kill(child, SIGKILL);
    (wait_for(child) == 0 ? finished : kills) += 1;
    const auto db = TuningDb::open(directory.path(), OpenMode::maintain, nullptr);
    ASSERT_TRUE(db) << db.error().message;
    EXPECT_EQ((*db)->stats()->trials, kAttackTrials);
    EXPECT_TRUE((*db)->check()->empty());
    EXPECT_EQ(files_with_prefix(directory.path(), "tuning.db.corrupt-").size(), 1u);
  }
  std::printf("kills of repair: %d (%d had finished before); no trial lost\n", kills, finished);
}

TEST_F(StorageAttack, LookUpsOfManyProcessesBesideMaintenance) {
  constexpr int kReaders = 56, kMaintainers = 6;
  TemporaryDirectory directory;
  copy_original(directory.path());
  std::vector<pid_t> maintainers, readers;
  for (int i = 0; i < kMaintainers; ++i) {
    maintainers.push_back(start_process([&] {
      for (;;) {
        auto db = TuningDb::open(directory.path(), OpenMode::maintain, nullptr);
        if (!db || !(*db)->rebuild_winners() || !(*db)->import_from(source_ / "tuning.db")) return 1;
      }
    }));
  }
  const int each = rounds(20);
  for (int i = 0; i < kReaders; ++i) {
    readers.push_back(start_process([&] {
      int late = 0;
      for (int look = 0; look < each; ++look) {
        for (;;) {  // as an engine does in the background
          const auto layers = load_layered_winners(h200(), directory.path());
          if (layers.entries.size() == 40) break;
          if (!layers.locked) return 99;
          ++late;
        }
      }
      return std::min(late, 90);
    }));
  }
  int late = 0, failed = 0, stopped = 0;
  for (const pid_t reader : readers) {
    const int status = wait_for(reader);
    (status > 90 ? failed : late) += status > 90 ? 1 : status;
  }
  for (const pid_t maintainer : maintainers) {
    ::kill(maintainer, SIGKILL);
    stopped += wait_for(maintainer) != 128 + SIGKILL;
  }
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(stopped, 0) << "maintenance queues instead of failing";
  std::printf("%d look-ups by %d processes beside %d that maintain: %d read at a second try, none without winners\n",
              each * kReaders, kReaders, kMaintainers, late);
}

TEST_F(StorageAttack, MaintenanceByManyProcessesAtOnce) {
  const int processes = std::min(rounds(80), 160);
  TemporaryDirectory directory;
  copy_original(directory.path());
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    children.push_back(start_process([&] {
      auto db = TuningDb::open(directory.path(), OpenMode::maintain, nullptr);
      if (!db) return 2;
      return (*db)->rebuild_winners() ? 0 : 1;
    }));
  }
  int busy = 0;
  for (const pid_t child : children) busy += wait_for(child) != 0;
  EXPECT_EQ(busy, 0);
  std::printf("maintenance by %d processes at once: %d failed\n", processes, busy);
}

}  // namespace
}  // namespace leanattn
