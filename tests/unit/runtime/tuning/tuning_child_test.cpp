// tuning_child_test.cpp -- programs that are not what they should be: shell scripts stand in for the leanattn program.
// Also where the program is looked for.
#include "runtime/tuning/tuning_child.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "runtime/tuning/program.hpp"
#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

constexpr std::chrono::milliseconds kLong{600'000}, kNone{0};

class TuningChild : public ::testing::Test {
 protected:
  TuningChild() {
    order_.shapes = {{.batch = 1, .longest_context = 1024}};
    order_.budget = kLong;
    order_.uuid = "GPU-of-the-test";
  }
  void TearDown() override {
    errno = 0;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child was not reaped";
    EXPECT_EQ(errno, ECHILD);
  }

  /// A program with this body, whose $NOTE is a file for the test to read.
  std::filesystem::path script(const std::string& body) {
    const std::filesystem::path file = directory_ / "program";
    std::ofstream(file) << "#!/bin/sh\nNOTE='" << note() << "'\n" << body << "\n";
    ::chmod(file.c_str(), 0700);
    return file;
  }
  std::string note() const { return (directory_ / "note").string(); }
  std::string noted() const {
    std::ifstream file(note());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TuningOutcome run(const std::string& body, TuningPatience patience = {.before_stop = kLong, .before_kill = kLong}) {
    return run_tuning_child(script(body), order_, observer_, patience);
  }
  void expect_error(const TuningOutcome& outcome, ErrorCode code, const std::string& what) {
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code, code);
    EXPECT_NE(outcome.error->message.find(what), std::string::npos) << outcome.error->message;
  }

  const TemporaryDirectory directory_{std::filesystem::temp_directory_path()};
  TuningOrder order_;
  TuningObserver observer_;
};

TEST_F(TuningChild, GetsTheOrderItsCommandAndOneGpu) {
  const auto outcome = run(R"(cat > "$NOTE"; echo "$1 $CUDA_VISIBLE_DEVICES" >> "$NOTE"; echo '{"is":"end"}')");
  EXPECT_FALSE(outcome.error) << outcome.error->message;
  EXPECT_EQ(noted(), to_json(order_) + "tune-order GPU-of-the-test\n");
}

TEST_F(TuningChild, ResultsAndWarningsAreKept) {
  const auto outcome = run(
      R"(echo '{"is":"result","shape":0,"median_us":5,"read_limit_us":4,"default_us":6,"candidates":3,"rejected":1,"incorrect":0,"finished":true}'
echo '{"is":"result","shape":7,"median_us":5,"read_limit_us":4,"default_us":6,"candidates":3,"rejected":1,"incorrect":0,"finished":true}'
echo '{"is":"warning","text":"mind the gap"}'; echo '{"is":"end"}')");
  EXPECT_FALSE(outcome.error);
  ASSERT_EQ(outcome.results.size(), 1u) << "shape 7 was not ordered";
  EXPECT_EQ(outcome.results[0].median_us, 5);
  EXPECT_EQ(outcome.warnings, std::vector<std::string>{"mind the gap"});
}

TEST_F(TuningChild, AFloodOfMessagesLeavesLittleBehind) {
  const auto outcome = run(R"sh(seq -f '{"is":"warning","text":"warning %.0f"}' 5000
seq -f '{"is":"result","shape":0,"median_us":%.0f,"read_limit_us":4,"default_us":6,"candidates":3,"rejected":1,"incorrect":0,"finished":true}' 5000
echo '{"is":"end"}')sh");
  EXPECT_FALSE(outcome.error) << outcome.error->message;
  ASSERT_EQ(outcome.warnings.size(), 32u);
  EXPECT_EQ(outcome.warnings.front(), "warning 1");
  ASSERT_EQ(outcome.results.size(), 1u);
  EXPECT_EQ(outcome.results[0].median_us, 5000);
}

TEST_F(TuningChild, LongWarningsAreCutBetweenCharactersAndRepeatedOnesKeptOnce) {
  const auto outcome = run(R"sh(text=$(head -c 30001 /dev/zero | sed 's/\x00/\xc3\xa4/g')
for i in 1 2 3; do printf '{"is":"warning","text":"x%s"}\n' "$text"; done
echo '{"is":"end"}')sh");
  EXPECT_FALSE(outcome.error) << outcome.error->message;
  ASSERT_EQ(outcome.warnings.size(), 1u);
  std::string cut = "x";
  for (int i = 0; i < 1023; ++i) cut += "\xc3\xa4";
  EXPECT_EQ(outcome.warnings[0], cut + "...");
}

TEST_F(TuningChild, ItsErrorIsHandedOn) {
  expect_error(run(R"(echo '{"is":"error","code":4,"message":"no GPU here","hint":"","log":""}'; exit 3)"),
               ErrorCode::no_device, "no GPU here");
}

TEST_F(TuningChild, AnEarlyEndSaysHowAndWithWhichWords) {
  expect_error(run("echo 'tune-order: unknown command' >&2; exit 2"), ErrorCode::internal,
               "exited with code 2; it said: tune-order: unknown command");
  expect_error(run("kill -9 $$"), ErrorCode::internal, "killed by signal 9");
  expect_error(run("exit 0"), ErrorCode::internal, "exited with code 0");
}

TEST_F(TuningChild, WhatIsNoMessageEndsItAtOnce) {
  const auto outcome = run("echo 'leanattn 0.0.9'; exec sleep 600");
  expect_error(outcome, ErrorCode::internal, "does not answer as the leanattn program does: 'leanattn 0.0.9'");
  EXPECT_NE(outcome.error->hint.find("doctor"), std::string::npos);
  expect_error(run("exec cat /dev/zero"), ErrorCode::internal, "more than 1 MiB");
  expect_error(run("yes >&2 & printf '\\033[31mred\\n'; wait"), ErrorCode::internal, "[31mred");
}

TEST_F(TuningChild, SilenceBeyondTheBudgetIsEndedInTwoSteps) {
  order_.budget = std::chrono::milliseconds(1);
  // It heeds the signal and reports what it has.
  const auto heeded =
      run(R"(trap 'echo "{\"is\":\"warning\",\"text\":\"stopped\"}"; echo "{\"is\":\"end\"}"; exit 0' TERM
sleep 600 >&- 2>&- & wait)",
          {.before_stop = std::chrono::milliseconds(50), .before_kill = kLong});
  if (heeded.error) {
    // The signal came before the trap was set.
    EXPECT_NE(heeded.error->message.find("killed by signal 15"), std::string::npos) << heeded.error->message;
  } else {
    EXPECT_EQ(heeded.warnings, std::vector<std::string>{"stopped"});
  }
  expect_error(run("trap '' TERM; while :; do sleep 1; done", {.before_stop = kNone, .before_kill = kNone}),
               ErrorCode::internal, "did not end within 0 ms of its budget");
}

TEST_F(TuningChild, WhatItLeavesBehindIsKilled) {
  const auto outcome = run(R"(sleep 600 >&- 2>&- & echo $! > "$NOTE"; echo '{"is":"end"}')");
  EXPECT_FALSE(outcome.error);
  const pid_t orphan = std::stoi(noted());
  // It is a child of init now, which may take a moment to reap it.
  while (::kill(orphan, 0) == 0) {
    std::ifstream stat("/proc/" + std::to_string(orphan) + "/stat");
    std::string number, name, state;
    if (!(stat >> number >> name >> state) || state == "Z") break;
    ::poll(nullptr, 0, 1);
  }
}

TEST_F(TuningChild, OneThatClosesItsOutputIsNotWaitedForForLong) {
  expect_error(run("exec >&-; exec sleep 600"), ErrorCode::internal, "killed by signal 9");
}

TEST_F(TuningChild, TheObserverStopsOrKillsIt) {
  observer_ = [](const TuningProgress*) { return TuningWish::kill; };
  const auto killed = run("exec sleep 600");
  EXPECT_TRUE(killed.stopped);
  EXPECT_FALSE(killed.error);
  observer_ = [](const TuningProgress* news) {
    return news != nullptr && news->best_us == 2.5 ? TuningWish::stop : TuningWish::go_on;
  };
  const auto stopped = run(
      R"(echo '{"is":"progress","shape":0,"phase":"race","done":1,"total":2,"best_us":2.5,"elapsed_s":1}'; exec sleep 600)");
  EXPECT_TRUE(stopped.stopped);
}

TEST_F(TuningChild, NothingOfTheHostReachesItButTheEnvironment) {
  const int left_open = ::open("/dev/null", O_RDONLY);
  sigset_t blocked, before, after;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const auto outcome =
      run(R"(ls /proc/self/fd | wc -l > "$NOTE"; grep SigBlk /proc/self/status >> "$NOTE"; echo '{"is":"end"}')");
  pthread_sigmask(SIG_SETMASK, &before, &after);
  ::close(left_open);
  EXPECT_FALSE(outcome.error);
  EXPECT_EQ(sigismember(&after, SIGTERM), 1) << "the host's mask changed";
  EXPECT_NE(noted().find("SigBlk:\t0000000000000000\n"), std::string::npos) << noted();
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
  EXPECT_EQ(noted().substr(0, 2), "4\n") << "three standard streams, and the folder that ls reads";
#endif
}

TEST_F(TuningChild, AHostThatIgnoresItsChildrenStillGetsTheResult) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const auto outcome = run(R"(echo '{"is":"warning","text":"heard"}'; echo '{"is":"end"}')");
  ::signal(SIGCHLD, before);
  EXPECT_FALSE(outcome.error) << outcome.error->message;
  EXPECT_EQ(outcome.warnings, std::vector<std::string>{"heard"});
}

TEST_F(TuningChild, AFileThatIsNoProgramIsAnError) {
  const auto outcome = run_tuning_child(directory_ / "missing", order_, {});
  expect_error(outcome, ErrorCode::internal, "cannot start");
}

TEST_F(TuningChild, TheProgramIsTheNamedOneThenThatOfTheEnvironmentThenThatOfThePath) {
  const std::string path = std::getenv("PATH");
  std::filesystem::create_directory(directory_ / "folder");
  const std::filesystem::path named = script("exit 0"), in_path = directory_ / "folder/leanattn";
  std::filesystem::copy_file(named, in_path);
  ::unsetenv("LEANATTN_PROGRAM");
  ::setenv("PATH", ("relative:" + (directory_ / "folder").string()).c_str(), 1);
  EXPECT_EQ(find_leanattn_program(named.string()).value(), named);
  EXPECT_EQ(find_leanattn_program("").value(), in_path);
  ::setenv("LEANATTN_PROGRAM", named.c_str(), 1);
  EXPECT_EQ(find_leanattn_program("").value(), named);
  ::setenv("LEANATTN_PROGRAM", "/nonexistent/leanattn", 1);
  const auto wrong = find_leanattn_program("");
  ::unsetenv("LEANATTN_PROGRAM");
  ::setenv("PATH", "/nonexistent", 1);
  const auto none = find_leanattn_program("");
  ::setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(wrong.error().message.find("LEANATTN_PROGRAM is /nonexistent/leanattn"), std::string::npos);
  EXPECT_FALSE(find_leanattn_program(directory_.path().string())) << "a folder is no program";
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  EXPECT_NE(none.error().hint.find("LEANATTN_PROGRAM"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
