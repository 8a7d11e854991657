// compile_turn_test.cpp -- one compiler per kernel across processes: who waits, who does not, and what death does.
#include "cache/cubin/compile_turn.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <thread>

#include <csignal>
#include "cache/cubin/cubin_db.hpp"

#include "cache_fixture.hpp"

namespace leanattn {
namespace {

using namespace cache_test;
using std::chrono::milliseconds;

const std::string kKey = cubin_key("source", {}, "13.0", "sm_90a"), kOther = cubin_key("other", {}, "13.0", "sm_90a");

/// One byte from one process to another.
struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends.data()), 0); }
  ~Pipe() {
    for (const int end : ends) ::close(end);
  }
  void tell() const { EXPECT_EQ(::write(ends[1], "x", 1), 1); }
  void listen() const {
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
  }
  std::array<int, 2> ends{};
};

TEST(CompileTurn, IsHeldByOneAtATimeWithinAProcess) {
  const TemporaryDirectory directory;
  CompileTurn first = CompileTurn::wait(directory.path(), kKey);
  EXPECT_TRUE(first.held());
  EXPECT_FALSE(CompileTurn::wait(directory.path(), kKey, milliseconds(0)).held());
  EXPECT_TRUE(CompileTurn::wait(directory.path(), kOther, milliseconds(0)).held()) << "another kernel's is free";
  first = CompileTurn();
  EXPECT_TRUE(CompileTurn::wait(directory.path(), kKey, milliseconds(0)).held());
}

TEST(CompileTurn, OfAProcessThatIsKilledGoesToTheNext) {
  const TemporaryDirectory directory;
  const Pipe holds;
  const pid_t holder = start_process([&] {
    const CompileTurn turn = CompileTurn::wait(directory.path(), kKey);
    holds.tell();
    ::pause();
    return 0;
  });
  holds.listen();
  EXPECT_FALSE(CompileTurn::wait(directory.path(), kKey, milliseconds(0)).held());
  ::kill(holder, SIGKILL);
  EXPECT_EQ(wait_for(holder), 128 + SIGKILL);
  EXPECT_TRUE(CompileTurn::wait(directory.path(), kKey, milliseconds(0)).held());
}

TEST(CompileTurn, WhereNothingCanBeLockedNobodyWaits) {
  EXPECT_FALSE(CompileTurn::wait("/nonexistent", kKey).held());
  const TemporaryDirectory directory;
  std::filesystem::create_symlink("/dev/null", directory / "cubin.lock");
  EXPECT_FALSE(CompileTurn::wait(directory.path(), kKey).held()) << "links are not followed";
}

TEST(CompileTurn, OfThirtyTwoProcessesThatMissAKernelOneMakesIt) {
  const TemporaryDirectory directory;
  const ScopedVariable patience("LEANATTN_BUSY_TIMEOUT_MS", "120000");
  static_cast<void>(
      open_cubin_db(directory.path(), nullptr));  // the database is there, as it is on any but the first day
  constexpr int kProcesses = 32, kMade = 1, kFound = 2;
  const Pipe missed, start;
  std::array<pid_t, kProcesses> children{};
  for (pid_t& child : children) {
    child = start_process([&] {
      const auto cache = open_cubin_db(directory.path(), nullptr);
      if (cache->load(kKey)) return 3;
      missed.tell();
      start.listen();  // nobody goes on before everybody has missed
      const CompileTurn turn = cache->wait_for_turn(kKey);
      if (cache->load(kKey)) return kFound;
      cache->store(kKey, {std::vector<std::uint8_t>(100000, 0x90), "{}"});
      return kMade;
    });
  }
  for (int i = 0; i < kProcesses; ++i) missed.listen();
  for (int i = 0; i < kProcesses; ++i) start.tell();
  int made = 0, found = 0;
  for (const pid_t child : children) {
    const int status = wait_for(child);
    made += status == kMade;
    found += status == kFound;
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(found, kProcesses - 1);
}

TEST(CompileTurn, ACacheThatOthersDoNotSeeMakesNobodyWait) {
  const auto memory = open_cubin_db(std::nullopt, nullptr);
  EXPECT_FALSE(memory->wait_for_turn(kKey).held());
  const TemporaryDirectory directory;
  const ScopedVariable nothing_on_disk("LEANATTN_CUBIN_CACHE_MB", "0");
  EXPECT_FALSE(open_cubin_db(directory.path(), nullptr)->wait_for_turn(kKey).held());
}

TEST(CompileTurn, IsHandedOnByAStoppedHolderToOneWhoWaits) {
  const TemporaryDirectory directory;
  const pid_t stopped = start_process([&] {
    const CompileTurn held = CompileTurn::wait(directory.path(), kKey);
    ::raise(SIGSTOP);
    return held.held() ? 0 : 1;
  });
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status));
  CompileTurn next = CompileTurn::wait(directory.path(), kKey, std::chrono::hours(1));
  EXPECT_TRUE(next.held()) << "at once";
  EXPECT_FALSE(CompileTurn::wait(directory.path(), kKey, std::chrono::milliseconds(0)).held())
      << "a third waits for the second";
  next = CompileTurn();
  EXPECT_TRUE(CompileTurn::wait(directory.path(), kKey, std::chrono::milliseconds(0)).held());
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(wait_for(stopped), 0);
}

}  // namespace
}  // namespace leanattn
