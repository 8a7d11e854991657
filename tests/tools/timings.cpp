// timings.cpp -- reads the committed timings, and judges predictions by them.
#include "tests/tools/timings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"

namespace leanattn {
namespace {

DeviceFacts gpu(const char* name, std::int64_t memory_bytes, std::int64_t l2_bytes) {
  DeviceFacts device = facts_for_arch({9, 0, true}, 132).value();
  device.name = name, device.memory_bytes = memory_bytes, device.l2_bytes = l2_bytes;
  return device;
}

}  // namespace

const DeviceFacts& timed_gpu(bool h200) {
  static const std::array<DeviceFacts, 2> gpus = {gpu("NVIDIA H100 80GB HBM3", 85520809984, 52428800),
                                                  gpu("NVIDIA H200", 150323855360, 62914560)};
  return gpus[h200 ? 1 : 0];
}

std::vector<Timing> read_timings(const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  std::vector<DecodeProblem> problems;
  for (const auto& problem : json.at("problems")) problems.push_back(problem_from_json(problem.dump()).value());
  std::vector<KernelSpec> specs;
  for (const auto& spec : json.at("specs")) specs.push_back(kernel_spec_from_json(spec.dump()).value());
  std::vector<Timing> timings;
  for (const auto& row : json.at("times")) {
    Timing one;
    one.source = json.at("sources").at(row.at(8).get<std::size_t>());
    one.h200 = one.source.starts_with("h200");
    one.problem = problems.at(row.at(0).get<std::size_t>());
    one.shape = canonical({.batch = row.at(1), .longest_context = row.at(2), .total_context = row.at(3)});
    one.config.spec = specs.at(row.at(4).get<std::size_t>());
    one.config.grid = row.at(5), one.us = row.at(6), one.kind = row.at(7);
    one.resident = guess_resident(timed_gpu(one.h200), one.config.spec);
    timings.push_back(one);
  }
  return timings;
}

std::vector<MixedTiming> read_mixed_timings(const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  std::vector<MixedTiming> timings;
  for (const auto& row : json.at("mixed")) {
    MixedTiming one{.name = row.at(0), .problem = problem_from_json(row.at(1).dump()).value(), .us = row.at(6)};
    const auto lengths = row.at(2).get<std::vector<int>>(), tokens = row.at(3).get<std::vector<int>>();
    one.shape = shape_of(one.problem, {lengths, tokens});
    one.config.spec = kernel_spec_from_json(row.at(4).dump()).value();
    one.config.grid = row.at(5);
    one.config.segment_cost = segment_cost({timed_gpu(true), one.problem, one.shape}, one.config.spec);
    timings.push_back(std::move(one));
  }
  return timings;
}

std::vector<TimedStep> timed_steps(std::span<const Timing> timings) {
  using Key = std::tuple<std::string, std::string, std::string>;
  const auto key_of = [](const Timing& one, const DecodeProblem& problem) {
    return Key{one.source, to_json(one.shape), to_json(problem)};
  };
  std::map<Key, TimedStep> by_key;
  for (std::size_t i = 0; i < timings.size(); ++i) by_key[key_of(timings[i], timings[i].problem)].push_back(i);
  std::vector<TimedStep> steps;
  for (const auto& [key, own] : by_key) {
    TimedStep step = own;
    const Timing& one = timings[own.front()];
    if (const auto ordinary = by_key.find(key_of(one, without_pdl(one.problem)));
        one.problem.pdl && ordinary != by_key.end())
      step.insert(step.end(), ordinary->second.begin(), ordinary->second.end());
    const auto differs = [&](std::size_t i) { return !(timings[i].config == one.config); };
    if (std::any_of(step.begin(), step.end(), differs)) steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<double> modelled(std::span<const Timing> timings, const Costs& costs) {
  std::array<ModelParameters, 2> parameters = {default_parameters(timed_gpu(false)),
                                               default_parameters(timed_gpu(true))};
  for (ModelParameters& of_gpu : parameters) of_gpu.costs = costs;
  std::vector<double> us;
  us.reserve(timings.size());
  for (const Timing& one : timings) {
    us.push_back(predict_us(parameters[one.h200 ? 1 : 0], {timed_gpu(one.h200), one.problem, one.shape}, one.config,
                            one.resident));
  }
  return us;
}

std::vector<double> regrets(std::span<const Timing> timings, std::span<const TimedStep> steps,
                            std::span<const double> predicted_us) {
  std::vector<double> all;
  all.reserve(steps.size());
  for (const TimedStep& step : steps) {
    const auto predicted = [&](std::size_t a, std::size_t b) { return predicted_us[a] < predicted_us[b]; };
    const auto measured = [&](std::size_t a, std::size_t b) { return timings[a].us < timings[b].us; };
    const std::size_t picked = *std::min_element(step.begin(), step.end(), predicted),
                      best = *std::min_element(step.begin(), step.end(), measured);
    all.push_back(timings[picked].us / timings[best].us - 1);
  }
  return all;
}

std::vector<double> errors(std::span<const Timing> timings, std::span<const double> predicted_us) {
  std::vector<double> all;
  all.reserve(timings.size());
  for (std::size_t i = 0; i < timings.size(); ++i) all.push_back(std::abs(predicted_us[i] / timings[i].us - 1));
  return all;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(share * static_cast<double>(values.size() - 1)));
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double fit_objective(std::span<const Timing> timings, std::span<const TimedStep> steps,
                     std::span<const double> predicted_us) {
  constexpr double kCloseCall = 0.03;    // predictions that differ by so much are e times as likely to be picked
  constexpr double kMostRegret = 1.0;    // of one configuration
  constexpr double kErrorCounts = 0.15;  // beside regret
  constexpr double kLargeError = 0.3, kLargeErrorCounts = 0.2;
  double regret = 0, error = 0;
  std::vector<bool> used(timings.size(), false);
  std::size_t count = 0;
  for (const TimedStep& step : steps) {
    double least = std::numeric_limits<double>::infinity(), best = least;
    for (const std::size_t i : step) least = std::min(least, predicted_us[i]), best = std::min(best, timings[i].us);
    double weights = 0, weighted = 0;
    for (const std::size_t i : step) {
      const double weight = std::pow(least / predicted_us[i], 1 / kCloseCall);
      weights += weight;
      weighted += weight * std::min(timings[i].us / best - 1, kMostRegret);
    }
    regret += weighted / weights;
    for (const std::size_t i : step) {
      if (used[i]) continue;
      used[i] = true;
      ++count;
      const double off = std::abs(std::log(predicted_us[i] / timings[i].us));
      error += off < kLargeError ? off : kLargeError + kLargeErrorCounts * (off - kLargeError);
    }
  }
  return regret / static_cast<double>(steps.size()) + kErrorCounts * error / static_cast<double>(count);
}

}  // namespace leanattn
