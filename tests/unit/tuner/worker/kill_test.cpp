// kill_test.cpp -- a tuning process is killed or interrupted at any moment: what was committed stays, the database is
// sound, and nothing is left running.
#include <fcntl.h>
#include <poll.h>
#include <sqlite3.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <random>
#include <set>

#include "cache/layers.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/thoroughness.hpp"
#include "worker_fixture.hpp"

namespace leanattn::worker_test {
namespace {

/// simulated_tune as a child process, whose output is read line by line.
class TuneProcess {
 public:
  TuneProcess(const std::filesystem::path& directory, const std::vector<PlantedFault>& faults, int devices, int context,
              bool resume) {
    const std::vector<std::string> words = {SIMULATED_TUNE,
                                            directory.string(),
                                            FAKE_WORKER,
                                            worker_command(FAKE_WORKER, faults)[1],
                                            std::to_string(devices),
                                            std::to_string(context),
                                            resume ? "resume" : "anew"};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    pid = ::fork();
    if (pid == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(99);
    }
    ::close(ends[1]);
    lines_ = ::fdopen(ends[0], "r");
  }
  TuneProcess(const TuneProcess&) = delete;
  TuneProcess& operator=(const TuneProcess&) = delete;
  ~TuneProcess() { std::fclose(lines_); }

  /// False at the end of its output.
  bool read_line() {
    char buffer[256];
    return std::fgets(buffer, sizeof(buffer), lines_) != nullptr;
  }
  void drain() {
    while (read_line()) continue;
  }
  int wait() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status;
  }

  pid_t pid = -1;

 private:
  std::FILE* lines_ = nullptr;
};

class Killed : public WorkerSession {
 protected:
  Killed() {
    // Workers that outlive their session become children of this process, which then sees them.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    RecordProperty("seed", std::to_string(seed));
  }

  /// The uuids of the trials that another process can see now, which are those that were committed.
  std::set<std::string> committed() const {
    std::set<std::string> uuids;
    sqlite3* database = nullptr;
    const std::string file = (directory.path() / "tuning.db").string();
    if (sqlite3_open_v2(file.c_str(), &database, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK) {
      sqlite3_busy_timeout(database, 10'000);
      sqlite3_exec(
          database, "SELECT uuid FROM trials",
          [](void* into, int, char** columns, char**) {
            static_cast<std::set<std::string>*>(into)->insert(columns[0]);
            return 0;
          },
          &uuids, nullptr);
    }
    sqlite3_close(database);
    return uuids;
  }

  /// Waits for every process that the session left behind. False when one does not end by itself.
  static bool all_gone() {
    for (int waited_ms = 0; waited_ms < 30'000; waited_ms += 5) {
      const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
      if (ended < 0 && errno == ECHILD) return true;
      if (ended == 0) ::poll(nullptr, 0, 5);
    }
    return false;
  }

  std::unique_ptr<TuningDb> reopened() {
    std::string warning;
    auto opened = TuningDb::open(directory.path(), OpenMode::read_write, &warning);
    EXPECT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(warning, "");
    return opened ? std::move(*opened) : nullptr;
  }

  std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random{seed};
  TemporaryDirectory directory;
};

TEST_F(Killed, AtRandomMomentsLosesNoCommittedTrialAndLeavesNoWorker) {
  std::set<std::string> ever;
  const int moments = tries(8, 200);
  // Moments may come before anything is committed. Then there are more of them.
  const auto too_few = [&] { return ever.size() <= static_cast<std::size_t>(moments); };
  for (int moment = 0; moment < moments || (too_few() && moment < 4 * moments); ++moment) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", moment " << moment);
    // Now and then there is a new shape; in between, the last one is resumed.
    TuneProcess process(directory.path(), {}, 1 + moment % 2, 1024 + 64 * (moment / 8), moment % 8 != 0);
    const int reports = static_cast<int>(random() % 120);
    bool running = true;
    for (int seen = 0; seen < reports && running; ++seen) running = process.read_line();
    ::poll(nullptr, 0, static_cast<int>(random() % 4));  // so that it is not always right after a report
    const std::set<std::string> before = committed();
    ASSERT_EQ(::kill(process.pid, SIGKILL), 0);
    process.wait();
    ASSERT_TRUE(all_gone()) << "a worker outlived its session";
    ever.insert(before.begin(), before.end());
    const auto opened = reopened();
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->check().value(), std::vector<std::string>());
    const std::set<std::string> after = committed();
    ASSERT_TRUE(std::includes(after.begin(), after.end(), ever.begin(), ever.end()));
  }
  EXPECT_FALSE(too_few()) << "the moments came too early to prove anything; seed " << seed;
  // The database can still be tuned into.
  TuneProcess last(directory.path(), {}, 1, 1024, true);
  last.drain();
  EXPECT_EQ(last.wait(), 0);
  EXPECT_TRUE(all_gone());
  EXPECT_FALSE(reopened()->winners(device_model(device))->empty());
}

TEST_F(Killed, WhileItsWorkerHangsTakesTheWorkerWithIt) {
  const TemporaryDirectory notes;
  TuneProcess process(directory.path(), {{.what = "hang", .when = "check", .memory = notes.path().string()}}, 1, 1024,
                      false);
  for (int waited_ms = 0; waited_ms < 60'000 && !std::filesystem::exists(notes.path() / "hanging"); ++waited_ms)
    ::poll(nullptr, 0, 1);
  ASSERT_TRUE(std::filesystem::exists(notes.path() / "hanging"));
  ::kill(process.pid, SIGKILL);
  process.wait();
  EXPECT_TRUE(all_gone());
}

TEST_F(Killed, AnInterruptAtRandomMomentsExits130AndLeavesAUsableAnswer) {
  int interrupted = 0;
  const int moments = tries(4, 40);
  for (int moment = 0; moment < moments; ++moment) {
    const int context = 1024 + 64 * moment;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", moment " << moment);
    TuneProcess process(directory.path(), {}, 1 + moment % 2, context, false);
    ASSERT_TRUE(process.read_line());  // "ready"
    const int reports = static_cast<int>(random() % 150);
    bool running = true;
    for (int seen = 0; seen < reports && running; ++seen) running = process.read_line();
    ASSERT_EQ(::kill(process.pid, SIGINT), 0);
    process.drain();
    const int status = process.wait();
    ASSERT_TRUE(all_gone());
    ASSERT_TRUE(WIFEXITED(status));
    // A process that is interrupted after its last report may be done already.
    EXPECT_TRUE(WEXITSTATUS(status) == 130 || (!running && WEXITSTATUS(status) == 0)) << WEXITSTATUS(status);
    interrupted += WEXITSTATUS(status) == 130;

    const auto opened = reopened();
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->check().value(), std::vector<std::string>());
    LayeredWinners layers;
    const std::vector<Winner> winners = opened->winners(device_model(device)).value();
    for (const Winner& winner : winners) layers.entries.push_back({winner, "user"});
    const WinnerTable table = WinnerTable::build(device, layers);
    for (const Shape& shape :
         {Shape{.batch = 1, .longest_context = context}, Shape{.batch = 4, .longest_context = context}}) {
      double best = 0;
      const std::vector<Trial> stored =
          opened->trials(device_model(device), to_json(request.problem), to_json(canonical(shape)), "cold").value();
      for (const Trial& trial : stored) {
        if (trial.median_us > 0) best = best == 0 ? trial.median_us : std::min(best, trial.median_us);
      }
      if (best == 0) continue;
      // If something was measured, the look-up finds it, and not one of the losers.
      const Choice found = table.find(request.problem, shape);
      EXPECT_EQ(found.provenance, Provenance::exact);
      EXPECT_LE(found.tuned_us, best * 1.05);
    }
  }
  EXPECT_GE(interrupted, moments / 2) << "seed " << seed;
}

}  // namespace
}  // namespace leanattn::worker_test
