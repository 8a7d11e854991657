// measured_lookups_test.cpp -- the cost model and the look-ups, judged by what was measured on an H200 and an H100 and
// committed (tests/tools/timings.py). No GPU. LEANATTN_TEST_THOROUGH=1 prints every case.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/fitted_costs.hpp"
#include "runtime/lookup/mixed_line.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/thoroughness.hpp"
#include "tests/tools/timings.hpp"

namespace leanattn {
namespace {

const std::vector<Timing>& timings() {
  static const std::vector<Timing> all = read_timings(LEANATTN_TIMINGS);
  return all;
}

std::vector<Timing> of_source(const std::string& source) {
  std::vector<Timing> some;
  std::copy_if(timings().begin(), timings().end(), std::back_inserter(some),
               [&](const Timing& one) { return one.source == source; });
  return some;
}

/// A tuning of an H200, with what else was measured at its steps.
const std::vector<Timing>& measured() {
  static const std::vector<Timing> all = of_source("h200 tuned and beside peers");
  return all;
}

/// What look-ups answered for shapes beside other libraries', as it ran.
const std::vector<Timing>& answers() {
  static const std::vector<Timing> all = of_source("h200 answers beside peers");
  return all;
}

double modelled_us(const DecodeProblem& problem, const Shape& shape, const Config& config) {
  const DeviceFacts& device = timed_gpu(true);
  return predict_us(default_parameters(device), {device, problem, shape}, config, guess_resident(device, config.spec));
}

bool same_step(const Timing& a, const Timing& b) { return a.problem == b.problem && a.shape == b.shape; }

/// Bounds of what the model's picks lose and of its errors. The costs were fitted to these timings. How well they do
/// where they were not is in docs/how-tuning-works.md.
struct Bounds {
  const char* name;
  bool (*counts)(const Timing&);
  std::size_t least_steps;
  double mean, at_95, error, error_90;
};
constexpr Bounds kBounds[] = {
    {"all", [](const Timing&) { return true; }, 1590, 0.0170, 0.082, 0.055, 0.234},
    {"H100", [](const Timing& one) { return !one.h200; }, 910, 0.0205, 0.105, 0.060, 0.242},
    {"H200", [](const Timing& one) { return one.h200; }, 670, 0.0119, 0.049, 0.042, 0.217},
    {"latent caches", [](const Timing& one) { return one.problem.features.latent; }, 30, 0.0200, 0.076, 0.082, 0.280},
    {"dependent launches", [](const Timing& one) { return one.problem.pdl; }, 520, 0.0149, 0.083, 0.068, 0.302},
};

/// No cost was fitted to steps with prefill. What is furthest off are steps of less than 100 us with many decodes, and
/// long ones in which the clock falls.
TEST(MeasuredLookups, TimesOfMixedStepsArePredictedByTheSameCosts) {
  const std::vector<MixedTiming> mixed = read_mixed_timings(LEANATTN_TIMINGS);
  ASSERT_GE(mixed.size(), 34u);
  std::vector<double> off;
  for (const MixedTiming& one : mixed) {
    const double us = modelled_us(one.problem, one.shape, one.config);
    off.push_back(std::abs(us / one.us - 1));
    if (thorough()) std::printf("%-64s %8.1f us, predicted %8.1f, %.3f\n", one.name.c_str(), one.us, us, us / one.us);
    // Nothing that was measured is missing: where nothing was tuned, look-ups answer what ran.
    const DeviceFacts& device = timed_gpu(true);
    const Choice choice = WinnerTable::build(device, {}).find(one.problem, one.shape);
    KernelSpec ran = one.config.spec;
    // Steps of heads with 256 columns had 64 tokens then, and have 80 now.
    if (ran.head_dim == 256) ran.warp_tokens = 20, ran.tile = 80;
    EXPECT_EQ(choice.provenance, Provenance::fallback) << one.name;
    if (choice.config.spec.warps == 12) {  // three warpgroups are newer than these timings, and for prompts
      EXPECT_EQ(one.shape.mix.chunks, one.shape.batch) << one.name;
      EXPECT_LT(modelled_us(one.problem, one.shape, choice.config), us) << one.name;
      continue;
    }
    EXPECT_EQ(choice.config.spec, ran) << one.name;
    // So are grids that cut output tiles alike.
    const DecodeStep step(device, one.problem, one.shape);
    if (mixed_line(step, ran, layout_of(ran)).alike == 0) EXPECT_EQ(choice.config.grid, one.config.grid) << one.name;
  }
  EXPECT_LE(quantile(off, 0.5), 0.06);
  EXPECT_LE(quantile(off, 0.9), 0.185);
  EXPECT_LE(quantile(off, 1), 0.39);
}

TEST(MeasuredLookups, TheModelPicksGoodConfigurationsAndKnowsTheirTimes) {
  const std::vector<double> us = modelled(timings(), kFittedCosts);
  const std::vector<double> off = errors(timings(), us);
  for (const Bounds& bounds : kBounds) {
    std::vector<TimedStep> steps;
    for (const TimedStep& step : timed_steps(timings())) {
      if (bounds.counts(timings()[step.front()])) steps.push_back(step);
    }
    const std::vector<double> lost = regrets(timings(), steps, us);
    std::vector<double> off_here;
    for (std::size_t i = 0; i < off.size(); ++i) {
      if (bounds.counts(timings()[i])) off_here.push_back(off[i]);
    }
    EXPECT_GE(steps.size(), bounds.least_steps) << bounds.name;
    EXPECT_LT(mean(lost), bounds.mean) << bounds.name;
    EXPECT_LT(quantile(lost, 0.95), bounds.at_95) << bounds.name;
    EXPECT_LT(quantile(off_here, 0.5), bounds.error) << bounds.name;
    EXPECT_LT(quantile(off_here, 0.9), bounds.error_90) << bounds.name;
    for (std::size_t i = 0; thorough() && i < steps.size(); ++i) {
      const Timing& one = timings()[steps[i].front()];
      if (lost[i] > 0.03)
        std::printf("%s %s %.1f %%\n", to_json(one.problem).c_str(), to_json(one.shape).c_str(), 100 * lost[i]);
    }
  }
}

TEST(MeasuredLookups, NoCostCanBeChangedForTheBetter) {
  // Who changes the formula or adds timings fits the costs again (tests/tools/fit_costs).
  constexpr double kMuch = 0.15, kBetter = 2e-4;
  const std::vector<TimedStep> steps = timed_steps(timings());
  const auto objective = [&](const Costs& costs) {
    return fit_objective(timings(), steps, modelled(timings(), costs));
  };
  const double fitted = objective(kFittedCosts);
  const auto costs = std::bit_cast<std::array<double, kCosts>>(kFittedCosts);
  for (std::size_t i = 0; i < kCosts; ++i) {
    for (const double factor : {1 - kMuch, 1 + kMuch}) {
      auto changed = costs;
      changed[i] *= factor;
      EXPECT_GT(objective(std::bit_cast<Costs>(changed)), fitted - kBetter) << "cost " << i << " times " << factor;
    }
  }
}

TEST(MeasuredLookups, AnswersForDependentLaunchesAreNotExpectedToLose) {
  LayeredWinners winners;
  for (const Timing& one : answers()) {
    if (one.kind != "winner") continue;
    Winner row;
    row.problem = to_json(one.problem), row.shape = to_json(one.shape), row.config = to_json(one.config);
    row.policy = "cold", row.median_us = one.us;
    winners.entries.push_back({row, "user"});
  }
  const WinnerTable table = WinnerTable::build(timed_gpu(true), winners);
  std::size_t asked = 0;
  for (const Timing& one : answers()) {
    if (!one.problem.pdl || one.kind == "winner") continue;
    DecodeProblem ordinary = one.problem;
    ordinary.pdl = false;
    const Choice with = table.find(one.problem, one.shape), without = table.find(ordinary, one.shape);
    const auto us = [&](const DecodeProblem& problem, const Choice& choice) {
      return modelled_us(problem, one.shape, choice.config);
    };
    ++asked;
    EXPECT_LT(us(one.problem, with), 1.05 * us(ordinary, without)) << to_json(one.problem) << to_json(one.shape);
  }
  EXPECT_GT(asked, 80u);
}

/// Asks for each tuned shape with a database of the winners that `keep(winner, asked)`, and returns the regret of those
/// answers that were measured there: the same kernel, with a grid within 6 %.
template <class Keep>
std::vector<double> regrets_without(Keep keep) {
  std::vector<double> regrets;
  std::size_t asked = 0;
  for (const Timing& step : measured()) {
    if (step.kind == "other") continue;
    LayeredWinners winners;
    for (const Timing& other : measured()) {
      if (other.kind != "winner" || !keep(other, step)) continue;
      Winner row;
      row.problem = to_json(other.problem), row.shape = to_json(other.shape), row.config = to_json(other.config);
      row.policy = "cold", row.median_us = other.us;
      winners.entries.push_back({row, "user"});
    }
    const Choice choice = WinnerTable::build(timed_gpu(true), winners).find(step.problem, step.shape);
    ++asked;
    double best = step.us, answered = 0, nearest = 0.06;
    for (const Timing& other : measured()) {
      if (!same_step(other, step)) continue;
      best = std::min(best, other.us);
      const double grids = static_cast<double>(other.config.grid) / static_cast<double>(choice.config.grid);
      if (other.config.spec == choice.config.spec && std::abs(std::log(grids)) < nearest)
        nearest = std::abs(std::log(grids)), answered = other.us;
    }
    if (thorough()) {
      std::printf("%s %s: %s %s grid %lld, expected %.2f, best %.2f%s\n", to_json(step.problem).c_str(),
                  to_json(step.shape).c_str(), std::string(to_string(choice.provenance)).c_str(),
                  kernel_name(choice.config.spec).c_str(), static_cast<long long>(choice.config.grid),
                  choice.predicted_us, best, answered > 0 ? ", measured" : "");
    }
    if (answered > 0) regrets.push_back(answered / best - 1);
  }
  if (!regrets.empty()) {
    std::printf("%zu of %zu answers were measured; regret %.1f %% in the median, %.1f %% at most\n", regrets.size(),
                asked, 100 * quantile(regrets, 0.5), 100 * quantile(regrets, 1));
  }
  return regrets;
}

TEST(MeasuredLookups, AShapeThatIsLeftOutIsAnsweredWell) {
  const std::vector<double> regrets =
      regrets_without([](const Timing& winner, const Timing& step) { return !same_step(winner, step); });
  ASSERT_GE(regrets.size(), 10u);
  EXPECT_LT(quantile(regrets, 0.5), 0.03);
  EXPECT_LT(quantile(regrets, 1), 0.10);
}

TEST(MeasuredLookups, AProblemThatIsLeftOutIsAnsweredWell) {
  const std::vector<double> regrets = regrets_without([](const Timing& winner, const Timing& step) {
    DecodeProblem a = winner.problem, b = step.problem;
    a.pdl = b.pdl = false;
    return !(a == b);
  });
  ASSERT_GE(regrets.size(), 4u);
  EXPECT_LT(quantile(regrets, 0.5), 0.06);
  EXPECT_LT(quantile(regrets, 1), 0.20);
}

}  // namespace
}  // namespace leanattn
