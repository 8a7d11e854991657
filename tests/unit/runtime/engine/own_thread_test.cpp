// own_thread_test.cpp -- threads of the library do not receive the signals of the process.
#include "runtime/engine/own_thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <thread>

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
  // Nothing has room for such a stack.
  pthread_attr_t before, large;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_init(&large);
  ASSERT_EQ(pthread_attr_setstacksize(&large, std::size_t{1} << 46), 0);
  std::thread thread;
  ASSERT_EQ(pthread_setattr_default_np(&large), 0);
  const bool started = ensure_own_thread(thread, [] {});
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  if (started) thread.join();
  EXPECT_FALSE(started);
  ASSERT_TRUE(ensure_own_thread(thread, [] {}));
  thread.join();
}

}  // namespace
}  // namespace leanattn
