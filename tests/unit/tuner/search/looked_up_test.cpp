// looked_up_test.cpp -- what look-ups answered before a session takes part in its searches to the end: no winner is
// slower, however short the tuning is.
#include "tuner/search/looked_up.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/tuner/search/session_fixture.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/decision.hpp"

namespace leanattn {
namespace {

class NeverSlower : public SessionTest {};

/// A search that would hardly come upon what look-ups answer by itself.
constexpr SearchEffort kNarrowSearch{
    .specs = 2, .grids_per_spec = 1, .sweep_specs = 0, .refine_specs = 0, .twin_specs = 0, .refine_generations = 0};

TEST_F(NeverSlower, AWinnerIsNeverSlowerThanWhatLookUpsAnsweredHoweverShortTheBudget) {
  for (const int budget_ms : {1, 60, 100, 200, 400, 1000, 2000}) {
    for (const Shape shape :
         {Shape{.batch = 1, .longest_context = 8192}, Shape{.batch = 128, .longest_context = 2048}}) {
      SetUpDatabase();
      request.shapes = {shape};
      request.budget = std::chrono::milliseconds(budget_ms);
      const Config before = look_up(shape);
      SimulatedGpu gpu(request.problem, kSeed + static_cast<std::uint64_t>(budget_ms));
      gpu.personality = 0.3;
      gpu.factor = [&](const Config& config) { return config == before ? 0.8 : 1; };
      const auto summary = run(gpu);
      ASSERT_TRUE(summary) << summary.error().message;
      const TunedShape& tuned = summary->shapes[0];
      gpu.set_shape(shape);
      const auto winners = db->winners(device_model(device)).value();
      ASSERT_EQ(winners.size(), 1u) << tuned.no_winner;
      for (const Winner& winner : winners) {
        EXPECT_LE(gpu.true_us(config_from_json(winner.config).value()), gpu.true_us(before) * 1.01)
            << budget_ms << " ms, batch " << shape.batch << ", seed " << kSeed;
        EXPECT_GT(tuned.looked_up_us, 0);
      }
    }
  }
}

TEST_F(NeverSlower, WhatLookUpsAnswerSurvivesABadFirstSampleAndANarrowSearch) {
  effort = kNarrowSearch;
  const Config before = look_up(request.shapes[0]);
  for (const bool best : {true, false}) {
    SetUpDatabase();
    SimulatedGpu gpu(request.problem, kSeed);
    gpu.factor = [&](const Config& config) { return config == before ? (best ? 0.7 : 1.5) : 1; };
    gpu.disturbance = [&](const Config& config, int sample) { return config == before && sample == 0 ? 5 : 1; };
    const auto summary = run(gpu);
    ASSERT_TRUE(summary) << summary.error().message;
    const TunedShape& tuned = summary->shapes[0];
    EXPECT_EQ(tuned.winner == before, best);
    EXPECT_GE(gpu.samples[to_json(before)], effort.confirm_rounds_min) << "it is there to the end, fast or slow";
    gpu.set_shape(request.shapes[0]);
    EXPECT_NEAR(tuned.looked_up_us, gpu.true_us(before), 0.05 * tuned.looked_up_us);
  }
}

/// A layer beside the session's database, with one winner.
LayeredWinners shipped_layer(const DecodeProblem& problem, const Shape& shape, const Config& config, double us) {
  LayeredWinners layers;
  layers.entries.push_back({Winner{.problem = to_json(problem),
                                   .shape = to_json(shape),
                                   .policy = "cold",
                                   .config = to_json(config),
                                   .median_us = us,
                                   .low_us = us,
                                   .high_us = us},
                            "shipped"});
  return layers;
}

TEST_F(NeverSlower, TheWinnersOfOtherLayersAreComparedToo) {
  effort = kNarrowSearch;
  // The shipped winner is a kernel that neither the look-up nor the search would come upon.
  SimulatedGpu gpu(request.problem, kSeed);
  Config shipped = default_config({device, request.problem, request.shapes[0]});
  shipped.grid = 77;
  gpu.factor = [&](const Config& config) { return config == shipped ? 0.5 : 1; };
  request.open_winners = [&](const DeviceModel&, const Environment&) {
    return by_problem(shipped_layer(request.problem, request.shapes[0], shipped, 1));
  };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->shapes[0].winner, shipped);
  EXPECT_EQ(db->winners(device_model(device))->front().config, to_json(shipped));
}

TEST_F(NeverSlower, WhereAnOrdinaryLaunchAnswersForADependentOneItsConfigurationTakesPartAsADependentOne) {
  effort = kNarrowSearch;
  const DecodeProblem ordinary{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  const Shape shape{.batch = 10, .longest_context = 16384};
  request.problem = ordinary;
  request.problem.pdl = true;
  request.shapes = {shape};
  // The grid leaves a third of the room free, so that long dependent launches come late.
  Config known = default_config({device, ordinary, shape});
  known.spec.load = LoadPath::tensor, known.spec.fixup = FixUp::ticket, known.spec.tile = 128;
  known.spec.warps = 8, known.spec.warp_tokens = 16, known.spec.stages = 4, known.spec.ctas_per_sm = 1;
  known.grid = 80;
  ASSERT_TRUE(validate(known.spec));
  const auto winners = [&] { return shipped_layer(ordinary, shape, known, 5); };
  ASSERT_FALSE(WinnerTable::build(device, winners()).find(request.problem, shape).config.spec.pdl);
  request.open_winners = [&](const DeviceModel&, const Environment&) { return by_problem(winners()); };
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_GT(summary->shapes[0].looked_up_us, 0);
  known.spec.pdl = true;
  bool took_part = false;
  for (const auto& [text, count] : gpu.samples) {
    const Config config = config_from_json(text).value();
    EXPECT_TRUE(config.spec.pdl) << text;
    took_part = took_part || (config.spec == known.spec && config.grid == known.grid);
  }
  EXPECT_TRUE(took_part);
}

TEST_F(NeverSlower, NothingIsStoredThatWasNotComparedWithWhatLookUpsAnswerAndTheReasonIsTheRealOne) {
  const Config before = look_up(request.shapes[0]);
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.no_compiler = [&](const KernelSpec& spec) { return spec == before.spec; };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_FALSE(summary->shapes[0].finished);
  EXPECT_EQ(summary->shapes[0].median_us, 0);
  EXPECT_EQ(summary->shapes[0].no_winner, "what look-ups answer failed so: no process compiles");
  EXPECT_TRUE(db->winners(device_model(device))->empty());
  EXPECT_TRUE(trials(TrialStatus::ok).empty());

  // Interrupted in its first round, of which the backend then says nothing.
  SetUpDatabase();
  std::atomic<bool> cancel = false;
  SimulatedGpu cut(request.problem, kSeed);
  cut.before_round = [&](int) { cancel = true; };
  cut.interrupts = &cancel;
  const auto interrupted = run(cut, &cancel);
  ASSERT_TRUE(interrupted) << interrupted.error().message;
  EXPECT_EQ(interrupted->shapes[0].median_us, 0);
  EXPECT_EQ(interrupted->shapes[0].no_winner,
            "the session was interrupted before the configuration that look-ups answer was compiled and timed, so that "
            "nothing could be compared with it.");
  EXPECT_TRUE(trials(TrialStatus::ok).empty());

  // Nothing at all runs.
  SetUpDatabase();
  SimulatedGpu broken(request.problem, kSeed);
  broken.fails_check = [](const Config&) { return true; };
  const auto nothing = run(broken);
  ASSERT_TRUE(nothing) << nothing.error().message;
  EXPECT_EQ(nothing->shapes[0].no_winner, "no candidate is left; the last one failed so: too many resources requested");
}

TEST_F(NeverSlower, WhereItsKernelIsNotReadyInTimeNothingIsStoredAndAnEarlierWinnerStays) {
  for (const bool tuned_before : {false, true}) {
    SCOPED_TRACE(tuned_before);
    SetUpDatabase();
    request.budget.reset();
    if (tuned_before) {
      SimulatedGpu first(request.problem, kSeed);
      ASSERT_TRUE(run(first));
    }
    const Config before = look_up(request.shapes[0]);
    request.budget = std::chrono::milliseconds(500);
    SimulatedGpu gpu(request.problem, kSeed);
    gpu.tick_s = 0.01;
    std::latch over{1};
    gpu.before_compile = [&](const KernelSpec& spec) {
      if (spec == before.spec) over.wait();
    };
    CompilePool compiles([&](const KernelSpec& spec) { return gpu.compile(spec); }, 2);
    ShapeQueue shapes(1, 1);
    const auto summary = run_session(request, device, environment, gpu, *db, effort, {}, nullptr, {shapes, compiles});
    over.count_down();
    ASSERT_TRUE(summary) << summary.error().message;
    const TunedShape& tuned = summary->shapes[0];
    EXPECT_EQ(tuned.candidates, 0);
    EXPECT_FALSE(tuned.finished);
    EXPECT_EQ(
        no_winner_text(tuned),
        std::string("batch 1, longest context 8192: no new winner is stored") +
            (tuned_before ? " and the earlier one stays" : "") +
            ", because the time was over before the configuration that look-ups answer was compiled and timed, so "
            "that nothing could be compared with it. Give a larger budget.");
    EXPECT_EQ(tuned.median_us > 0, tuned_before);
    EXPECT_EQ(db->winners(device_model(device))->size(), tuned_before ? 1u : 0u);
    EXPECT_TRUE(gpu.samples.empty());
  }
}

TEST_F(NeverSlower, WinnersThatAreLockedAreReadAgainBeforeTheSessionIsGivenUp) {
  effort = kNarrowSearch;
  int opened = 0, lockouts = 1;
  request.open_winners = [&](const DeviceModel&, const Environment&) {
    LayeredWinners layers;
    layers.locked = ++opened <= lockouts;
    layers.warnings = {layers.locked ? "the site database was skipped: locked"
                                     : "the site database was skipped: damaged"};
    return by_problem(std::move(layers));
  };
  SimulatedGpu gpu(request.problem, kSeed);
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(summary->warnings, std::vector<std::string>{"the site database was skipped: damaged"});

  SetUpDatabase();
  opened = 0, lockouts = 9;
  SimulatedGpu untouched(request.problem, kSeed);
  const auto refused = run(untouched);
  ASSERT_FALSE(refused);
  EXPECT_EQ(opened, 2);
  EXPECT_EQ(refused.error().code, ErrorCode::database_busy);
  EXPECT_NE(refused.error().message.find("the site database was skipped: locked"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(refused.error().hint.empty());
  EXPECT_TRUE(untouched.samples.empty());
  EXPECT_TRUE(db->sessions()->empty());
}

TEST_F(NeverSlower, ASearchThatIsCutShortComparesItAlsoAfterABadFirstSample) {
  const Config before = look_up(request.shapes[0]);
  std::atomic<bool> cancel = false;
  progress = [&](const TuneProgress& p) { cancel = cancel || p.phase == "sweep"; };
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.factor = [&](const Config& config) { return config == before ? 0.7 : 1; };
  gpu.disturbance = [&](const Config& config, int sample) { return config == before && sample == 0 ? 5 : 1; };
  const auto summary = run(gpu, &cancel);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_EQ(summary->shapes[0].winner, before);
  ASSERT_EQ(trials(TrialStatus::ok).size(), 1u);
  EXPECT_EQ(trials(TrialStatus::ok).front().config, to_json(before));
  EXPECT_GE(trials(TrialStatus::ok).front().samples, 3);
}

TEST_F(NeverSlower, TheLuckyTimeOfAShortTuningGivesWayToALongerOne) {
  const Config lucky = look_up(request.shapes[0]);
  std::atomic<bool> cancel = false;
  progress = [&](const TuneProgress& p) { cancel = cancel || p.phase == "sweep"; };
  SimulatedGpu first(request.problem, kSeed);
  first.factor = [&](const Config& config) { return config == lucky ? 0.5 : 1; };
  ASSERT_TRUE(run(first, &cancel));
  ASSERT_EQ(look_up(request.shapes[0]), lucky);
  progress = {};
  SimulatedGpu second(request.problem, kSeed + 1);
  second.factor = [&](const Config& config) { return config == lucky ? 1.5 : 1; };
  const auto summary = run(second);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_FALSE(summary->shapes[0].winner == lucky);
  EXPECT_EQ(look_up(request.shapes[0]), summary->shapes[0].winner);
}

TEST_F(NeverSlower, TooFewSamplesOfItDecideNothing) {
  SimulatedGpu gpu(request.problem, kSeed);
  CompilePool compiles([&](const KernelSpec& spec) { return gpu.compile(spec); }, 1);
  const auto id = db->begin_session(device_model(device), environment, "test");
  ASSERT_TRUE(id) << id.error().message;
  TrialWriter writer(*db, *id);
  const SessionSetup session{.request = request,
                             .device = device,
                             .device_model = device_model(device),
                             .backend = gpu,
                             .db = *db,
                             .trials = writer,
                             .compiles = compiles,
                             .effort = effort,
                             .environment = environment,
                             .progress = progress,
                             .steps = steps_of(request, device)};
  ShapeContext context = shape_context(session, 0, 1);
  Config other = context.default_config;
  other.grid = 77;
  context.looked_up = context.default_config;
  const std::vector<Candidate> candidates{{.config = context.default_config}, {.config = other}};
  const KnownTrials nothing_known;
  std::vector<ModelSample> samples;
  Measurer measurer(context, nothing_known, samples);
  for (const int together : {2, 3}) {
    Race race(candidates.size());
    for (int round = 0; round < 4; ++round) {
      if (round == together) race.drop(0);
      const std::vector<std::size_t> order = race.order();
      race.add(order, {.us = std::vector<double>(order.size(), 10), .sentinel_us = 1});
    }
    const Decision decision = settle_early(context, measurer, candidates, race);
    EXPECT_EQ(decision.winner.has_value(), together == 3) << together;
    EXPECT_EQ(decision.looked_up_us.has_value(), together == 3) << together;
  }
}

TEST_F(NeverSlower, WhereWhatLookUpsAnswerCannotRunAnEnginesNextChoiceHasToBeBeaten) {
  effort = kNarrowSearch;
  effort.specs = 8;
  request.shapes = {{.batch = 64, .longest_context = 200}};
  const std::vector<Config> order = launch_order(request.shapes[0]);
  const Config before = order[0], next = order[1];
  const auto planted = [&](SimulatedGpu& gpu, int how) {
    gpu.spills = [&, how](const KernelSpec& spec) { return how == 0 && spec == before.spec; };
    gpu.fails_check = [&, how](const Config& config) { return how == 1 && config == before; };
    gpu.wrong = [&, how](const Config& config) { return how == 2 && config == before; };
    gpu.fails_timing = [&, how](const Config& config) { return how == 3 && config == before; };
  };
  for (const int how : {0, 1, 2, 3}) {
    SCOPED_TRACE(how);
    SetUpDatabase();
    SimulatedGpu gpu(request.problem, kSeed);
    planted(gpu, how);
    const auto summary = run(gpu);
    ASSERT_TRUE(summary) << summary.error().message;
    EXPECT_GT(summary->shapes[0].median_us, 0);
    EXPECT_FALSE(summary->shapes[0].winner == before);
    EXPECT_GT(summary->shapes[0].looked_up_us, 0);
    EXPECT_GE(gpu.samples[to_json(next)], effort.confirm_rounds_min);
  }
  // Where an engine has nothing to launch, whatever runs is better.
  SetUpDatabase();
  SimulatedGpu gpu(request.problem, kSeed);
  gpu.fails_check = [&](const Config& config) { return std::find(order.begin(), order.end(), config) != order.end(); };
  const auto summary = run(gpu);
  ASSERT_TRUE(summary) << summary.error().message;
  EXPECT_GT(summary->shapes[0].median_us, 0);
  EXPECT_EQ(summary->shapes[0].looked_up_us, 0);
}

TEST_F(NeverSlower, RevalidationThatCannotMeasureWhatLookUpsAnswerKeepsTheStoredWinner) {
  environment.driver_version = 13000;
  SimulatedGpu first(request.problem, kSeed);
  const auto before = run(first);
  ASSERT_TRUE(before);
  environment.driver_version = 13010;
  request.revalidate = true;
  SimulatedGpu second(request.problem, kSeed + 1);
  second.no_compiler = [&](const KernelSpec& spec) { return spec == before->shapes[0].winner.spec; };
  const auto after = run(second);
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->shapes[0].winner, before->shapes[0].winner);
  EXPECT_EQ(db->winners(device_model(device))->front().environment.driver_version, 13000);
}

}  // namespace
}  // namespace leanattn
