// isolation_test.cpp -- what a candidate does to the process that runs it costs only the candidate.
#include <algorithm>
#include <iterator>

#include "cache/layers.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/thoroughness.hpp"
#include "worker_fixture.hpp"

namespace leanattn::worker_test {
namespace {

struct Case {
  const char* what;
  TrialStatus status;
  const char* says;  // what the reason contains

  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.what; }
};

constexpr Case kCases[] = {
    {"hang", TrialStatus::timeout, "did not answer within 30 ms"},
    {"segv", TrialStatus::launch_fail, "killed by signal 11"},
    {"abort", TrialStatus::launch_fail, "killed by signal 6"},
    {"kill", TrialStatus::launch_fail, "killed by signal 9"},
    {"exit", TrialStatus::launch_fail, "exited with code 7"},
    {"garbage", TrialStatus::launch_fail, "bytes that are no frame"},
    {"oversized", TrialStatus::launch_fail, "a frame of 4294967295"},
    {"unasked", TrialStatus::launch_fail, "nonsense"},
    {"torn", TrialStatus::launch_fail, "exited with code 0 in the middle of an answer"},
    {"context_lost", TrialStatus::launch_fail, "an illegal address was touched"},
    {"out_of_memory", TrialStatus::launch_fail, "out of memory"},
};

class BadCandidates : public WorkerSession, public ::testing::WithParamInterface<Case> {
 protected:
  /// On every change each kind of fault comes at one of two moments, and at night at both.
  static bool has_turn(std::size_t moment) {
    const auto* const at =
        std::find_if(std::begin(kCases), std::end(kCases), [](const Case& one) { return one.what == GetParam().what; });
    return in_turn((static_cast<std::size_t>(at - kCases) + moment) % 2, 2);
  }

  void expect_they_alone_paid(const Result<TuneSummary>& summary) {
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_TRUE(summary->shapes[0].finished);
    expect_right_winner(*summary);
    int with_reason = 0;
    std::map<std::string, int> stored;
    for (const Trial& trial : trials()) {
      ++stored[trial.config];
      if (!planted(spec_of(trial))) {
        EXPECT_NE(trial.status, GetParam().status) << trial.config << ": " << trial.reason;
        continue;
      }
      if (trial.status == GetParam().status && trial.reason.find(GetParam().says) != std::string::npos) {
        ++with_reason;
      } else {
        EXPECT_NE(trial.reason.find("lost its worker with 2 other grids"), std::string::npos) << trial.reason;
      }
    }
    EXPECT_GT(with_reason, 0);
    for (const auto& [config, count] : stored) EXPECT_EQ(count, 1) << config;
  }
};

TEST_P(BadCandidates, CostThemselvesWhenTheyAreChecked) {
  if (!has_turn(0)) GTEST_SKIP() << "its other moment has its turn";
  faults = {{.what = GetParam().what, .when = "check", .load = "bulk", .stages = 3}};
  expect_they_alone_paid(run());
  EXPECT_GT(backend->restarts(), 0);
}

TEST_P(BadCandidates, CostThemselvesWhenTheyAreTimedWithOthers) {
  if (!has_turn(1)) GTEST_SKIP() << "its other moment has its turn";
  faults = {{.what = GetParam().what, .when = "time", .load = "bulk", .stages = 3}};
  expect_they_alone_paid(run());
  EXPECT_GT(backend->restarts(), 0);
}

INSTANTIATE_TEST_SUITE_P(Isolation, BadCandidates, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.what); });

class Isolation : public WorkerSession {};

TEST_F(Isolation, AWrongKernelNeverWins) {
  faults = {{.what = "wrong", .when = "check", .load = "bulk"}};
  const auto summary = run();
  ASSERT_TRUE(summary) << summary.error().message;
  expect_right_winner(*summary);
  EXPECT_GT(summary->shapes[0].incorrect, 0);
  for (const Trial& trial : trials(TrialStatus::ok)) EXPECT_FALSE(planted(spec_of(trial))) << trial.config;
  EXPECT_EQ(backend->restarts(), 0);
}

TEST_F(Isolation, OneThatBreaksDuringTheRaceLeavesItAndTheRaceGoesOn) {
  const TemporaryDirectory counts;
  // Such a candidate survives its first sample and ends its worker in the next one: the screen keeps it, and the race
  // finds out.
  faults = {{.what = "segv", .when = "time", .load = "bulk", .after = 1, .memory = counts.path().string()}};
  effort.race_size = 12;
  const auto summary = run();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_TRUE(summary->shapes[0].finished);
  expect_right_winner(*summary);
  int dropped = 0;
  std::map<std::string, int> stored;
  for (const Trial& trial : trials()) {
    ++stored[trial.config];
    dropped += trial.status == TrialStatus::launch_fail;
    if (trial.status == TrialStatus::launch_fail) {
      EXPECT_TRUE(planted(spec_of(trial))) << trial.config << " is blamed for another: " << trial.reason;
      EXPECT_EQ(trial.median_us, 0);
    }
  }
  EXPECT_GT(dropped, 0);
  for (const auto& [config, count] : stored) EXPECT_EQ(count, 1) << config;
}

TEST_F(Isolation, WhereEveryCandidateBreaksInTheRaceNothingWinsAndTheReasonIsSaid) {
  effort = {.specs = 1,
            .grids_per_spec = 1,
            .sweep_specs = 0,
            .refine_specs = 0,
            .twin_specs = 0,
            .refine_generations = 0,
            .race_size = 2};
  for (const int candidates : {1, 2}) {
    SCOPED_TRACE(candidates);
    const TemporaryDirectory counts;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
    // Each survives its first sample and ends its worker in the next one.
    faults = {{.what = "segv", .when = "time", .after = 1, .memory = counts.path().string()}};
    const Config usual = default_config({device, request.problem, request.shapes[0]});
    request.open_winners = [&](const DeviceModel&, const Environment&) {
      LayeredWinners layers;
      layers.entries.push_back({Winner{.problem = to_json(request.problem),
                                       .shape = to_json(request.shapes[0]),
                                       .policy = "cold",
                                       .config = to_json(usual),
                                       .median_us = 1},
                                "shipped"});
      return by_problem(std::move(layers));
    };
    // All others are out before the race.
    if (candidates == 1) {
      for (const LoadPath load : {LoadPath::ldg, LoadPath::cp_async, LoadPath::bulk, LoadPath::tensor}) {
        if (load != usual.spec.load)
          faults.push_back({.what = "wrong", .when = "check", .load = std::string(to_string(load))});
      }
    }
    const auto summary = run();
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary->shapes[0].raced, candidates);
    EXPECT_EQ(summary->shapes[0].median_us, 0);
    EXPECT_FALSE(summary->shapes[0].finished);
    EXPECT_TRUE(summary->shapes[0].no_winner.starts_with("no candidate is left; the last one failed so:"))
        << summary->shapes[0].no_winner;
    EXPECT_NE(summary->shapes[0].no_winner.find("killed by signal 11"), std::string::npos);
    EXPECT_TRUE(db->winners(device_model(device))->empty());
    std::map<std::string, int> stored;
    for (const Trial& trial : trials()) ++stored[trial.config];
    for (const auto& [config, count] : stored) EXPECT_EQ(count, 1) << config;
  }
}

TEST_F(Isolation, ARoundWithoutCandidatesWhoseWorkerDiesIsAnError) {
  WorkerOptions options{.command = worker_command(FAKE_WORKER, faults)};
  options.limit = [&](const WorkerCall& call) {
    if (call.kind == WorkerCall::Kind::time) {  // it is dead before it is asked
      siginfo_t died;
      EXPECT_EQ(::kill(backend->worker_pid(), SIGKILL), 0);
      EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(backend->worker_pid()), &died, WEXITED | WNOWAIT), 0);
    }
    return std::chrono::milliseconds(120'000);
  };
  compiler = std::make_shared<WorkerCompiler>(device, options);
  backend = std::make_unique<WorkerBackend>(device, request.problem, request.policy, options, compiler, &cancel);
  ASSERT_TRUE(backend->begin_shape(request.shapes[0]));
  const auto timed = backend->time({});
  ASSERT_FALSE(timed);
  EXPECT_EQ(timed.error().code, ErrorCode::launch_failed);
}

TEST_F(Isolation, TheReasonQuotesTheWorkersLastWordsInOneLine) {
  faults = {{.what = "segv", .when = "check", .load = "bulk", .stages = 3}};
  ASSERT_TRUE(run());
  int quoted = 0;
  for (const Trial& trial : trials(TrialStatus::launch_fail)) {
    quoted += trial.reason.find("it said: about to touch") != std::string::npos;
    for (const char c : trial.reason) EXPECT_GE(static_cast<unsigned char>(c), ' ') << trial.reason;
  }
  EXPECT_GT(quoted, 0);
}

TEST_F(Isolation, MegabytesOnItsStandardStreamsHoldNothingUp) {
  faults = {{.what = "chatter", .when = "check", .load = "bulk", .stages = 3}};
  const auto summary = run();
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_TRUE(trials(TrialStatus::launch_fail).empty());
  EXPECT_TRUE(trials(TrialStatus::timeout).empty());
  EXPECT_EQ(backend->restarts(), 0);
}

TEST_F(Isolation, ACompilerThatCrashesOrHangsCostsTheKernel) {
  for (const auto& [what, says] : std::map<std::string, std::string>{
           {"segv", "killed by signal 11"}, {"hang", "did not answer within 30 ms"}, {"torn", "exited with code 0"}}) {
    SCOPED_TRACE(what);
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
    faults = {{.what = what, .when = "compile", .load = "bulk", .stages = 3}};
    const auto summary = run();
    ASSERT_TRUE(summary) << summary.error().message;
    expect_right_winner(*summary);
    const std::vector<Trial> failed = trials(TrialStatus::compile_fail);
    EXPECT_FALSE(failed.empty());
    for (const Trial& trial : failed) {
      EXPECT_TRUE(planted(spec_of(trial))) << trial.config;
      EXPECT_NE(trial.reason.find(says), std::string::npos) << trial.reason;
    }
    EXPECT_EQ(backend->restarts(), 0) << "the device's worker has no part in it";
  }
}

TEST_F(Isolation, TheProgramsOwnWorkerCompilesWhatThisProcessDoes) {
  const TemporaryDirectory cache;
  const WorkerOptions options{.command = {LEANATTN_PROGRAM, "worker"}, .cache_directory = cache.path().string()};
  compiler = std::make_shared<WorkerCompiler>(device, options);
  const KernelSpec spec = base_spec(device.arch, request.problem);
  const auto compiled = compiler->compile(spec);
  ASSERT_TRUE(compiled) << compiled.error().message << compiled.error().log;
  const auto here = compile(emit(spec).value());
  ASSERT_TRUE(here) << here.error().message;
  EXPECT_EQ(compiled->registers, here->resources.registers);
  EXPECT_EQ(compiler->find(spec)->cubin, here->cubin);
  EXPECT_TRUE(std::filesystem::exists(cache.path() / "cubin.db")) << "and keeps it";
  KernelSpec invalid = spec;
  invalid.warps = 99;
  EXPECT_FALSE(compiler->compile(invalid));
}

TEST_F(Isolation, ADeviceOnWhichNothingSurvivesEndsTheSession) {
  faults = {{.what = "segv", .when = "check"}};
  const auto summary = run();
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code, ErrorCode::context_lost);
  EXPECT_NE(summary.error().message.find("16 candidates in a row"), std::string::npos) << summary.error().message;
  EXPECT_NE(summary.error().hint.find("--resume"), std::string::npos);
  EXPECT_EQ(backend->restarts() + 1, WorkerBackend::kMostLossesInARow);
  EXPECT_FALSE(trials(TrialStatus::launch_fail).empty());
}

TEST_F(Isolation, AWorkerThatNeverGetsReadyEndsTheSession) {
  for (const char* when : {"open", "begin"}) {
    for (const char* what : {"segv", "context_lost"}) {
      faults = {{.what = what, .when = when}};
      const auto summary = run();
      ASSERT_FALSE(summary) << when;
      EXPECT_EQ(summary.error().code, ErrorCode::context_lost);
      EXPECT_EQ(backend->restarts() + 1, WorkerBackend::kMostStarts);
      EXPECT_TRUE(trials(TrialStatus::launch_fail).empty()) << "no candidate is to blame";
    }
  }
}

TEST_F(Isolation, ADeviceThatIsLostBetweenCandidatesCostsTheFirstOneOnly) {
  for (const char* when : {"check", "time"}) {
    SCOPED_TRACE(when);
    const TemporaryDirectory counts;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, nullptr));
    // One candidate ends its worker, and after that no worker can begin the shape.
    faults = {{.what = "segv", .when = when, .load = "bulk"},
              {.what = "context_lost", .when = "begin", .after = 1, .memory = counts.path().string()}};
    const auto summary = run();
    ASSERT_FALSE(summary);
    EXPECT_EQ(summary.error().code, ErrorCode::context_lost);
    EXPECT_NE(summary.error().message.find("workers in a row"), std::string::npos) << summary.error().message;
    const std::vector<Trial> blamed = trials(TrialStatus::launch_fail);
    EXPECT_LE(blamed.size(), 1u) << "the others were not launched";
    for (const Trial& trial : blamed) EXPECT_EQ(spec_of(trial).load, LoadPath::bulk) << trial.config;
  }
}

TEST_F(Isolation, AProgramThatIsNoWorkerIsAnErrorAndNotAHang) {
  for (const std::string program : {"/bin/true", "/bin/echo", "/nonexistent/worker"}) {
    WorkerOptions options{.command = {program}};
    compiler = std::make_shared<WorkerCompiler>(device, options);
    backend = std::make_unique<WorkerBackend>(device, request.problem, request.policy, options, compiler, nullptr);
    EXPECT_FALSE(backend->start()) << program;
    EXPECT_FALSE(backend->compile(base_spec(device.arch, request.problem))) << program;
  }
}

TEST_F(Isolation, ResumeDoesNotTryThemAgain) {
  faults = {{.what = "segv", .when = "check", .load = "bulk"}};
  progress = [&](const TuneProgress& p) { cancel = cancel || p.phase == "sweep"; };
  ASSERT_TRUE(run());
  const std::size_t before = trials(TrialStatus::launch_fail).size();
  ASSERT_GT(before, 0u);
  std::map<std::string, int> failed_before;
  for (const Trial& trial : trials(TrialStatus::launch_fail)) ++failed_before[trial.config];
  cancel = false;
  progress = {};
  request.resume = true;
  const auto resumed = run();
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_TRUE(resumed->shapes[0].finished);
  std::map<std::string, int> failed_after;
  for (const Trial& trial : trials(TrialStatus::launch_fail)) ++failed_after[trial.config];
  for (const auto& [config, count] : failed_before) EXPECT_EQ(failed_after[config], count) << config;
}

TEST_F(Isolation, AnInterruptDoesNotWaitForAHangAndBlamesNobody) {
  faults = {{.what = "hang", .when = "time", .load = "bulk"}};
  make_backend();
  WorkerOptions patient{.command = worker_command(FAKE_WORKER, faults),
                        .limit = [](const WorkerCall&) { return std::chrono::hours(24); }};
  backend = std::make_unique<WorkerBackend>(device, request.problem, request.policy, patient, compiler, &cancel);
  // This progress comes before the first such kernel is checked. It is timed all the same once it was checked, and
  // hangs.
  progress = [&](const TuneProgress& p) {
    const auto says = [&](const char* text) { return p.candidate.find(text) != std::string::npos; };
    cancel = cancel || (says("_bulk_") && says(" G="));
  };
  const auto summary = run_session(request, device, environment, *backend, *db, effort, progress, &cancel);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_TRUE(summary->interrupted);
  EXPECT_FALSE(summary->shapes[0].finished);
  EXPECT_EQ(backend->worker_pid(), -1) << "it hung, and was ended";
  EXPECT_TRUE(trials(TrialStatus::timeout).empty());
  EXPECT_TRUE(trials(TrialStatus::launch_fail).empty());
}

TEST_F(Isolation, AnInterruptAtTheTerminalDoesNotReachTheWorker) {
  make_backend();
  ASSERT_TRUE(backend->start());
  EXPECT_EQ(::getpgid(backend->worker_pid()), backend->worker_pid()) << "a process group of its own";
  EXPECT_NE(::getpgid(0), backend->worker_pid());
}

TEST_F(Isolation, ACandidateThatOnlyFailsBesideAnotherIsFoundToo) {
  faults = {{.what = "segv", .when = "time", .load = "ldg", .beside = "cp_async"}};
  make_backend();
  ASSERT_TRUE(backend->begin_shape(request.shapes[0]));
  std::vector<Config> round;
  for (const LoadPath load : {LoadPath::bulk, LoadPath::ldg, LoadPath::cp_async, LoadPath::tensor}) {
    for (const KernelSpec& spec : all_specs(device, request.problem)) {
      if (spec.load != load) continue;
      round.push_back({.spec = spec, .grid = 132});
      ASSERT_TRUE(backend->compile(spec));
      ASSERT_EQ(backend->check(round.back())->verdict, Verdict::passed);
      break;
    }
  }
  ASSERT_EQ(round.size(), 4u);
  const auto timed = backend->time(round);
  ASSERT_FALSE(timed);
  EXPECT_EQ(timed.error().code, ErrorCode::launch_failed);
  std::vector<Config> sound;
  std::copy_if(round.begin(), round.end(), std::back_inserter(sound),
               [&](const Config& config) { return !backend->condemned(config); });
  EXPECT_EQ(sound.size(), 3u);
  EXPECT_TRUE(backend->time(sound));
}

TEST_F(Isolation, AWorkerThatDiesOnceForNoReasonCostsNobody) {
  const TemporaryDirectory counts;
  faults = {{.what = "segv", .when = "time", .load = "ldg", .until = 1, .memory = counts.path().string()}};
  make_backend();
  ASSERT_TRUE(backend->begin_shape(request.shapes[0]));
  std::vector<Config> round;
  for (const KernelSpec& spec : all_specs(device, request.problem)) {
    if (round.size() == 6) break;
    const auto same_load = [&](const Config& config) { return config.spec.load == spec.load; };
    if (spec.load == LoadPath::ldg && std::any_of(round.begin(), round.end(), same_load)) continue;
    round.push_back({.spec = spec, .grid = 132});
    ASSERT_TRUE(backend->compile(spec));
    ASSERT_TRUE(backend->check(round.back()));
  }
  const auto timed = backend->time(round);
  ASSERT_TRUE(timed) << timed.error().message;
  EXPECT_EQ(timed->us.size(), round.size());
  EXPECT_EQ(backend->restarts(), 1);
  // The worker is killed from outside between two calls.
  ASSERT_EQ(::kill(backend->worker_pid(), SIGKILL), 0);
  siginfo_t died;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(backend->worker_pid()), &died, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(backend->check(round[0])->verdict, Verdict::passed);
  EXPECT_EQ(backend->restarts(), 2);
  for (const Config& config : round) EXPECT_FALSE(backend->condemned(config));
}

}  // namespace
}  // namespace leanattn::worker_test
