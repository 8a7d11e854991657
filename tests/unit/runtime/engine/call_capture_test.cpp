// call_capture_test.cpp -- an engine writes each of its calls exactly once, whatever happens to the file, other
// processes and fork().
#include "runtime/engine/call_capture.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/engine/call_capture_file.hpp"
#include "tests/quiet_fork.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

Shape shape_of(std::int64_t context) {
  return {.batch = 1, .max_batch = 0, .longest_context = context, .total_context = 0};
}

class CallCaptureTest : public ::testing::Test {
 protected:
  std::string file() const { return (directory_ / "capture.jsonl").string(); }
  CallCapture::Options options() const { return {.file = file(), .device = "Fictional 1", .sm_count = 132}; }
  static void count(CallCapture& capture, std::int64_t context, int times = 1,
                    Provenance provenance = Provenance::fallback) {
    Choice choice;
    choice.provenance = provenance;
    for (int i = 0; i < times; ++i)
      capture.count({}, shape_of(context), make_lookup_key({}, shape_of(context)), &choice);
  }
  CallCaptureSum sum() const { return read_call_capture(file()).value_or(CallCaptureSum{}); }
  std::int64_t lines() const {
    std::ifstream stream(file());
    return std::count(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>(), '\n');
  }
  /// The exit status of a child that runs `body`, or 128 + signal.
  template <class Body>
  static int in_child(Body&& body) {
    std::fflush(nullptr);  // else the child would print the buffer, too
    const pid_t child = quiet_fork();
    if (child == 0) body();
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  TemporaryDirectory directory_;
};

TEST_F(CallCaptureTest, CountsEveryPlanOfAnEngineByShapeAndAnswer) {
  const DecodeProblem problem;
  const Shape tuned = shape_of(8192), close = shape_of(8000), far = shape_of(100);
  Config config = tuned_config(problem, 64);
  {
    EngineParts parts = fictional_parts(layered({winner(problem, tuned, config)}));
    parts.call_capture = std::make_unique<CallCapture>(options());
    EngineCore engine(std::move(parts));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine.plan(problem, tuned, nullptr));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine.plan(problem, close, nullptr));
    ASSERT_TRUE(engine.plan(problem, far, nullptr));
    Shape invalid = tuned;
    invalid.batch = 0;
    ASSERT_FALSE(engine.plan(problem, invalid, nullptr));
    EXPECT_EQ(lines(), 0) << "nothing is written while plans are made";
  }
  const CallCaptureSum sum = this->sum();
  EXPECT_TRUE(sum.unreadable.empty());
  ASSERT_EQ(sum.shapes.size(), 3u) << "an invalid shape is not counted, because it cannot be tuned";
  EXPECT_EQ(sum.calls, 8);
  EXPECT_EQ(sum.lost_calls, 0);
  EXPECT_EQ(sum.shapes[0].problem, problem);
  EXPECT_EQ(sum.shapes[0].shape, tuned);
  EXPECT_EQ(sum.shapes[0].answers, (std::map<std::string, std::int64_t>{{"exact", 5}}));
  EXPECT_EQ(sum.shapes[1].shape, close);
  EXPECT_EQ(sum.shapes[1].answers, (std::map<std::string, std::int64_t>{{"bucket", 2}}));
  EXPECT_EQ(sum.shapes[2].shape, far);
  EXPECT_EQ(sum.shapes[2].answers, (std::map<std::string, std::int64_t>{{"nearest", 1}}));
  EXPECT_EQ(sum.devices, (std::map<std::string, std::int64_t>{{"Fictional 1", 8}}));
}

TEST_F(CallCaptureTest, FollowsAnswersThatAReloadChanges) {
  const DecodeProblem problem;
  const Shape shape = shape_of(8192);
  LayeredWinners winners;
  {
    EngineParts parts = fictional_parts();
    parts.open_winners = [&winners] { return by_problem(winners); };
    parts.call_capture = std::make_unique<CallCapture>(options());
    EngineCore engine(std::move(parts));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.plan(problem, shape, nullptr));
    winners = layered({winner(problem, shape, tuned_config(problem, 64))});
    winners.entries[0].winner.stale = true;
    engine.reload();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.plan(problem, shape, nullptr));
  }
  EXPECT_EQ(sum().shapes.at(0).answers, (std::map<std::string, std::int64_t>{{"exact", 4}, {"fallback", 3}}));
  std::ifstream stream(file());
  int stale = 0;
  for (std::string line; std::getline(stream, line);) {
    const auto record = call_capture_record_from_json(line);
    ASSERT_TRUE(record);
    if (record->line.stale) stale += static_cast<int>(record->line.calls);
  }
  EXPECT_EQ(stale, 4);
}

TEST_F(CallCaptureTest, CountsPlansThatFail) {
  {
    EngineParts parts = fictional_parts();
    parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> { return fail(ErrorCode::out_of_memory, "full"); };
    parts.call_capture = std::make_unique<CallCapture>(options());
    EngineCore engine(std::move(parts));
    for (int i = 0; i < 2; ++i) ASSERT_FALSE(engine.plan({}, shape_of(64), nullptr));
  }
  EXPECT_EQ(sum().shapes.at(0).answers, (std::map<std::string, std::int64_t>{{"failed", 2}}));
}

TEST_F(CallCaptureTest, WritesWhatCameSinceTheLastTimeOnly) {
  CallCapture capture(options());
  count(capture, 64, 3);
  EXPECT_TRUE(capture.flush());
  EXPECT_TRUE(capture.flush());
  EXPECT_EQ(lines(), 1) << "there is nothing new to write";
  count(capture, 64, 2);
  EXPECT_TRUE(capture.flush());
  EXPECT_EQ(lines(), 2);
  EXPECT_EQ(sum().calls, 5);
}

TEST_F(CallCaptureTest, WritesByItselfAfterAPeriod) {
  CallCapture::Options hurry = options();
  hurry.period = std::chrono::milliseconds(1);
  CallCapture capture(hurry);
  for (std::int64_t round = 1; round <= 3; ++round) {
    count(capture, 64);
    while (sum().calls < round) std::this_thread::yield();
  }
}

TEST_F(CallCaptureTest, LosesNothingAmongThreads) {
  constexpr int kThreads = 4, kCalls = 5000;
  {
    CallCapture::Options hurry = options();
    hurry.period = std::chrono::milliseconds(1);
    hurry.most_counts = 8;  // so that a full table, the period and the end all cause writes
    CallCapture capture(hurry);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kCalls; ++i) count(capture, 64 + i % 12);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  const CallCaptureSum sum = this->sum();
  EXPECT_TRUE(sum.unreadable.empty());
  EXPECT_EQ(sum.calls + sum.lost_calls, kThreads * kCalls);
}

TEST_F(CallCaptureTest, TellsProcessesThatShareAFileApart) {
  constexpr int kProcesses = 8, kRounds = 40;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = quiet_fork();
    if (child == 0) {
      {
        CallCapture capture(options());
        for (int round = 0; round < kRounds; ++round) {
          for (int i = 0; i < 20; ++i) count(capture, 64 + i);
          if (!capture.flush()) ::_exit(1);
        }
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const CallCaptureSum sum = this->sum();
  EXPECT_TRUE(sum.unreadable.empty()) << "line " << sum.unreadable[0].first << ": " << sum.unreadable[0].second;
  EXPECT_EQ(sum.calls, kProcesses * kRounds * 20);
  EXPECT_EQ(sum.shapes.size(), 20u);
}

TEST_F(CallCaptureTest, GivesEveryProcessAFileOfItsOwnWhereTheNameSaysSo) {
  CallCapture::Options options = this->options();
  options.file = (directory_ / "a%%b-%p-%x").string();
  pid_t child = 0;
  {
    CallCapture capture(options);
    count(capture, 64);
    child = quiet_fork();
    if (child == 0) {
      count(capture, 128, 2);
      ::_exit(capture.flush() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const auto calls = [&](pid_t process) {
    return read_call_capture(directory_ / ("a%b-" + std::to_string(process) + "-%x")).value_or(CallCaptureSum{}).calls;
  };
  EXPECT_EQ(calls(::getpid()), 1);
  EXPECT_EQ(calls(child), 2);
}

TEST_F(CallCaptureTest, CountsNothingTwiceOverAForkAndGoesOnOnBothSides) {
  {
    CallCapture capture(options());
    count(capture, 64, 3);  // the thread that writes runs at the time of the fork
    EXPECT_EQ(in_child([&] {
                count(capture, 64, 10);
                capture.~CallCapture();  // as when an engine is destroyed in the child
                ::_exit(0);
              }),
              0);
    EXPECT_EQ(sum().calls, 10) << "the parent writes its three calls itself";
    count(capture, 64, 2);
  }
  EXPECT_EQ(sum().calls, 15);
}

TEST_F(CallCaptureTest, WritesWhenTheProcessExitsWithAnEngineThatNobodyClosed) {
  EXPECT_EQ(in_child([&] {
              auto* leaked = new CallCapture(options());
              count(*leaked, 64, 7);
              std::exit(0);
            }),
            0);
  EXPECT_EQ(sum().calls, 7);
}

TEST_F(CallCaptureTest, AKillLosesOnlyWhatWasNotWrittenYet) {
  EXPECT_EQ(in_child([&] {
              CallCapture capture(options());
              count(capture, 64, 7);
              capture.flush();
              count(capture, 64, 5);
              ::raise(SIGKILL);
            }),
            128 + SIGKILL);
  const CallCaptureSum sum = this->sum();
  EXPECT_EQ(sum.calls, 7);
  EXPECT_TRUE(sum.unreadable.empty());
}

TEST_F(CallCaptureTest, KeepsWhatAFullDiskRefusedForTheNextTime) {
  EXPECT_EQ(in_child([&] {
              ::signal(SIGXFSZ, SIG_IGN);
              CallCapture capture(options());
              for (int i = 0; i < 10; ++i) count(capture, 64 + i);
              // No file may grow beyond this limit, so the write ends within a line.
              const rlimit little{1000, RLIM_INFINITY};
              if (::setrlimit(RLIMIT_FSIZE, &little) != 0) ::_exit(2);
              if (capture.flush()) ::_exit(3);
              if (std::filesystem::file_size(file()) != 1000) ::_exit(4);
              count(capture, 64);
              const rlimit plenty{RLIM_INFINITY, RLIM_INFINITY};
              if (::setrlimit(RLIMIT_FSIZE, &plenty) != 0) ::_exit(5);
              ::_exit(capture.flush() ? 0 : 6);
            }),
            0);
  const CallCaptureSum sum = this->sum();
  EXPECT_EQ(sum.calls, 11);
  ASSERT_EQ(sum.unreadable.size(), 1u) << "the line that was cut off, which is written again further down";
}

TEST_F(CallCaptureTest, HoldsNoMoreThanItsLimitWhileNothingCanBeWritten) {
  CallCapture::Options options = this->options();
  options.file = (directory_ / "not" / "there").string();
  options.most_counts = 16;
  CallCapture capture(options);
  for (int i = 0; i < 1000; ++i) count(capture, 64 + i);
  EXPECT_FALSE(capture.flush());
  std::filesystem::create_directory(directory_ / "not");
  EXPECT_TRUE(capture.flush());
  const auto sum = read_call_capture(options.file);
  ASSERT_TRUE(sum);
  EXPECT_LE(sum->shapes.size(), 32u);
  EXPECT_GE(sum->shapes.size(), 16u);
  EXPECT_EQ(sum->calls + sum->lost_calls, 1000) << "lost calls are counted";
}

TEST_F(CallCaptureTest, IsOffUnlessTheVariableNamesAFileThatCanBeWritten) {
  const DeviceFacts device = fictional_gpu();
  std::string warning;
  ::unsetenv("LEANATTN_CAPTURE");
  EXPECT_EQ(CallCapture::from_environment(device, &warning), nullptr);
  ::setenv("LEANATTN_CAPTURE", "", 1);
  EXPECT_EQ(CallCapture::from_environment(device, &warning), nullptr);
  EXPECT_EQ(warning, "");
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  for (const std::string& bad : {directory_.path().string(), (directory_ / "not" / "there").string(),
                                 (directory_ / "pipe").string(), std::string(5000, 'x')}) {
    ::setenv("LEANATTN_CAPTURE", bad.c_str(), 1);
    warning.clear();
    EXPECT_EQ(CallCapture::from_environment(device, &warning), nullptr) << bad;
    EXPECT_NE(warning.find("LEANATTN_CAPTURE: cannot write " + bad), std::string::npos) << warning;
  }
  ::setenv("LEANATTN_CAPTURE", file().c_str(), 1);
  warning.clear();
  EXPECT_NE(CallCapture::from_environment(device, &warning), nullptr);
  EXPECT_EQ(warning, "");
  struct stat status {};
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ::unsetenv("LEANATTN_CAPTURE");
}

CallCaptureLine line_of(std::int64_t context, std::int64_t calls, const std::string& answer) {
  return {.problem = {},
          .shape = shape_of(context),
          .calls = calls,
          .answer = answer,
          .stale = false,
          .device = "GPU",
          .sm_count = 132,
          .written = "2026-01-01T00:00:00.000Z"};
}

TEST(CallCaptureFile, ReadsBackWhatALineSays) {
  CallCaptureLine line = line_of(4096, 12345678901, "without_pdl");
  line.problem.pdl = true;
  line.problem.features.window = 128;
  line.problem.features.score = "score * 2";
  line.shape.batch = 3;
  line.stale = true;
  const auto record = call_capture_record_from_json(to_json(line));
  ASSERT_TRUE(record) << record.error().message;
  EXPECT_EQ(record->line.problem, line.problem);
  EXPECT_EQ(record->line.shape, line.shape);
  EXPECT_EQ(to_json(record->line), to_json(line));
  EXPECT_EQ(call_capture_record_from_json(lost_calls_to_json(9))->lost_calls, 9);
}

TEST(CallCaptureFile, PutsTheMostFrequentFirstAndOneShapeOfAllBatchSizes) {
  CallCaptureLine sized = line_of(64, 4, "exact");
  sized.shape.max_batch = 8;
  std::stringstream text;
  text << to_json(line_of(128, 6, "exact")) << "\n"
       << to_json(sized) << "\r\n\n"
       << to_json(line_of(64, 3, "bucket")) << "\n"
       << to_json(line_of(32, 6, "model")) << "\n"
       << lost_calls_to_json(5);
  const CallCaptureSum sum = sum_call_capture(text);
  EXPECT_TRUE(sum.unreadable.empty());
  ASSERT_EQ(sum.shapes.size(), 3u);
  EXPECT_EQ(sum.shapes[0].shape, shape_of(64));
  EXPECT_EQ(sum.shapes[0].calls, 7);
  EXPECT_EQ(sum.shapes[1].shape.longest_context, 128) << "equal counts are in the order of their texts";
  EXPECT_EQ(sum.shapes[2].shape.longest_context, 32);
  EXPECT_EQ(sum.calls, 19);
  EXPECT_EQ(sum.lost_calls, 5);
  EXPECT_EQ(sum.answers, (std::map<std::string, std::int64_t>{{"bucket", 3}, {"exact", 10}, {"model", 6}}));
}

TEST(CallCaptureFile, SkipsUnreadableLinesAndNamesThem) {
  const std::string good = to_json(line_of(64, 1, "exact"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::string> bad = {"hello",
                                        "{}",
                                        "[1]",
                                        "null",
                                        "7",
                                        good.substr(0, good.size() / 2),
                                        with("\"leanattn_capture\":1", "\"leanattn_capture\":2"),
                                        with("\"calls\":1", "\"calls\":0"),
                                        with("\"calls\":1", "\"calls\":-1"),
                                        with("\"calls\":1", "\"calls\":1.5"),
                                        with("\"calls\":1", "\"calls\":99999999999999999999"),
                                        with("\"exact\"", "\"Exact!\""),
                                        with("\"exact\"", "7"),
                                        with("\"head_dim\":128", "\"head_dim\":100"),
                                        with("\"longest_context\":64", "\"longest_context\":-64"),
                                        with("\"problem\"", "\"question\""),
                                        std::string(100000, '[')};
  std::stringstream text;
  for (const std::string& line : bad) text << line << "\n";
  text << good << "\n";
  const CallCaptureSum sum = sum_call_capture(text);
  EXPECT_EQ(sum.calls, 1);
  ASSERT_EQ(sum.unreadable.size(), bad.size());
  EXPECT_EQ(sum.unreadable_lines, static_cast<std::int64_t>(bad.size()));
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(sum.unreadable[i].first, static_cast<std::int64_t>(i + 1));
    EXPECT_NE(sum.unreadable[i].second, "") << bad[i];
  }
}

TEST(CallCaptureFile, CountsWhatItCannotReadAndKeepsTheFirstOfIt) {
  std::stringstream text;
  for (int i = 0; i < 1000; ++i) text << "nonsense\n";
  const CallCaptureSum sum = sum_call_capture(text);
  EXPECT_EQ(sum.unreadable_lines, 1000);
  EXPECT_EQ(sum.unreadable.size(), 20u);
}

TEST(CallCaptureFile, SaturatesInsteadOfOverflowing) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::stringstream text;
  for (int i = 0; i < 3; ++i) text << to_json(line_of(64, most, "exact")) << "\n" << lost_calls_to_json(most) << "\n";
  const CallCaptureSum sum = sum_call_capture(text);
  EXPECT_EQ(sum.calls, most);
  EXPECT_EQ(sum.lost_calls, most);
  EXPECT_EQ(sum.shapes[0].calls, most);
}

TEST(CallCaptureFile, ThatIsNotThereOrADirectoryIsAnErrorThatNamesIt) {
  EXPECT_EQ(read_call_capture("/not/there").error().code, ErrorCode::not_found);
  EXPECT_EQ(read_call_capture("/tmp").error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(read_call_capture("/dev/zero").error().code, ErrorCode::invalid_argument);
  EXPECT_NE(read_call_capture("/not/there").error().message.find("/not/there"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
