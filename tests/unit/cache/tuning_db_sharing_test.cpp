#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "cache/sqlite/database.hpp"
#include "cache/tuning/open.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

// Generous, since these tests are about lost rows and not about patience.
constexpr const char* kPatience = "120000";

class TuningDbSharing : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return directory_ / "tuning.db"; }
  TemporaryDirectory directory_;
  ScopedVariable patience_{"LEANATTN_BUSY_TIMEOUT_MS", kPatience};
};

int write_trials(const std::filesystem::path& directory, int writer, int count) {
  std::string warning;
  auto db = TuningDb::open(directory, OpenMode::read_write, &warning);
  if (!db || !warning.empty()) return 2;
  const auto session = (*db)->begin_session(h200(), environment(), "writer " + std::to_string(writer));
  if (!session) return 3;
  for (int i = 0; i < count; ++i) {
    if (!(*db)->add_trial(*session,
                          trial("{\"writer\":" + std::to_string(writer) + ",\"i\":" + std::to_string(i) + "}", 10 + i)))
      return 4;
  }
  const Trial key = trial("", 1);
  if (!(*db)->rebuild_winners(h200(), key.problem, key.shape, key.policy)) return 5;
  if (!(*db)->finish_session(*session)) return 6;
  return (*db)->take_warning() ? 7 : 0;
}

TEST_F(TuningDbSharing, LosesNoRowWhenProcessesCreateAndWriteOneFileAtOnce) {
  constexpr int kWriters = 6, kCount = 20;
  std::vector<pid_t> children;
  for (int writer = 0; writer < kWriters; ++writer) {
    children.push_back(start_process([&] { return write_trials(directory_.path(), writer, kCount); }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  const auto db = open_quietly(directory_.path());
  const DbStats stats = db->stats().value();
  EXPECT_EQ(stats.trials, kWriters * kCount);
  EXPECT_EQ(stats.sessions, kWriters);
  EXPECT_EQ(stats.configs, kWriters * kCount);
  EXPECT_EQ(stats.device_models, 1);
  EXPECT_EQ(stats.environments, 1);
  EXPECT_EQ(stats.winners, 1);
  EXPECT_TRUE(db->check()->empty());
  EXPECT_EQ(files_with_prefix(directory_.path(), "").size(), 1u);
}

TEST_F(TuningDbSharing, LosesNoRowWhenThreadsWriteThroughTheirOwnHandles) {
  constexpr int kWriters = 4, kCount = 15;
  std::vector<std::thread> threads;
  std::vector<int> results(kWriters, -1);
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back(
        [&, writer] { results[static_cast<std::size_t>(writer)] = write_trials(directory_.path(), writer, kCount); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(results, std::vector<int>(kWriters, 0));
  EXPECT_EQ(open_quietly(directory_.path())->stats()->trials, kWriters * kCount);
}

TEST_F(TuningDbSharing, GivesAForkedChildAConnectionOfItsOwn) {
  const auto db = open_quietly(directory_.path());
  const auto session = db->begin_session(h200(), environment(), "parent").value();
  ASSERT_TRUE(db->add_trial(session, trial("{\"by\":\"parent\"}", 10)));
  const pid_t child = start_process([&]() -> int {
    if (open_descriptors(file()) != 1) return 2;
    if (!db->add_trial(session, trial("{\"by\":\"child\"}", 9))) return 3;
    return open_descriptors(file()) == 2 ? 0 : 4;  // the parent's stays open, unused
  });
  EXPECT_EQ(wait_for(child), 0);
  ASSERT_TRUE(db->add_trial(session, trial("{\"by\":\"parent again\"}", 11)));
  EXPECT_EQ(db->stats()->trials, 3);
  EXPECT_TRUE(db->check()->empty());
}

TEST_F(TuningDbSharing, KeepsEveryReportedTrialWhenTheWriterIsKilled) {
  const std::uint64_t seed = random_seed();
  std::mt19937_64 random(seed);
  std::set<std::string> reported;
  for (int round = 0; round < 12; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = start_process([&]() -> int {
      ::close(pipe_ends[0]);
      auto db = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
      if (!db) return 2;
      const auto session = (*db)->begin_session(h200(), environment(), "killed");
      if (!session) return 3;
      for (int i = 0;; ++i) {
        const auto uuid = (*db)->add_trial(*session, trial("{\"i\":" + std::to_string(i) + "}", 10 + i));
        if (!uuid || ::write(pipe_ends[1], uuid->data(), uuid->size()) != static_cast<ssize_t>(uuid->size())) return 4;
      }
    });
    ::close(pipe_ends[1]);
    // The kill comes after so many reports, and at whatever point of the next trial's transaction that happens to be.
    const int reports = static_cast<int>(random() % 8) + 1;
    int seen = 0;
    char uuid[36];
    while (::read(pipe_ends[0], uuid, sizeof uuid) == static_cast<ssize_t>(sizeof uuid)) {
      reported.emplace(uuid, sizeof uuid);
      if (++seen == reports) ::kill(child, SIGKILL);
    }
    ::close(pipe_ends[0]);
    EXPECT_EQ(wait_for(child), 128 + SIGKILL);
    EXPECT_GE(seen, reports);
  }
  const auto db = open_quietly(directory_.path());
  EXPECT_TRUE(db->check()->empty());
  std::set<std::string> stored;
  const auto trials = db->trials(h200(), "", "", "").value();
  for (const Trial& got : trials) stored.insert(got.uuid);
  EXPECT_TRUE(std::includes(stored.begin(), stored.end(), reported.begin(), reported.end()));
  EXPECT_LE(stored.size(), reported.size() + 12) << "at most the trial in flight is in doubt";
  ASSERT_TRUE(db->rebuild_winners());
  EXPECT_EQ(db->winners(h200())->size(), 1u);
}

TEST_F(TuningDbSharing, SaysBusyWhenOpeningTakesTooLong) {
  open_quietly(directory_.path());
  const ScopedVariable hurry("LEANATTN_BUSY_TIMEOUT_MS", "20");
  RawDatabase other(file());
  other.exec("BEGIN EXCLUSIVE");
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, ErrorCode::database_busy);
  EXPECT_NE(db.error().message.find(file().string()), std::string::npos);
  EXPECT_NE(db.error().hint, "");
}

TEST_F(TuningDbSharing, CarriesOnInMemoryWhileLockedAndWritesEverythingBackAtTheEnd) {
  const ScopedVariable hurry("LEANATTN_BUSY_TIMEOUT_MS", "20");
  const auto db = open_quietly(directory_.path());
  const auto session = db->begin_session(h200(), environment(), "locked out").value();
  ASSERT_TRUE(db->add_trial(session, trial("{\"before\":1}", 12)));
  {
    RawDatabase other(file());
    other.exec("BEGIN IMMEDIATE");
    ASSERT_TRUE(db->add_trial(session, trial("{\"during\":1}", 10)));
    const auto warning = db->take_warning();
    ASSERT_TRUE(warning);
    EXPECT_NE(warning->find("locked by another process"), std::string::npos) << *warning;
    EXPECT_NE(warning->find("in memory only"), std::string::npos) << *warning;
    ASSERT_TRUE(db->add_trial(session, trial("{\"during\":2}", 11)));
    EXPECT_FALSE(db->take_warning()) << "it is said once";
    const Trial key = trial("", 1);
    ASSERT_TRUE(db->rebuild_winners(h200(), key.problem, key.shape, key.policy));
    EXPECT_EQ(db->trials(h200(), "", "", "")->size(), 3u) << "what the file says is still known";
    EXPECT_EQ(db->winners(h200())->front().config, "{\"during\":1}");
    EXPECT_EQ(other.ask("SELECT count(*) FROM trials"), "1");
  }
  ASSERT_TRUE(db->finish_session(session));
  const auto again = db->take_warning();
  ASSERT_TRUE(again);
  EXPECT_NE(again->find("could be written again"), std::string::npos) << *again;
  const auto reader = open_quietly(directory_.path());
  EXPECT_EQ(reader->stats()->trials, 3);
  EXPECT_EQ(reader->stats()->sessions, 1);
  EXPECT_NE(reader->sessions()->front().finished, "");
  EXPECT_EQ(reader->winners(h200())->front().config, "{\"during\":1}");
}

TEST_F(TuningDbSharing, DoesNotPretendToHaveImportedOrCollectedWhileLocked) {
  TemporaryDirectory elsewhere;
  const auto source = open_quietly(elsewhere.path());
  ASSERT_TRUE(source->add_trial(source->begin_session(h200(), environment(), "").value(), trial("{}", 10)));
  const ScopedVariable hurry("LEANATTN_BUSY_TIMEOUT_MS", "20");
  const auto db = open_quietly(directory_.path());
  RawDatabase other(file());
  other.exec("BEGIN IMMEDIATE");
  EXPECT_EQ(db->import_from(elsewhere / "tuning.db").error().code, ErrorCode::database_busy);
  EXPECT_EQ(db->collect_garbage({.keep_days = 0}).error().code, ErrorCode::database_busy);
  EXPECT_EQ(db->rebuild_winners().error().code, ErrorCode::database_busy);
  other.exec("ROLLBACK");
  EXPECT_EQ(db->import_from(elsewhere / "tuning.db").value(), 1);
}

TEST_F(TuningDbSharing, GoesOnWhereSomebodyTakesTheFileAway) {
  using Harm = std::function<void(const std::filesystem::path&)>;
  TemporaryDirectory other;
  open_quietly(other.path());
  const Harm harms[] = {
      [](const auto& path) { std::filesystem::remove(path); },
      [](const auto& path) { std::filesystem::remove_all(path.parent_path()); },
      [](const auto& path) { std::filesystem::resize_file(path, 0); },
      [&](const auto& path) {
        std::filesystem::copy_file(other / "tuning.db", path.string() + ".copy");
        std::filesystem::rename(path.string() + ".copy", path);
      },
  };
  for (const Harm& harm : harms) {
    TemporaryDirectory place;
    const auto directory = place / "cache";
    const auto db = open_quietly(directory);
    const auto session = db->begin_session(h200(), environment(), "").value();
    ASSERT_TRUE(db->add_trial(session, trial("{\"before\":1}", 12)));
    harm(directory / "tuning.db");
    ASSERT_TRUE(db->read_limits(h200(), "cold"));
    const auto added = db->add_trial(session, trial("{\"after\":1}", 10));
    ASSERT_TRUE(added) << added.error().message;
    const auto warning = db->take_warning();
    ASSERT_TRUE(warning);
    EXPECT_NE(warning->find("was removed, replaced or emptied by somebody else"), std::string::npos) << *warning;
    ASSERT_TRUE(db->rebuild_winners(h200(), trial("", 0).problem, trial("", 0).shape, "cold"));
    ASSERT_TRUE(db->finish_session(session));
    EXPECT_FALSE(db->not_kept());
    const auto read = open_quietly(directory);
    EXPECT_EQ(read->winners(h200())->at(0).trial_uuid, *added);
    EXPECT_NE(read->sessions()->at(0).finished, "");
    EXPECT_TRUE(read->check()->empty());
  }
}

TEST_F(TuningDbSharing, CarriesOnInMemoryWhenTheDiskIsFull) {
  {
    const auto db = open_quietly(directory_.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment(), "").value(), trial("{\"old\":1}", 12)));
  }
  const auto before = open_quietly(directory_.path())->stats()->trials;
  const pid_t child = start_process([&]() -> int {
    auto db = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
    if (!db) return 2;
    const auto session = (*db)->begin_session(h200(), environment(), "full");
    if (!session) return 3;
    // No file of this process may grow any more: what a full disk does, without one.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{static_cast<rlim_t>(std::filesystem::file_size(file())), RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 4;
    Trial big = trial("{}", 10);
    big.samples_json = "[" + std::string(200000, '1') + "]";
    if (!(*db)->add_trial(*session, big)) return 5;
    const auto warning = (*db)->take_warning();
    if (!warning || warning->find("in memory only") == std::string::npos) return 6;
    if ((*db)->trials(h200(), "", "", "")->size() != 2) return 7;
    if (const auto why = (*db)->not_kept(); !why || why->code != ErrorCode::cache_unavailable) return 10;
    if (!(*db)->finish_session(*session) || (*db)->take_warning()) return 8;
    return (*db)->trials(h200(), "", "", "")->size() == 2 ? 0 : 9;
  });
  EXPECT_EQ(wait_for(child), 0);
  const auto db = open_quietly(directory_.path());
  EXPECT_EQ(db->stats()->trials, before);
  EXPECT_TRUE(db->check()->empty());
}

TEST_F(TuningDbSharing, CarriesOnInMemoryWithWhatAReadOnlyDirectorySays) {
  {
    const auto db = open_quietly(directory_.path());
    ASSERT_TRUE(db->add_trial(db->begin_session(h200(), environment(), "").value(), trial("{\"old\":1}", 12)));
    ASSERT_TRUE(db->rebuild_winners());
  }
  give_to_unprivileged(directory_.path());
  give_to_unprivileged(file());
  ::chmod(file().c_str(), 0400);
  ::chmod(directory_.path().c_str(), 0500);
  EXPECT_EQ(
      run_unprivileged([&]() -> int {
        if (TuningDb::open(directory_.path(), OpenMode::read_write, nullptr)) return 2;
        std::string warning;
        const auto db = TuningDb::open_or_memory(directory_.path(), &warning);
        if (warning.find("not writable") == std::string::npos || warning.find("in memory only") == std::string::npos)
          return 3;
        const auto session = db->begin_session(h200(), environment(), "");
        if (!session || !db->add_trial(*session, trial("{\"new\":1}", 10)) || !db->rebuild_winners()) return 4;
        if (db->trials(h200(), "", "", "")->size() != 2) return 5;
        return db->winners(h200())->front().config == "{\"new\":1}" ? 0 : 6;
      }),
      0);
}

TEST_F(TuningDbSharing, IsInMemoryOnlyOnANetworkFileSystem) {
  detail::OpenPolicy policy = detail::open_policy(directory_.path(), 1000);
  policy.network_filesystem = true;
  EXPECT_EQ(detail::open_tuning_db(directory_.path(), OpenMode::read_write, policy, nullptr).error().code,
            ErrorCode::cache_unavailable);
  std::string warning;
  const auto db = detail::open_tuning_db_or_memory(directory_.path(), policy, &warning);
  EXPECT_NE(warning.find("network file system"), std::string::npos) << warning;
  const auto session = db->begin_session(h200(), environment(), "").value();
  ASSERT_TRUE(db->add_trial(session, trial("{}", 10)));
  ASSERT_TRUE(db->finish_session(session));
  EXPECT_TRUE(files_with_prefix(directory_.path(), "").empty());
}

TEST_F(TuningDbSharing, KeepsANewerFileAsItIsAndWorksInMemory) {
  open_quietly(directory_.path());
  RawDatabase(file()).exec("PRAGMA user_version = 99");
  const auto before = read_bytes(file());
  const auto refused = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::database_newer);
  EXPECT_NE(refused.error().hint.find("update leanattn"), std::string::npos);
  std::string warning;
  const auto db = TuningDb::open_or_memory(directory_.path(), &warning);
  EXPECT_NE(warning.find("newer leanattn"), std::string::npos) << warning;
  const auto session = db->begin_session(h200(), environment(), "").value();
  EXPECT_TRUE(db->add_trial(session, trial("{}", 10)));
  EXPECT_TRUE(db->finish_session(session));
  EXPECT_EQ(read_bytes(file()), before);
}

TEST_F(TuningDbSharing, RefusesAHostileDirectoryEvenWhenNamedByTheCaller) {
  ::chmod(directory_.path().c_str(), 0777);
  const auto db = TuningDb::open(directory_.path(), OpenMode::read_write, nullptr);
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, ErrorCode::cache_unavailable);
  EXPECT_TRUE(files_with_prefix(directory_.path(), "").empty());
  EXPECT_EQ(TuningDb::open("relative/path", OpenMode::read_write, nullptr).error().code, ErrorCode::cache_unavailable);
}

}  // namespace
}  // namespace leanattn
