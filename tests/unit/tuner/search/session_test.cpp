// session_test.cpp -- whole tuning sessions on a simulated GPU: what may win, what is stored, and when a session stops.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "cache/layers.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/tuner/search/session_fixture.hpp"

namespace leanattn {
namespace {

class TuneSession : public SessionTest {};

TEST_F(TuneSession, FindsAConfigurationCloseToTheExhaustiveBest) {
  request.shapes = {{.batch = 1, .longest_context = 1024},
                    {.batch = 1, .longest_context = 65536},
                    {.batch = 16, .longest_context = 8192}};
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  for (const TunedShape& tuned : summary->shapes) {
    const double best = exhaustive_best(gpu, tuned.shape);
    gpu.set_shape(tuned.shape);
    EXPECT_TRUE(tuned.finished);
    EXPECT_LE(gpu.true_us(tuned.winner), best * 1.05)
        << "context " << tuned.shape.longest_context << ", seed " << kSeed;
    EXPECT_GT(tuned.raced, 1);
    EXPECT_GT(tuned.default_us, 0);
    EXPECT_LE(tuned.low_us, tuned.median_us);
    EXPECT_LE(tuned.median_us, tuned.high_us);
    EXPECT_GT(tuned.read_limit_us, 0);
  }
}

TEST_F(TuneSession, NothingIsTimedBeforeItsCheck) {
  SimulatedGpu gpu(request.problem, kSeed);
  ASSERT_TRUE(run(gpu));
  EXPECT_TRUE(gpu.timed_without_check.empty());
}

TEST_F(TuneSession, APlantedFastButWrongKernelNeverWins) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.wrong = [](const Config& config) { return config.spec.load == LoadPath::bulk; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_NE(summary->shapes[0].winner.spec.load, LoadPath::bulk);
  EXPECT_GT(summary->shapes[0].incorrect, 0);
  EXPECT_EQ(trials(TrialStatus::incorrect).size(), static_cast<std::size_t>(summary->shapes[0].incorrect));
  for (const Trial& trial : trials(TrialStatus::ok)) EXPECT_EQ(trial.config.find("\"bulk\""), std::string::npos);
  for (const auto& [config, count] : gpu.samples) EXPECT_EQ(config.find("\"bulk\""), std::string::npos);
}

TEST_F(TuneSession, WhenEverythingIsWrongNothingWins) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.wrong = [](const Config&) { return true; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->shapes[0].median_us, 0);
  EXPECT_TRUE(gpu.samples.empty());
  EXPECT_TRUE(db->winners(device_model(device))->empty());
}

TEST_F(TuneSession, EveryCandidateIsStoredOnce) {
  SimulatedGpu gpu(request.problem, kSeed);
  ASSERT_TRUE(run(gpu));
  std::map<std::string, int> stored;
  for (const Trial& trial : all_trials()) ++stored[trial.config];
  for (const auto& [config, count] : stored) EXPECT_EQ(count, 1) << config;
  for (const auto& [config, count] : gpu.samples) EXPECT_TRUE(stored.contains(config)) << config;
}

TEST_F(TuneSession, LosersCostOneSampleAndFinalistsMany) {
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  int once = 0;
  for (const auto& [config, count] : gpu.samples) once += count == 1;
  EXPECT_GT(once, static_cast<int>(gpu.samples.size()) / 2);
  EXPECT_GE(gpu.samples.at(to_json(summary->shapes[0].winner)), effort.confirm_rounds_min);
}

TEST_F(TuneSession, TheSummaryAgreesWithTheDatabase) {
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  const auto winners = db->winners(device_model(device));
  ASSERT_TRUE(winners);
  ASSERT_EQ(winners->size(), 1u);
  EXPECT_EQ((*winners)[0].config, to_json(summary->shapes[0].winner));
  EXPECT_EQ((*winners)[0].median_us, summary->shapes[0].median_us);
  EXPECT_GT((*winners)[0].read_limit_us, 0);
}

TEST_F(TuneSession, TheBudgetIsKeptWithTheBestAnswerSoFar) {
  request.shapes = {{.batch = 1, .longest_context = 1024}, {.batch = 16, .longest_context = 65536}};
  for (const int budget_ms : {300, 1000, 2000}) {
    SimulatedGpu gpu(request.problem, kSeed);
    gpu.launches_per_sample = 6;  // as where a launch takes as long as the second shape's
    request.budget = std::chrono::milliseconds(budget_ms);
    const auto summary = run(gpu);
    ASSERT_TRUE(summary);
    // When time is up, a batch, one compilation a thread and the preparation of a shape may have begun. The three
    // rounds that decide something follow.
    EXPECT_LE(summary->seconds, budget_ms / 1000.0 + 0.5) << budget_ms;
    ASSERT_EQ(summary->shapes.size(), 2u);
    EXPECT_FALSE(summary->shapes[0].finished) << budget_ms;
    EXPECT_GT(summary->shapes[0].median_us, 0) << budget_ms;
  }
}

TEST_F(TuneSession, AShapeThatTheBudgetDidNotReachSaysSo) {
  request.shapes = {{.batch = 1, .longest_context = 1024}, {.batch = 1, .longest_context = 2048}};
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.compile_s = 20;  // the first kernel alone takes more than the budget
  request.budget = std::chrono::milliseconds(1000);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_FALSE(summary->shapes[1].finished);
  EXPECT_EQ(summary->shapes[1].median_us, 0);
  EXPECT_EQ(summary->shapes[1].winner, default_config({device, request.problem, request.shapes[1]}));
}

TEST_F(TuneSession, ResumingAFinishedSessionMeasuresNothing) {
  SimulatedGpu first(request.problem, kSeed);
  const auto before = run(first);
  ASSERT_TRUE(before);
  request.resume = true;
  SimulatedGpu second(request.problem, kSeed + 1);
  const auto after = run(second);
  ASSERT_TRUE(after);
  EXPECT_EQ(second.compiles, 0);
  EXPECT_EQ(second.shapes_begun, 0);
  EXPECT_TRUE(second.checks.empty());
  EXPECT_TRUE(after->shapes[0].finished);
  EXPECT_EQ(after->shapes[0].median_us, before->shapes[0].median_us);
  EXPECT_EQ(after->shapes[0].winner, before->shapes[0].winner);
}

TEST_F(TuneSession, ResumeIgnoresTrialsOfOtherSoftware) {
  environment.driver_release = "580.1", environment.nvrtc_version = "13.0";
  SimulatedGpu first(request.problem, kSeed);
  ASSERT_TRUE(run(first));
  request.resume = true;
  const Environment before = environment;
  std::uint64_t seed = kSeed;
  for (const auto update :
       {+[](Environment& e) { e.library_revision = "r2"; }, +[](Environment& e) { e.driver_release = "580.2"; },
        +[](Environment& e) { e.nvrtc_version = "13.1"; }}) {
    environment = before;
    update(environment);
    SimulatedGpu second(request.problem, ++seed);
    ASSERT_TRUE(run(second));
    EXPECT_GT(second.samples.size(), first.samples.size() / 2);
  }
}

TEST_F(TuneSession, CancelKeepsTheBestSoFarAndResumeGoesOn) {
  constexpr int kInTheRace = -1;
  for (const int cancel_at : {1, 45, kInTheRace}) {
    std::string warning;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, &warning));
    request.resume = false;
    std::atomic<bool> cancel = false;
    SimulatedGpu first(request.problem, kSeed);
    first.before_round = [&](int round) {
      if (round == cancel_at) cancel = true;
    };
    progress = [&](const TuneProgress& p) {
      if (cancel_at == kInTheRace && std::string(p.phase) == "race" && p.done == 2)
        cancel = true;  // in the third round
    };
    const auto summary = run(first, &cancel);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_TRUE(summary->interrupted);
    EXPECT_FALSE(summary->shapes[0].finished);
    // The best so far has three rounds beside what look-ups answer all the same.
    if (cancel_at != kInTheRace) {
      EXPECT_LE(first.rounds, cancel_at + 1 + 3);
    }
    EXPECT_GT(summary->shapes[0].median_us, 0);
    EXPECT_GT(summary->shapes[0].looked_up_us, 0);
    EXPECT_EQ(trials(TrialStatus::ok).size(), 1u);
    EXPECT_GE(trials(TrialStatus::ok).front().samples, 3);

    request.resume = true;
    progress = {};
    SimulatedGpu second(request.problem, kSeed + 1);
    const auto resumed = run(second);
    ASSERT_TRUE(resumed);
    EXPECT_TRUE(resumed->shapes[0].finished);
    std::map<std::string, int> stored;
    for (const Trial& trial : all_trials()) ++stored[trial.config];
    for (const auto& [config, count] : stored) {
      EXPECT_TRUE(config == to_json(summary->shapes[0].winner) || count == 1) << config;
    }
  }
}

TEST_F(TuneSession, ResumingGoesOnAfterARaceThatTheBudgetCutAlthoughItsWinnerWasConfirmed) {
  request.budget = std::chrono::seconds(1000);
  SimulatedGpu first(request.problem, kSeed);
  progress = [&](const TuneProgress& p) {
    if (p.phase == "race" && p.elapsed_s < 900) first.pass(930 - p.elapsed_s);  // the confirmation has the rest
  };
  const auto cut = run(first);
  ASSERT_TRUE(cut) << cut.error().message;
  EXPECT_FALSE(cut->shapes[0].finished);
  ASSERT_FALSE(trials(TrialStatus::ok).empty());
  for (const Trial& trial : trials(TrialStatus::ok)) {
    EXPECT_GE(trial.samples, effort.confirm_rounds_min);
    EXPECT_EQ(trial.reason, "the search was cut short");
  }

  request.resume = true;
  progress = {};
  SimulatedGpu second(request.problem, kSeed + 1), third(request.problem, kSeed + 2);
  const auto resumed = run(second);
  ASSERT_TRUE(resumed) << resumed.error().message;
  EXPECT_TRUE(resumed->shapes[0].finished);
  EXPECT_FALSE(second.samples.empty());
  const auto again = run(third);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->shapes[0].finished);
  EXPECT_TRUE(third.samples.empty()) << "it came to its end";
}

TEST_F(TuneSession, ACandidateThatBreaksInTheLastRoundsOfACutRaceIsNotConfirmed) {
  request.budget = std::chrono::seconds(1000);
  SimulatedGpu gpu(request.problem, kSeed);
  std::optional<int> cut_at;  // the round
  progress = [&](const TuneProgress& p) {
    if (p.phase != "race" || cut_at) return;
    gpu.pass(930 - p.elapsed_s);  // the confirmation has the rest
    cut_at = gpu.rounds;
  };
  const Config usual = default_config({device, request.problem, request.shapes[0]}),
               answer = look_up(request.shapes[0]);
  std::string broken;
  gpu.dies = [&](const Config& config, int round) {
    if (!cut_at || round != *cut_at + 1 || config == usual || config == answer) return false;
    if (broken.empty()) broken = to_json(config);
    return broken == to_json(config);
  };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  ASSERT_FALSE(broken.empty());
  EXPECT_GT(summary->shapes[0].median_us, 0);
  EXPECT_NE(to_json(summary->shapes[0].winner), broken);
  std::map<std::string, int> stored;
  for (const Trial& trial : all_trials()) ++stored[trial.config];
  for (const auto& [config, count] : stored) EXPECT_EQ(count, 1) << config;
  EXPECT_EQ(trials(TrialStatus::launch_fail).size(), 1u);
}

TEST_F(TuneSession, ALaunchFailureCostsOnlyItsCandidate) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.fails_check = [](const Config& config) { return config.spec.stages == 3; };
  gpu.fails_timing = [](const Config& config) { return config.spec.load == LoadPath::bulk && config.spec.stages == 2; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_TRUE(summary->shapes[0].finished);
  EXPECT_FALSE(trials(TrialStatus::launch_fail).empty());
  const KernelSpec& spec = summary->shapes[0].winner.spec;
  EXPECT_FALSE(spec.stages == 3 || (spec.load == LoadPath::bulk && spec.stages == 2));
}

TEST_F(TuneSession, ALostContextIsAnErrorThatKeepsWhatWasStored) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.kills_context = [&gpu](const Config&) { return gpu.checks.size() > 90; };
  const auto summary = run(gpu);
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().code, ErrorCode::context_lost);
  EXPECT_EQ(trials(TrialStatus::launch_fail).size(), 1u);
  EXPECT_GT(trials(TrialStatus::pruned).size(), 0u);
}

TEST_F(TuneSession, AnErrorOfTheDeviceIsHeldAgainstNoCandidate) {
  for (const char* when : {"check", "round"}) {
    SCOPED_TRACE(when);
    SetUpDatabase();
    SimulatedGpu gpu(request.problem, kSeed);
    if (std::string(when) == "check") {
      gpu.lost_before = [&gpu](const Config&) { return gpu.checks.size() > 90; };
    } else {
      gpu.lost_in = [](int round) { return round == 5; };  // of the screen, with several candidates
    }
    const auto summary = run(gpu);
    ASSERT_FALSE(summary);
    EXPECT_EQ(summary.error().code, ErrorCode::context_lost);
    EXPECT_GT(gpu.rounds, 0);
    EXPECT_TRUE(trials(TrialStatus::launch_fail).empty()) << "--resume would leave it out";
  }
}

TEST_F(TuneSession, AShapeThatDoesNotFitIsLeftOutAndTheOthersAreTuned) {
  request.shapes = {{.batch = 1, .longest_context = 4096},
                    {.batch = 256, .longest_context = 131072},
                    {.batch = 1, .longest_context = 8192}};
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.fits = [](const Shape& shape) { return shape.batch < 256; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  ASSERT_EQ(summary->shapes.size(), 3u);
  for (const std::size_t fitting : {0u, 2u}) {
    EXPECT_TRUE(summary->shapes[fitting].finished);
    EXPECT_GT(summary->shapes[fitting].median_us, 0);
    EXPECT_EQ(summary->shapes[fitting].no_winner, "");
  }
  const TunedShape& large = summary->shapes[1];
  EXPECT_FALSE(large.finished);
  EXPECT_EQ(large.median_us, 0);
  EXPECT_EQ(large.shape, request.shapes[1]);
  EXPECT_EQ(large.no_winner, "there is too little memory for it (cuMemAlloc: out of memory)");
  EXPECT_EQ(db->winners(device_model(device))->size(), 2u);
  ASSERT_TRUE(summary->out_of_memory);
  // Where nothing fits there is nothing to show.
  request.shapes = {request.shapes[1], {.batch = 256, .longest_context = 65536}};
  const auto none = run(gpu);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(none.error().hint, "Free memory.");
}

TEST_F(TuneSession, AReadLimitOfFewerBytesIsNotStoredForAll) {
  // Each of the query tokens has a list of its own, and a cache has four times one list.
  for (const int q_len : {4, 8}) {
    SCOPED_TRACE(q_len);
    SetUpDatabase();
    request.problem = {.q_heads = 8, .kv_heads = 1};
    request.problem.features = {.page_size = 64, .q_len = q_len, .selection_block = 64};
    SimulatedGpu gpu(request.problem, kSeed);
    const auto summary = run(gpu);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(db->read_limits(device_model(device), "cold")->size(), q_len == 4 ? 1u : 0u);
  }
}

TEST_F(TuneSession, TimesThatShouldBeColdAndAreWarmSaySo) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.stays_in_l2 = true;
  ASSERT_TRUE(run(gpu));
  EXPECT_FALSE(trials(TrialStatus::ok).empty());
  for (const Trial& trial : trials(TrialStatus::ok)) EXPECT_EQ(trial.throttle, "what is read stays in L2");
}

TEST_F(TuneSession, RejectedKernelsAreStoredAndNeverRun) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.spills = [](const KernelSpec& spec) { return spec.load == LoadPath::ldg; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_GT(summary->shapes[0].rejected, 0);
  EXPECT_EQ(trials(TrialStatus::compile_fail).size(), static_cast<std::size_t>(summary->shapes[0].rejected));
  for (const auto& [config, count] : gpu.checks) EXPECT_EQ(config.find("\"ldg\""), std::string::npos);
}

TEST_F(TuneSession, ThrottledRoundsDoNotCount) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.throttled = [](int round) { return round % 3 == 1; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  gpu.set_shape(request.shapes[0]);
  // A round of three times the time would be seen here.
  EXPECT_LT(summary->shapes[0].median_us, gpu.true_us(summary->shapes[0].winner) * 1.1);
  for (const Trial& trial : trials(TrialStatus::ok)) EXPECT_TRUE(trial.throttle.empty());
}

TEST_F(TuneSession, AGpuThatIsAlwaysThrottledIsStillTunedAndSaysSo) {
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.throttled = [](int) { return true; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_GT(summary->shapes[0].median_us, 0);
  for (const Trial& trial : trials(TrialStatus::ok)) EXPECT_EQ(trial.throttle, "hardware thermal");
}

TEST_F(TuneSession, TiesGoTheSameWayWhateverTheThreads) {
  std::vector<Config> winners;
  for (const int threads : {1, 2, 5}) {
    std::string warning;
    db = std::move(*TuningDb::open(std::nullopt, OpenMode::read_write, &warning));
    request.compile_threads = threads;
    SimulatedGpu gpu(request.problem, kSeed);
    gpu.noise = 0, gpu.personality = 0;
    const auto summary = run(gpu);
    ASSERT_TRUE(summary);
    winners.push_back(summary->shapes[0].winner);
    const auto stored = trials(TrialStatus::ok);
    ASSERT_GT(stored.size(), 1u) << "the finalists of an exact simulation tie";
    for (const Trial& trial : stored) EXPECT_LE(to_json(winners.back()), trial.config);
  }
  EXPECT_EQ(winners[0], winners[1]);
  EXPECT_EQ(winners[0], winners[2]);
}

TEST_F(TuneSession, AnEarlierWinnerIsTriedAgain) {
  SimulatedGpu first(request.problem, kSeed);
  const auto before = run(first);
  ASSERT_TRUE(before);
  effort.specs = 1;
  effort.refine_generations = 0;
  SimulatedGpu second(request.problem, kSeed + 1);
  ASSERT_TRUE(run(second));
  EXPECT_TRUE(second.samples.contains(to_json(before->shapes[0].winner)));
}

TEST_F(TuneSession, RevalidationMeasuresOnlyFinalistsAndEndsStaleness) {
  request.shapes = {{.batch = 1, .longest_context = 1024}, {.batch = 1, .longest_context = 65536}};
  environment.driver_version = 13000;
  SimulatedGpu first(request.problem, kSeed);
  const auto before = run(first);
  ASSERT_TRUE(before);
  environment.driver_version = 13010;
  request.revalidate = true;
  SimulatedGpu second(request.problem, kSeed + 1);
  const auto after = run(second);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_LE(second.samples.size(), 2 * 8u) << "a shape's winner, at most six close to it, the default";
  EXPECT_LT(second.samples.size(), first.samples.size() / 10);
  EXPECT_LE(second.compiles, 2 * 8);
  EXPECT_TRUE(second.timed_without_check.empty());
  for (std::size_t i = 0; i < 2; ++i) {
    const TunedShape& shape = after->shapes[i];
    EXPECT_TRUE(shape.finished);
    EXPECT_GE(second.samples.at(to_json(before->shapes[i].winner)), effort.confirm_rounds_min);
    EXPECT_GT(shape.default_us, 0);
    second.set_shape(shape.shape);
    EXPECT_LE(second.true_us(shape.winner), second.true_us(before->shapes[i].winner) * 1.02) << "seed " << kSeed;
  }
  const auto winners = db->winners(device_model(device)).value();
  ASSERT_EQ(winners.size(), 2u);
  for (const Winner& winner : winners) {
    EXPECT_FALSE(winner.stale);
    EXPECT_EQ(winner.environment.driver_version, 13010);
  }
}

TEST_F(TuneSession, RevalidationCrownsAnotherFinalistWhereTheWinnerHasBecomeSlowOrWrong) {
  environment.driver_version = 13000;
  SimulatedGpu first(request.problem, kSeed);
  first.personality = 0.01;  // so that there are others close to the winner
  const auto before = run(first);
  ASSERT_TRUE(before);
  const Config old_winner = before->shapes[0].winner;
  environment.driver_version = 13010;
  request.revalidate = true;
  SimulatedGpu second(request.problem, kSeed + 1);
  second.personality = 0.01;
  second.wrong = [&](const Config& config) { return config == old_winner; };
  const auto after = run(second);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_FALSE(after->shapes[0].winner == old_winner);
  EXPECT_GT(after->shapes[0].median_us, 0);
  EXPECT_EQ(trials(TrialStatus::incorrect).size(), 1u);
  EXPECT_FALSE(second.samples.contains(to_json(old_winner)));
  EXPECT_FALSE(db->winners(device_model(device))->front().stale);
}

TEST_F(TuneSession, RevalidationTakesFinalistsOfTheWinnersOwnSoftware) {
  // Under another driver there is a time that nothing under the winner's comes near.
  environment.driver_version = 13000;
  Config other = default_config({device, request.problem, request.shapes[0]});
  other.grid = 77;
  Trial fast;
  fast.problem = to_json(request.problem), fast.shape = to_json(request.shapes[0]), fast.policy = "cold";
  fast.config = to_json(other), fast.status = TrialStatus::ok;
  fast.samples = 10, fast.median_us = fast.low_us = fast.high_us = 0.5;
  const auto session = db->begin_session(device_model(device), environment, "earlier");
  ASSERT_TRUE(session && db->add_trial(*session, fast));

  environment.driver_version = 13010;
  SimulatedGpu gpu(request.problem, kSeed);
  ASSERT_TRUE(run(gpu));
  ASSERT_FALSE(gpu.samples.contains(fast.config));
  const Winner stored = db->winners(device_model(device))->front();
  ASSERT_EQ(stored.environment.driver_version, 13010);

  environment.driver_version = 13020;
  request.revalidate = true;
  SimulatedGpu again(request.problem, kSeed + 1);
  ASSERT_TRUE(run(again));
  EXPECT_TRUE(again.samples.contains(stored.config));
  EXPECT_FALSE(again.samples.contains(fast.config));
}

TEST_F(TuneSession, RevalidationLeavesAShapeThatNobodyTunedAlone) {
  request.revalidate = true;
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary);
  EXPECT_FALSE(summary->shapes[0].finished);
  EXPECT_EQ(summary->shapes[0].median_us, 0);
  EXPECT_EQ(gpu.compiles, 0);
  EXPECT_EQ(gpu.shapes_begun, 0);
  EXPECT_TRUE(all_trials().empty());
}

TEST_F(TuneSession, RevalidationThatIsInterruptedKeepsTheStoredWinner) {
  environment.driver_version = 13000;
  SimulatedGpu first(request.problem, kSeed);
  const auto before = run(first);
  ASSERT_TRUE(before);
  environment.driver_version = 13010;
  request.revalidate = true;
  std::atomic<bool> cancel = false;
  SimulatedGpu second(request.problem, kSeed + 1);
  second.before_round = [&](int) { cancel = true; };
  const auto after = run(second, &cancel);
  ASSERT_TRUE(after);
  EXPECT_TRUE(after->interrupted);
  EXPECT_FALSE(after->shapes[0].finished);
  EXPECT_EQ(after->shapes[0].winner, before->shapes[0].winner);
  EXPECT_EQ(after->shapes[0].median_us, before->shapes[0].median_us);
  EXPECT_TRUE(db->winners(device_model(device))->front().stale) << "still usable, and still to be measured";
}

TEST_F(TuneSession, TheBudgetIsSharedByWeight) {
  request.shapes = {{.batch = 1, .longest_context = 1024},
                    {.batch = 1, .longest_context = 1536},
                    {.batch = 1, .longest_context = 2048}};
  request.weights = {1, 1, 6};
  request.budget = std::chrono::milliseconds(4000);
  std::vector<double> began;
  progress = [&](const TuneProgress& p) {
    while (began.size() <= static_cast<std::size_t>(p.shape_index)) began.push_back(p.elapsed_s);
  };
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  ASSERT_EQ(began.size(), 3u);
  // The first shape waits for the compiler and gets two of eight shares of four seconds. The second gets a seventh of
  // what is left.
  EXPECT_LE(began[1], 1.0 + 0.5);
  EXPECT_LE(began[2] - began[1], 0.5 + 0.5);
  for (const std::vector<double>& bad : {std::vector<double>{1}, {1, 1, 0}, {1, 1, -1}, {1, 1, std::nan("")}}) {
    request.weights = bad;
    EXPECT_EQ(run(gpu).error().code, ErrorCode::invalid_argument);
  }
}

TEST_F(TuneSession, DependentAndOrdinaryWinnersAreKeptApart) {
  SimulatedGpu ordinary(request.problem, kSeed);
  ASSERT_TRUE(run(ordinary));
  const DecodeProblem plain = request.problem;
  request.problem.pdl = true;
  SimulatedGpu dependent(request.problem, kSeed);
  const auto tuned = run(dependent);
  ASSERT_TRUE(tuned);
  EXPECT_TRUE(tuned->shapes[0].winner.spec.pdl);
  for (const Trial& trial : all_trials()) {
    const bool pdl = problem_from_json(trial.problem).value().pdl;
    EXPECT_EQ(config_from_json(trial.config).value().spec.pdl, pdl) << trial.config;
  }
  const auto winners = db->winners(device_model(device)).value();
  ASSERT_EQ(winners.size(), 2u);
  EXPECT_NE(winners[0].problem, winners[1].problem);
  LayeredWinners layers;
  for (const Winner& winner : winners) layers.entries.push_back({winner, "user"});
  const WinnerTable table = WinnerTable::build(device, layers);
  EXPECT_EQ(table.find(request.problem, request.shapes[0]).config, tuned->shapes[0].winner);
  EXPECT_EQ(table.find(plain, request.shapes[0]).provenance, Provenance::exact);
  EXPECT_FALSE(table.find(plain, request.shapes[0]).config.spec.pdl);
}

TEST_F(TuneSession, WhatWonWithTheOtherLaunchIsTried) {
  for (const bool first_pdl : {false, true}) {
    SCOPED_TRACE(first_pdl);
    SetUpDatabase();
    request.problem.pdl = first_pdl;
    effort = {.specs = 40};
    SimulatedGpu first(request.problem, kSeed);
    const auto before = run(first);
    ASSERT_TRUE(before);
    request.problem.pdl = !first_pdl;
    effort.specs = 1;
    effort.refine_generations = 0;
    SimulatedGpu second(request.problem, kSeed + 1);
    ASSERT_TRUE(run(second));
    Config switched = before->shapes[0].winner;
    switched.spec.pdl = !first_pdl;
    EXPECT_TRUE(second.samples.contains(to_json(switched)));
    for (const auto& [config, samples] : second.samples)
      EXPECT_EQ(config_from_json(config).value().spec.pdl, !first_pdl) << config;
  }
}

TEST_F(TuneSession, WhatWonForLikeHeadsIsTriedEarly) {
  effort = {.specs = 40};
  SimulatedGpu first(request.problem, kSeed);
  // A kernel wins that neither look-ups nor short sessions would come upon.
  first.wrong = [](const Config& config) { return config.spec.load != LoadPath::ldg; };
  const auto before = run(first);
  ASSERT_TRUE(before);
  ASSERT_EQ(before->shapes[0].winner.spec.load, LoadPath::ldg);
  const auto tried = [](const SimulatedGpu& gpu, const KernelSpec& spec) {
    return std::any_of(gpu.samples.begin(), gpu.samples.end(),
                       [&](const auto& sampled) { return config_from_json(sampled.first).value().spec == spec; });
  };
  // The same heads with pages are tried with one spec of the session's own, and with what won for the dense cache.
  request.problem.features.page_size = 16;
  effort.specs = 1;
  effort.refine_generations = 0;
  SimulatedGpu second(request.problem, kSeed + 1);
  ASSERT_TRUE(run(second));
  Config paged = before->shapes[0].winner;
  paged.spec.features.page_size = 16;
  EXPECT_TRUE(second.samples.contains(to_json(paged)));
  for (const auto& [config, samples] : second.samples)
    EXPECT_EQ(config_from_json(config).value().spec.features.page_size, 16) << config;
  // What won for these heads is not tried for others.
  KernelSpec won = paged.spec;
  request.problem.features.page_size = won.features.page_size = 32;
  request.problem.head_dim = won.head_dim = 64;
  ASSERT_TRUE(validate(won));
  SimulatedGpu third(request.problem, kSeed + 2);
  ASSERT_TRUE(run(third));
  EXPECT_FALSE(tried(third, won));
}

TEST_F(TuneSession, RaggedShapesAreTriedWithMoreAndLessCharged) {
  request.shapes = {{.batch = 16, .longest_context = 65536, .total_context = 65536 + 15 * 512}};
  SimulatedGpu gpu(request.problem, kSeed);
  ASSERT_TRUE(run(gpu));
  std::map<std::string, std::set<int>> charges;  // by kernel and grid
  for (const auto& [text, samples] : gpu.samples) {
    const Config config = config_from_json(text).value();
    charges[kernel_name(config.spec) + " " + std::to_string(config.grid)].insert(config.segment_cost);
  }
  std::size_t most = 0;
  for (const auto& [kernel, costs] : charges) most = std::max(most, costs.size());
  EXPECT_GE(most, 3u);
  // A batch of equal lengths has nothing to balance.
  request.shapes = {{.batch = 16, .longest_context = 4096}};
  SimulatedGpu even(request.problem, kSeed + 1);
  ASSERT_TRUE(run(even));
  for (const auto& [text, samples] : even.samples) EXPECT_EQ(config_from_json(text).value().segment_cost, 0) << text;
}

TEST_F(TuneSession, MixedStepsAreTunedAndLookedUpByTheirMix) {
  request.problem.features = {.page_size = 16, .q_len = kMostPrefillTokens, .ragged_q = true};
  std::vector<int> lengths(64, 4096), tokens(64, 1);
  lengths.push_back(8192), tokens.push_back(2048);
  const Shape chunk = shape_of(request.problem, {lengths, tokens});
  Shape prompt = chunk, unknown = chunk;
  prompt.mix = {.query_tokens = 64 + 8192}, unknown.mix = {};
  request.shapes = {chunk, prompt};
  SimulatedGpu gpu(request.problem, kSeed);
  // Another kernel than the default is fast beside the smaller chunk.
  gpu.factor = [&](const Config& config) { return config.spec.warp_tokens == 16 ? 0.5 : 1.0; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  ASSERT_EQ(summary->shapes.size(), 2u);
  const Config usual = default_config({device, request.problem, chunk});
  for (const TunedShape& tuned : summary->shapes) {
    EXPECT_EQ(tuned.winner.spec.load, usual.spec.load);
    EXPECT_EQ(tuned.winner.spec.warp_tokens, 16);
    EXPECT_LE(tuned.winner.grid, resident_grid(device, tuned.winner.spec));
    EXPECT_EQ(look_up(tuned.shape), tuned.winner);
  }
  const auto exact = [&](const Shape& shape) {
    auto winners = db->winners(device_model(device)).value();
    LayeredWinners layers;
    for (Winner& winner : winners) layers.entries.push_back({std::move(winner), "user"});
    return WinnerTable::build(device, std::move(layers)).find(request.problem, shape).provenance;
  };
  EXPECT_EQ(exact(chunk), Provenance::exact);
  EXPECT_EQ(exact(prompt), Provenance::exact);
  EXPECT_EQ(exact(unknown), Provenance::fallback);
  EXPECT_EQ(look_up(unknown).spec, usual.spec);
  Shape near = chunk;
  near.mix = {.query_tokens = 64 + 2000};
  EXPECT_EQ(exact(near), Provenance::bucket);
  EXPECT_EQ(look_up(near).spec.warp_tokens, 16);
}

TEST_F(TuneSession, TheBestOfLoadPathTensorAreTriedWithTheOtherL2Promotion) {
  struct Expected {
    Shape shape;
    double promoted;  // what 256 bytes cost
    int winner;
  };
  // Once as where nobody tuned, and once against that.
  for (const Expected& expected : {Expected{{.batch = 4, .longest_context = 8192}, 1.1, 128},
                                   Expected{{.batch = 4, .longest_context = 8192}, 0.9, 256},
                                   Expected{{.batch = 1, .longest_context = 2048}, 0.9, 256},
                                   Expected{{.batch = 1, .longest_context = 2048}, 1.1, 128}}) {
    SetUpDatabase();
    request.shapes = {expected.shape};
    SimulatedGpu gpu(request.problem, kSeed);
    gpu.spills = [](const KernelSpec& spec) { return spec.load != LoadPath::tensor; };
    gpu.promoted = expected.promoted;
    const auto summary = run(gpu);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_EQ(summary->shapes.at(0).winner.l2_promotion, expected.winner) << expected.promoted;
    std::map<std::string, std::set<int>> promotions;  // by kernel, grid and segment cost
    for (const auto& [text, samples] : gpu.samples) {
      Config config = config_from_json(text).value();
      const int promotion = std::exchange(config.l2_promotion, 128);
      promotions[to_json(config)].insert(promotion);
    }
    const auto both =
        std::count_if(promotions.begin(), promotions.end(), [](const auto& c) { return c.second.size() > 1; });
    EXPECT_GE(both, 1);
    EXPECT_LE(both, static_cast<std::ptrdiff_t>(effort.refine_specs)) << "the search does not double";
    EXPECT_TRUE(gpu.timed_without_check.empty());
  }
}

TEST_F(TuneSession, DependentLaunchIsRefusedWhereTheGpuHasNone) {
  device = facts_for_arch({8, 0, false}, 108).value();
  request.problem.pdl = true;
  SimulatedGpu gpu(request.problem, kSeed);
  const auto refused = run(gpu);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_NE(refused.error().message.find("sm_80"), std::string::npos) << refused.error().message;
  EXPECT_EQ(tune_offline(request, device, nullptr, {}, nullptr).error().code, ErrorCode::unsupported);
  EXPECT_EQ(gpu.compiles, 0);
  EXPECT_TRUE(db->sessions()->empty());
}

TEST_F(TuneSession, ProgressNamesEveryPhaseAndNeverRunsBackwards) {
  std::vector<std::string> phases;
  double last = 0;
  progress = [&](const TuneProgress& p) {
    if (phases.empty() || phases.back() != p.phase) phases.push_back(p.phase);
    EXPECT_GE(p.elapsed_s, last);
    last = p.elapsed_s;
    EXPECT_GE(p.eta_s, 0);
  };
  SimulatedGpu gpu(request.problem, kSeed);
  ASSERT_TRUE(run(gpu));
  EXPECT_EQ(phases, (std::vector<std::string>{"screen", "sweep", "refine", "race", "confirm"}));
}

TEST_F(TuneSession, BadRequestsAreRefusedBeforeAnythingHappens) {
  SimulatedGpu gpu(request.problem, kSeed);
  request.budget = std::chrono::milliseconds(0);
  EXPECT_EQ(run(gpu).error().code, ErrorCode::invalid_argument);
  request.budget.reset();
  request.shapes.clear();
  EXPECT_EQ(run(gpu).error().code, ErrorCode::invalid_argument);
  request.shapes = {{.batch = 0, .longest_context = 8}};
  EXPECT_EQ(run(gpu).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(gpu.compiles, 0);
  EXPECT_TRUE(db->sessions()->empty());
}

TEST_F(TuneSession, ADryRunCountsCandidatesAndTouchesNothing) {
  const TuneSummary plan = plan_session(request, device, effort);
  ASSERT_EQ(plan.shapes.size(), 1u);
  EXPECT_GT(plan.shapes[0].candidates, 40);
  EXPECT_FALSE(plan.shapes[0].finished);
}

}  // namespace
}  // namespace leanattn
