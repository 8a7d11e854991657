// stop_test.cpp -- what one and two signals do to the program.
#include "cli/console/stop.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "cli/console/console.hpp"

namespace leanattn {
namespace {

constexpr int kWentOn = 7, kNoFlag = 8;

/// Gets two signals, the second one after `pause`, and ends with kWentOn if the process is still there.
void get_two_signals(std::chrono::milliseconds pause) {
  const std::atomic<bool>* stop = stop_on_signals();
  if (stop->load()) _exit(kNoFlag);
  raise(SIGINT);
  if (!stop->load()) _exit(kNoFlag);
  if (pause.count() > 0) std::this_thread::sleep_for(pause);
  raise(SIGTERM);
  _exit(kWentOn);
}

TEST(StopDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(get_two_signals(std::chrono::milliseconds(400)), testing::ExitedWithCode(kExitInterrupted), "");
}

TEST(StopDeathTest, ASignalThatComesTwiceAtOnceIsOne) {
  // A busy machine may stop the process between the two, so one of several attempts is enough.
  const auto ends_well = [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) == kWentOn; };
  bool went_on = false;
  const auto note = [&](int status) { return went_on |= ends_well(status), true; };
  for (int attempt = 0; attempt < 5 && !went_on; ++attempt) EXPECT_EXIT(get_two_signals({}), note, "");
  EXPECT_TRUE(went_on);
}

}  // namespace
}  // namespace leanattn
