// tuning_db_hammer_test.cpp -- many processes that do everything to one database at once.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "cache/cubin/cubin_db.hpp"
#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;

constexpr int kProcesses = 16;

/// How long the processes hammer: some seconds, or LEANATTN_TEST_SECONDS.
std::chrono::seconds hammering() {
  const char* text = std::getenv("LEANATTN_TEST_SECONDS");
  return std::chrono::seconds(text != nullptr ? std::max(1, std::atoi(text)) : 4);
}

/// What the exit status of a process that gave up says; 0 is success.
enum Failure {
  kOpen = 1,
  kWarned,
  kSession,
  kAdd,
  kRebuild,
  kRead,
  kLayers,
  kImport,
  kGarbage,
  kExport,
  kFinish,
  kReport
};

class Hammer {
 public:
  Hammer(std::filesystem::path directory, std::filesystem::path other, int process, std::uint64_t seed, int report)
      : directory_(std::move(directory)),
        other_(std::move(other)),
        process_(process),
        random_(seed + static_cast<std::uint64_t>(process)),
        report_(report) {}

  int run(std::chrono::steady_clock::time_point until) {
    while (std::chrono::steady_clock::now() < until) {
      if (const int failed = one_session()) return failed;
    }
    return 0;
  }

 private:
  /// As a tuning session does it, with the other commands in between.
  int one_session() {
    std::string warning;
    auto db = TuningDb::open(directory_, OpenMode::read_write, &warning);
    if (!db) return kOpen;
    if (!warning.empty()) return kWarned;
    const auto session = (*db)->begin_session(h200(), environment(), "process " + std::to_string(process_));
    if (!session) return kSession;
    std::string uuids;
    for (int i = 0; i < 10; ++i) {
      Trial put = trial("{\"c\":" + std::to_string(random_() % 50) + "}", 10 + static_cast<double>(random_() % 100));
      put.shape = "{\"batch\":" + std::to_string(random_() % 4) + "}";
      const auto uuid = (*db)->add_trial(*session, put);
      if (!uuid) return kAdd;
      uuids += *uuid;
      if (const int failed = something_else(**db, put)) return failed;
    }
    if (!(*db)->finish_session(*session)) return kFinish;
    if ((*db)->take_warning()) return kWarned;
    const auto size = static_cast<ssize_t>(uuids.size());
    return ::write(report_, uuids.data(), uuids.size()) == size ? 0 : kReport;
  }

  int something_else(TuningDb& db, const Trial& trial) {
    switch (random_() % 8) {
      case 0: return db.rebuild_winners(h200(), trial.problem, trial.shape, trial.policy) ? 0 : kRebuild;
      case 1: return db.set_read_limit(h200(), "cold", 1 << (10 + random_() % 10), 3.5) ? 0 : kRebuild;
      case 2: return db.winners(h200()) && db.stats() && db.sessions() ? 0 : kRead;
      case 3: return load_layered_winners(h200(), directory_).warnings.empty() ? 0 : kLayers;
      case 4: return db.import_from(other_) ? 0 : kImport;
      case 5: return db.collect_garbage({.keep_days = 30, .max_bytes = std::int64_t{1} << 40}) ? 0 : kGarbage;
      case 6: {
        const std::filesystem::path copy = directory_ / ("copy-" + detail_name());
        if (!db.export_to(copy)) return kExport;
        std::filesystem::remove(copy);
        return 0;
      }
      default: return db.trials(h200(), "", trial.shape, "") ? 0 : kRead;
    }
  }

  std::string detail_name() { return std::to_string(process_) + "-" + std::to_string(copies_++); }

  std::filesystem::path directory_, other_;
  int process_;
  std::mt19937_64 random_;
  int report_;
  int copies_ = 0;
};

TEST(TuningDbHammer, SixteenProcessesLoseNoTrialAndMeetNoLockTheyCannotWaitFor) {
  const std::uint64_t seed = random_seed();
  // The patience that a user has.
  const ScopedVariable patience("LEANATTN_BUSY_TIMEOUT_MS", std::nullopt);
  TemporaryDirectory directory, elsewhere;
  std::set<std::string> reported;
  {
    const auto db = open_quietly(elsewhere.path());
    const auto session = db->begin_session(h200(), environment(), "elsewhere").value();
    for (int i = 0; i < 20; ++i)
      reported.insert(db->add_trial(session, trial("{\"e\":" + std::to_string(i) + "}", 10 + i)).value());
  }
  const auto until = std::chrono::steady_clock::now() + hammering();
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(start_process([&]() -> int {
      const std::string report = directory / ("report-" + std::to_string(process));
      const int file = ::open(report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      return Hammer(directory.path(), elsewhere / "tuning.db", process, seed, file).run(until);
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  std::size_t sessions = 0;
  for (const auto& report : files_with_prefix(directory.path(), "report-")) {
    const auto bytes = read_bytes(report);
    ASSERT_EQ(bytes.size() % 360, 0u);
    sessions += bytes.size() / 360;
    for (std::size_t at = 0; at < bytes.size(); at += 36) reported.emplace(bytes.data() + at, 36);
  }
  EXPECT_GE(sessions, static_cast<std::size_t>(kProcesses)) << "every process got something done";

  const auto db = open_quietly(directory.path());
  EXPECT_TRUE(db->check()->empty());
  std::set<std::string> stored;
  const auto trials = db->trials(h200(), "", "", "").value();
  for (const Trial& got : trials) stored.insert(got.uuid);
  std::erase_if(reported, [&](const std::string& uuid) { return stored.contains(uuid); });
  EXPECT_TRUE(reported.empty()) << reported.size() << " of " << stored.size() << " are missing";
  EXPECT_TRUE(files_with_prefix(directory.path(), "tuning.db.").empty()) << "nothing was put aside";
  RecordProperty("trials", static_cast<int>(stored.size()));
}

}  // namespace
}  // namespace leanattn
