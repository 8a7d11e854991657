// own_thread_test.cpp -- threads of the library do not receive the signals of the process.
#include "runtime/engine/own_thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

namespace leanattn {
namespace {

bool blocked(const sigset_t& mask, int signal) { return sigismember(&mask, signal) == 1; }

TEST(OwnThread, GetsNoSignalsButItsOwnFaults) {
  sigset_t own, before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  start_own_thread([&own] { pthread_sigmask(SIG_SETMASK, nullptr, &own); }).join();
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
  start_own_thread([] {}).join();
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_TRUE(blocked(after, SIGUSR2));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace leanattn
