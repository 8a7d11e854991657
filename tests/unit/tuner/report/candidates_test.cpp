// candidates_test.cpp -- rivals, spread, sensitivity, failures and parts of times follow from the trials.
#include "tuner/report/candidates.hpp"

#include <gtest/gtest.h>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/report/failure_groups.hpp"
#include "tuner/report/time_parts.hpp"

namespace leanattn {
namespace {

const Shape kShape{.batch = 1, .max_batch = 0, .longest_context = 8192, .total_context = 0};

Config config(std::int64_t grid, int warps = 4) {
  Config made{.spec = base_spec({9, 0, true}, DecodeProblem{}), .grid = grid};
  made.spec.warps = warps;
  return made;
}

detail::TimedConfig timed(const Config& config, std::vector<double> samples) {
  return {.config = config,
          .median_us = samples[samples.size() / 2],
          .samples = samples,
          .sample_count = static_cast<int>(samples.size()),
          .registers = 128};
}

ReportedWinner winner_of(const detail::TimedConfig& candidate) {
  ReportedWinner winner;
  winner.shape = kShape, winner.policy = L2Policy::cold, winner.config = candidate.config,
  winner.median_us = candidate.median_us;
  winner.kv_bytes = kv_bytes(winner.problem, kShape);
  return winner;
}

Trial trial(const Config& config, TrialStatus status, double us, int samples, const char* revision = "r1") {
  Trial made;
  made.config = to_json(config), made.status = status, made.median_us = us, made.samples = samples;
  made.environment.library_revision = revision;
  return made;
}

std::vector<detail::TimedConfig> read(const std::vector<Trial>& trials) {
  std::vector<const Trial*> pointers;
  for (const Trial& one : trials) pointers.push_back(&one);
  ParsedTexts<Config> configs(config_from_json);
  Environment software;
  software.library_revision = "r1", software.driver_release = "580.1";
  return detail::timed_configs(pointers, software, configs);
}

TEST(ReportCandidates, OnlyTimedTrialsOfTheWinnersSoftwareCount) {
  Trial unreadable = trial(config(8), TrialStatus::ok, 1, 12), older = trial(config(24), TrialStatus::ok, 4, 12);
  unreadable.config = "{}";
  older.environment.driver_release = "580.0";
  const auto found =
      read({trial(config(128), TrialStatus::ok, 20, 12), trial(config(64), TrialStatus::pruned, 10, 1),
            trial(config(32), TrialStatus::incorrect, 1, 1), trial(config(16), TrialStatus::pruned, 0, 0),
            trial(config(48), TrialStatus::ok, 5, 12, "r0"), unreadable, older});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].config.grid, 64);
  EXPECT_EQ(found[1].config.grid, 128);
}

TEST(ReportCandidates, AConfigurationCountsByItsTrialWithTheMostSamples) {
  const auto found = read({trial(config(64), TrialStatus::pruned, 30, 1), trial(config(64), TrialStatus::ok, 10, 12),
                           trial(config(64), TrialStatus::ok, 11, 12), trial(config(64), TrialStatus::pruned, 5, 3)});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].median_us, 11);
}

TEST(ReportCandidates, BaselinesAreFoundByTheirGrids) {
  // The shape has 8 output tiles.
  const std::vector<detail::TimedConfig> candidates = {
      timed(config(132), {10, 10, 10}), timed(config(128), {10.4, 10.5, 10.6}), timed(config(64), {12, 12, 12}),
      timed(config(8), {50}), timed(config(8, 8), {60})};
  ReportedWinner winner = winner_of(candidates[0]);
  detail::add_rivals(winner, candidates, nullptr);
  ASSERT_TRUE(winner.flash_attention2 && winner.flash_decoding && winner.runner_up);
  EXPECT_EQ(winner.flash_attention2->median_us, 50);
  EXPECT_DOUBLE_EQ(winner.flash_attention2->over_winner.ratio, 5);
  EXPECT_FALSE(winner.flash_attention2->over_winner.has_interval()) << "one sample has no interval";
  EXPECT_EQ(winner.flash_decoding->config.grid, 128);
  EXPECT_NEAR(winner.flash_decoding->over_winner.low, 1.04, 1e-9);
  EXPECT_NEAR(winner.flash_decoding->over_winner.high, 1.06, 1e-9);
  EXPECT_EQ(winner.runner_up->config.grid, 128);
  EXPECT_FALSE(winner.default_config) << "the GPU is not known";
}

TEST(ReportCandidates, TheWinnerIsItsOwnBaselineWhereItHasThatGrid) {
  const std::vector<detail::TimedConfig> candidates = {timed(config(128), {10, 10, 10}),
                                                       timed(config(132), {11, 11, 11})};
  ReportedWinner winner = winner_of(candidates[0]);
  detail::add_rivals(winner, candidates, nullptr);
  EXPECT_EQ(winner.flash_decoding->over_winner.ratio, 1);
  EXPECT_EQ(winner.runner_up->config.grid, 132);
}

TEST(ReportCandidates, ALuckySingleSampleIsNoRunnerUp) {
  const std::vector<detail::TimedConfig> candidates = {timed(config(64), {9}), timed(config(132), {10, 10, 10}),
                                                       timed(config(120), {10.5, 10.5, 10.5})};
  ReportedWinner winner = winner_of(candidates[1]);
  detail::add_rivals(winner, candidates, nullptr);
  EXPECT_EQ(winner.runner_up->config.grid, 120);
}

TEST(ReportCandidates, TheDefaultIsWhatAnUntunedLibraryLaunches) {
  const DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  const Config untuned = default_config({device, DecodeProblem{}, kShape});
  const std::vector<detail::TimedConfig> candidates = {timed(config(132, 8), {10, 10, 10}),
                                                       timed(untuned, {13, 13, 13})};
  ReportedWinner winner = winner_of(candidates[0]);
  detail::add_rivals(winner, candidates, &device);
  ASSERT_TRUE(winner.default_config);
  EXPECT_EQ(winner.default_config->config, untuned);
  EXPECT_NEAR(winner.default_config->over_winner.ratio, 1.3, 1e-9);
}

TEST(ReportCandidates, QuantilesAreOverTheFastest) {
  std::vector<detail::TimedConfig> candidates;
  for (int i = 0; i <= 100; ++i) candidates.push_back(timed(config(1 + i, i % 2 == 0 ? 4 : 8), {10.0 + 0.1 * i}));
  ReportedWinner winner = winner_of(candidates[0]);
  detail::add_rivals(winner, candidates, nullptr);
  ASSERT_TRUE(winner.candidates);
  EXPECT_EQ(winner.candidates->configurations, 101);
  EXPECT_EQ(winner.candidates->kernels, 2);
  const std::array<double, 7> expected = {1, 1.1, 1.25, 1.5, 1.75, 1.9, 2};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(winner.candidates->quantiles[i], expected[i], 1e-9);
}

TEST(ReportCandidates, SensitivityIsTheBestOfEachValueOverTheBestOfAll) {
  // Two shapes: 4 warps cost 1.21 and 1, so 1.1 in the geometric mean; 8 warps cost 1 and 4.
  const std::vector<detail::TimedConfig> first = {timed(config(132, 8), {10}), timed(config(132, 4), {12.1}),
                                                  timed(config(64, 4), {20})};
  const std::vector<detail::TimedConfig> second = {timed(config(132, 4), {10}), timed(config(132, 8), {40})};
  const ReportedWinner a = winner_of(first[0]), b = winner_of(second[0]);
  const ReportedWinner* winners[] = {&a, &b};
  const std::vector<detail::TimedConfig>* timed_of[] = {&first, &second};
  const auto found = detail::sensitivity(winners, timed_of);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].parameter, "warps");
  ASSERT_EQ(found[0].values.size(), 2u);
  EXPECT_EQ(found[0].values[0].value, "4");
  EXPECT_NEAR(found[0].values[0].geometric_mean, 1.1, 1e-9);
  EXPECT_NEAR(found[0].values[0].worst, 1.21, 1e-9);
  EXPECT_EQ(found[0].values[0].candidates, 3);
  EXPECT_NEAR(found[0].values[1].geometric_mean, 2, 1e-9);
  EXPECT_NEAR(found[0].spread, 2, 1e-9);
  for (const ParameterSensitivity& parameter : found)
    EXPECT_NE(parameter.parameter, "tile") << "only one value was tried";
}

TEST(ReportCandidates, FailuresThatDifferOnlyInNamesAndNumbersAreOneGroup) {
  std::vector<Trial> trials;
  for (const char* reason : {"lean_sm90a_t64 spills 24 bytes", "lean_sm90a_t128 spills 8 bytes", "O[0, 3] is NaN"}) {
    trials.push_back(trial(config(1), TrialStatus::compile_fail, 0, 0));
    trials.back().reason = reason;
  }
  trials.push_back(trial(config(1), TrialStatus::pruned, 10, 1));
  trials.back().reason = "26.5 % slower";
  ParsedTexts<Config> configs(config_from_json);
  const auto groups = detail::failure_groups(trials, configs);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].reason, "(kernel) spills N bytes");
  EXPECT_EQ(groups[0].count, 2);
  EXPECT_EQ(groups[0].example, "lean_sm90a_t64 spills 24 bytes");
  EXPECT_EQ(groups[0].kernel, kernel_name(config(1).spec));
  EXPECT_EQ(groups[1].reason, "O[N, N] is NaN");
}

TEST(ReportParts, SayHowTheGridUsesTheGpu) {
  const DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  ModelParameters parameters = default_parameters(device);
  // Half of the SMs have a CTA, and 8 CTAs share an output tile.
  ReportedWinner winner = winner_of(timed(config(64), {30, 30, 30}));
  winner.read_limit_us = 15, winner.read_limit_share = 0.5;
  TimeParts parts = detail::time_parts(parameters, device, winner, 1);
  EXPECT_EQ(parts.busy_sms, 64);
  EXPECT_DOUBLE_EQ(parts.contributors, 8);
  EXPECT_NEAR(parts.balance, 64.0 / 132, 1e-9);
  EXPECT_NEAR(parts.start_us + parts.stream_us + parts.segments_us + parts.fix_up_us + parts.unexplained_us, 30, 1e-9);
  parameters.factors.back() = 100;
  EXPECT_EQ(detail::time_parts(parameters, device, winner, 1).limited_by, "fix-up");
  parameters.factors.front() = 100;
  EXPECT_EQ(detail::time_parts(parameters, device, winner, 1).limited_by, "start-up");
  winner.read_limit_share = 0.97;
  EXPECT_EQ(detail::time_parts(parameters, device, winner, 1).limited_by, "read limit");
}

TEST(ReportParts, AGpuThatThisVersionDoesNotKnowHasNone) {
  DeviceModel model;
  model.name = "X", model.arch = "sm_1", model.sm_count = 4;
  EXPECT_FALSE(detail::facts_of(model));
  model.arch = "sm_90a";
  EXPECT_EQ(detail::facts_of(model).value().sm_count, 4);
  model.sm_count = 0;
  EXPECT_FALSE(detail::facts_of(model));
}

TEST(ReportFailures, AGroupSaysWhatItsTrialsShareAndOthersDoNot) {
  std::vector<Trial> trials;
  for (const int warps : {4, 8}) {
    for (const int stages : {2, 3}) {
      Config made = config(64, warps);
      made.spec.stages = stages;
      trials.push_back(trial(made, stages == 3 ? TrialStatus::incorrect : TrialStatus::ok, stages == 3 ? 0 : 9, 3));
      trials.back().reason = stages == 3 ? "O[0] is NaN" : "";
    }
  }
  ParsedTexts<Config> configs(config_from_json);
  const auto groups = detail::failure_groups(trials, configs);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(detail::common_name(groups[0]), "stages 3")
      << "the warps differ, and all other parameters are always alike";
  trials.pop_back();
  EXPECT_EQ(detail::common_name(detail::failure_groups(trials, configs)[0]), "") << "one trial shares everything";
}

}  // namespace
}  // namespace leanattn
