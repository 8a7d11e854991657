// threads_test.cpp -- threads of the library do not receive the signals of the process, and may be missing.
#include "runtime/threads.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/no_threads.hpp"

namespace leanattn {
namespace {

bool blocked(const sigset_t& mask, int signal) { return sigismember(&mask, signal) == 1; }

TEST(OwnThread, GetsNoSignalsButItsOwnFaults) {
  sigset_t own, before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  std::thread thread;
  ASSERT_TRUE(ensure_own_thread(thread, [&own] { pthread_sigmask(SIG_SETMASK, nullptr, &own); }));
  thread.join();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPIPE, SIGHUP})
    EXPECT_TRUE(blocked(own, signal)) << signal;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) EXPECT_FALSE(blocked(own, fault)) << fault;
  for (int signal = 1; signal < 32; ++signal) EXPECT_EQ(blocked(before, signal), blocked(after, signal)) << signal;
}

TEST(OwnThread, KeepsWhatItsStarterHadBlocked) {
  sigset_t fault, before;
  sigemptyset(&fault);
  sigaddset(&fault, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &fault, &before);
  std::thread thread;
  ASSERT_TRUE(ensure_own_thread(thread, [] {}));
  thread.join();
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_TRUE(blocked(after, SIGUSR2));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(OwnThread, IsStartedOnce) {
  std::thread thread;
  ASSERT_TRUE(ensure_own_thread(thread, [] {}));
  const std::thread::id first = thread.get_id();
  EXPECT_TRUE(ensure_own_thread(thread, [] { ADD_FAILURE() << "a second thread"; }));
  EXPECT_EQ(thread.get_id(), first);
  thread.join();
}

TEST(OwnThread, IsMissedWithoutAnError) {
  std::thread thread;
  {
    const NoThreads none;
    EXPECT_FALSE(ensure_own_thread(thread, [] {}));
    const auto started = start_own_thread([] {});
    ASSERT_FALSE(started.has_value());
    EXPECT_EQ(started.error().code, ErrorCode::out_of_memory);
    EXPECT_NE(started.error().hint.find("ulimit -u"), std::string::npos) << started.error().hint;
  }
  ASSERT_TRUE(ensure_own_thread(thread, [] {}));
  thread.join();
}

TEST(ThreadGroup, GoesOnWithTheThreadsThatThereAre) {
  std::atomic<int> ran = 0;
  ThreadGroup threads;
  EXPECT_TRUE(threads.start([&] { ++ran; }));
  {
    const NoThreads none;
    EXPECT_FALSE(threads.start([&] { ++ran; }));
    threads.start(3, [&] { ++ran; });
  }
  threads.start(2, [&] { ++ran; });
  EXPECT_FALSE(threads.empty());
  threads.join();
  EXPECT_EQ(ran, 3);
  EXPECT_TRUE(threads.empty());
}

TEST(ThreadGroup, JoinsWhereItIsLeft) {
  std::atomic<bool> ran = false;
  try {
    ThreadGroup threads;
    threads.start([&] { ran = true; });
    throw std::runtime_error("left");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace leanattn
