// fit_costs.cpp -- fits the costs of the cost model to the committed timings, says what the model's picks lose, and
// writes runtime/lookup/fitted_costs.hpp. docs/how-tuning-works.md describes the model.
//
//   fit_costs TIMINGS                what the picks of the committed costs lose, by source
//   fit_costs TIMINGS --fit [FILE]   fits, and writes FILE
//   fit_costs TIMINGS --held-out     fits to parts of the timings, and judges by the others
//   fit_costs TIMINGS --without      the same for problems, without each cost in turn
//
// TIMINGS is what tests/tools/timings.py prints. One fit takes seconds in an optimised build and minutes in others.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/lookup/fitted_costs.hpp"
#include "tests/tools/timings.hpp"

namespace leanattn {
namespace {

using Values = std::array<double, kCosts>;

/// The members of Costs, how many values each has, and what switches it off.
struct Member {
  const char* name;
  std::size_t count;
  double off = 0;
};
constexpr Member kMembers[] = {{"start", kMultipliers},
                               {"work", kMultipliers},
                               {"step", 1},
                               {"convert", 1},
                               {"lone_row", 1},
                               {"latency", 1},
                               {"cta", 1},
                               {"segment", 1},
                               {"row", 1},
                               {"partial", 1},
                               {"exchange", 1},
                               {"dependent", 1},
                               {"late", 1},
                               {"reread", 1, 1.0},
                               {"sm_rate", 1, 1e3}};

/// Where every fit begins.
constexpr Costs kRough{.start = {3.8, 3.8, 3.8},
                       .work = {0.3, 0.5, 0.1},
                       .step = 0.45,
                       .convert = 0.2,
                       .lone_row = 0.04,
                       .latency = 1.5,
                       .cta = 5,
                       .segment = 1,
                       .row = 0.05,
                       .partial = 0.08,
                       .exchange = 0.1,
                       .dependent = 1,
                       .late = 0.3,
                       .reread = 0.4,
                       .sm_rate = 2.3};
// What it costs to be e times as large, where nothing else says how large a cost should be.
constexpr double kPull = 2e-4;

/// Some timings, and the steps that have several of them.
struct Sample {
  std::vector<Timing> timings;
  std::vector<TimedStep> steps;
};
Sample sample_of(const std::vector<Timing>& all, const std::function<bool(const Timing&)>& taken) {
  Sample sample;
  std::copy_if(all.begin(), all.end(), std::back_inserter(sample.timings), taken);
  sample.steps = timed_steps(sample.timings);
  return sample;
}

double objective(const Sample& sample, const Values& costs) {
  const auto us = modelled(sample.timings, std::bit_cast<Costs>(costs));
  const auto rough = std::bit_cast<Values>(kRough);
  double pull = 0;
  for (std::size_t i = 0; i < kCosts; ++i) {
    if (costs[i] > 0) pull += std::log(costs[i] / rough[i]) * std::log(costs[i] / rough[i]);
  }
  return fit_objective(sample.timings, sample.steps, us) + kPull * pull;
}

/// Coordinate search over the logarithms of the costs, with steps that grow where they help. Those in `fixed` stay.
Values fitted(const Sample& sample, Values costs, const std::set<std::size_t>& fixed, int sweeps) {
  constexpr double kFirst = 0.3, kMost = 0.7, kLeast = 0.004, kAgain = 0.02, kEnough = 3e-6;
  Values steps;
  steps.fill(kFirst);
  double best = objective(sample, costs);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    const double before = best;
    for (std::size_t i = 0; i < kCosts; ++i) {
      if (fixed.count(i) > 0) continue;
      bool moved = false;
      for (const double direction : {1.0, -1.0}) {
        Values tried = costs;
        tried[i] *= std::exp(direction * steps[i]);
        if (const double value = objective(sample, tried); value < best - 1e-9) {
          best = value, costs = tried, moved = true;
          break;
        }
      }
      steps[i] = moved ? std::min(1.5 * steps[i], kMost) : 0.5 * steps[i];
      if (steps[i] < kLeast) steps[i] = kAgain;
    }
    if (sweep > 8 && before - best < kEnough) break;
  }
  return costs;
}

constexpr int kSweeps = 40, kFewSweeps = 25;
constexpr std::size_t kFolds = 5;

void print(std::string_view name, const Sample& sample, const std::vector<double>& us,
           const std::function<bool(const Timing&)>& shown) {
  std::vector<TimedStep> steps;
  std::set<std::size_t> configurations;
  for (const TimedStep& step : sample.steps) {
    if (!shown(sample.timings[step.front()])) continue;
    steps.push_back(step);
    configurations.insert(step.begin(), step.end());
  }
  if (steps.empty()) return;
  const auto lost = regrets(sample.timings, steps, us), off = errors(sample.timings, us);
  std::vector<double> off_here;
  for (std::size_t i = 0; i < off.size(); ++i) {
    if (shown(sample.timings[i])) off_here.push_back(off[i]);
  }
  fmt::print("{:34} {:5} {:6} | {:5.2f} {:5.2f} {:5.2f} {:5.2f} {:5.1f} | {:5.1f} {:5.1f}\n", name, steps.size(),
             configurations.size(), 100 * mean(lost), 100 * quantile(lost, 0.5), 100 * quantile(lost, 0.9),
             100 * quantile(lost, 0.95), 100 * quantile(lost, 1), 100 * quantile(off_here, 0.5),
             100 * quantile(off_here, 0.9));
}

void print_heading() {
  fmt::print("{:34} steps  times | regret in %: mean, median, 90th, 95th, most | error in %: median, 90th\n", "");
}

void print_all(const Sample& all, const std::vector<double>& us) {
  print("all", all, us, [](const Timing&) { return true; });
  print("  on an H100", all, us, [](const Timing& one) { return !one.h200; });
  print("  on an H200", all, us, [](const Timing& one) { return one.h200; });
  print("  of latent caches", all, us, [](const Timing& one) { return one.problem.features.latent; });
  print("  with dependent launches", all, us, [](const Timing& one) { return one.problem.pdl; });
}

std::size_t hash_of(const std::string& text) {
  std::size_t hash = 1469598103934665603u;  // FNV-1a, so that folds are the same everywhere
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash ^ (hash >> 29);
}

using Key = std::function<std::size_t(const Timing&)>;
std::size_t problem_of(const Timing& one) { return hash_of(to_json(without_pdl(one.problem))); }

/// The time of each timing with costs that were fitted to the other folds, from `first` on.
std::vector<double> held_out(const Sample& all, std::size_t folds, const Key& key, const Values& first,
                             const std::set<std::size_t>& fixed) {
  std::vector<double> us(all.timings.size());
  for (std::size_t fold = 0; fold < folds; ++fold) {
    const auto is_out = [&](const Timing& one) { return key(one) % folds == fold; };
    const Sample others = sample_of(all.timings, [&](const Timing& one) { return !is_out(one); });
    const Values costs = fitted(others, first, fixed, kFewSweeps);
    const auto predicted = modelled(all.timings, std::bit_cast<Costs>(costs));
    for (std::size_t i = 0; i < us.size(); ++i) {
      if (is_out(all.timings[i])) us[i] = predicted[i];
    }
  }
  return us;
}

void judge_held_out(std::string_view name, const Sample& all, std::size_t folds, const Key& key) {
  const std::vector<double> us = held_out(all, folds, key, std::bit_cast<Values>(kRough), {});
  fmt::print("{}\n", name);
  print_all(all, us);
}

double rounded(double value) {
  const double scale = std::pow(10.0, 2 - std::floor(std::log10(value)));
  return std::round(value * scale) / scale;
}

std::string header_of(const Values& costs) {
  std::string text = fmt::format(
      "// fitted_costs.hpp -- written by tests/tools/fit_costs from the timings in bench/results. Do not edit.\n"
      "#pragma once\n\n#include \"runtime/lookup/costs.hpp\"\n\nnamespace leanattn {{\ninline namespace v1 {{\n\n"
      "inline constexpr int kFittedClockKhz = {};  ///< of the GPUs that were measured\n"
      "inline constexpr Costs kFittedCosts{{\n",
      kFittedClockKhz);
  std::size_t at = 0;
  for (const Member& member : kMembers) {
    const std::span<const double> values(&costs[at], member.count);
    at += member.count;
    text += member.count > 1 ? fmt::format("    .{} = {{{}}},\n", member.name, fmt::join(values, ", "))
                             : fmt::format("    .{} = {},\n", member.name, values[0]);
  }
  return text + "};\n\n}  // namespace v1\n}  // namespace leanattn\n";
}

void judge_without(const Sample& all) {
  std::size_t at = 0;
  for (const Member& member : kMembers) {
    Values first = std::bit_cast<Values>(kRough);
    std::set<std::size_t> fixed;
    for (std::size_t i = 0; i < member.count; ++i, ++at) first[at] = member.off, fixed.insert(at);
    const auto us = held_out(all, kFolds, problem_of, first, fixed);
    print(fmt::format("without {}", member.name), all, us, [](const Timing&) { return true; });
    print("  with dependent launches", all, us, [](const Timing& one) { return one.problem.pdl; });
  }
}

int run(std::span<char*> arguments) {
  if (arguments.size() < 2) return fmt::print(stderr, "fit_costs TIMINGS [--fit [FILE] | --held-out | --without]\n"), 2;
  const Sample all = sample_of(read_timings(arguments[1]), [](const Timing&) { return true; });
  const std::string_view mode = arguments.size() > 2 ? arguments[2] : "";
  print_heading();
  Values costs = std::bit_cast<Values>(kFittedCosts);
  if (mode == "--fit") {
    costs = fitted(all, std::bit_cast<Values>(kRough), {}, kSweeps);
    std::transform(costs.begin(), costs.end(), costs.begin(), rounded);
    if (arguments.size() > 3) std::ofstream(arguments[3]) << header_of(costs);
  }
  const auto us = modelled(all.timings, std::bit_cast<Costs>(costs));
  print_all(all, us);
  if (mode == "--held-out") {
    judge_held_out("problems that took no part in the fit", all, kFolds, problem_of);
    judge_held_out("shapes that took no part in the fit", all, kFolds,
                   [](const Timing& one) { return hash_of(to_json(one.shape)); });
    judge_held_out("a GPU that took no part in the fit", all, 2,
                   [](const Timing& one) { return std::size_t{one.h200}; });
  } else if (mode == "--without") {
    judge_without(all);
  } else {
    std::set<std::string> sources;
    for (const Timing& one : all.timings) sources.insert(one.source);
    for (const std::string& source : sources)
      print(source, all, us, [&](const Timing& one) { return one.source == source; });
  }
  if (mode == "--fit") fmt::print("\n{}", header_of(costs));
  return 0;
}

}  // namespace
}  // namespace leanattn

int main(int count, char** arguments) { return leanattn::run({arguments, static_cast<std::size_t>(count)}); }
