// evaluate.cpp -- what the three evaluations share: the duel, and what follows from the cases.
#include "tuner/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/race.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kFewestRounds = 16, kMostRounds = 40;
constexpr double kGoodInterval = 0.005;  // of a ratio

Result<void> require_right(TuneBackend& backend, const Config& config) {
  const Result<CheckOutcome> outcome = backend.check(config);
  if (!outcome) return tl::unexpected(outcome.error());
  if (outcome->verdict == Verdict::passed) return {};
  return fail(outcome->verdict == Verdict::incorrect ? ErrorCode::wrong_result : ErrorCode::launch_failed,
              fmt::format("{} was right and fast a moment ago: {}", to_json(config), outcome->reason),
              "Run leanattn verify; the GPU or its driver may be at fault.");
}

template <class Cases, class Value>
double largest(const Cases& cases, Value value) {
  double most = 0;
  for (const auto& one : cases) most = std::max(most, value(one));
  return most;
}

}  // namespace

Result<Duel> duel(TuneBackend& backend, const Config& first, const Config& second) {
  Duel result;
  const bool same = first == second;
  if (auto right = require_right(backend, first); !right) return tl::unexpected(right.error());
  if (!same) {
    if (auto right = require_right(backend, second); !right) return tl::unexpected(right.error());
  }
  std::vector<Config> both{first};
  if (!same) both.push_back(second);
  Race race(both.size());
  while (race.rounds() < kMostRounds) {
    const std::vector<std::size_t> order = race.order();
    std::vector<Config> configs;
    for (const std::size_t i : order) configs.push_back(both[i]);
    const Result<RoundTimes> times = backend.time(configs);
    if (!times) return tl::unexpected(times.error());
    race.add(order, *times);
    if (race.rounds() < kFewestRounds) continue;
    if (same) break;
    const PairedRatio ratio = race.ratio(0, 1);
    if (ratio.high - ratio.low < kGoodInterval) break;
  }
  result.first_us = median(race.samples(0));
  result.second_us = same ? result.first_us : median(race.samples(1));
  result.ratio = same ? PairedRatio{.pairs = 0, .ratio = 1, .low = 1, .high = 1} : race.ratio(0, 1);
  result.noise = race.noise();
  return result;
}

double SearchCase::share_of_gpu_time() const {
  return exhaustive.gpu_seconds > 0 ? searched.gpu_seconds / exhaustive.gpu_seconds : 0;
}

double SearchEvaluation::share_of_gpu_time() const {
  double searched = 0, exhaustive = 0;
  for (const SearchCase& one : cases) searched += one.searched.gpu_seconds, exhaustive += one.exhaustive.gpu_seconds;
  return exhaustive > 0 ? searched / exhaustive : 0;
}

double SearchEvaluation::worst_ratio() const {
  return largest(cases, [](const SearchCase& one) { return one.duel.ratio.ratio; });
}

double RegretEvaluation::median_regret() const {
  std::vector<double> regrets;
  for (const RegretCase& one : cases) regrets.push_back(one.regret());
  return regrets.empty() ? 0 : median(regrets);
}

double RegretEvaluation::largest_regret() const {
  return largest(cases, [](const RegretCase& one) { return one.regret(); });
}

std::size_t RepeatEvaluation::differing() const {
  return static_cast<std::size_t>(
      std::count_if(cases.begin(), cases.end(), [](const RepeatCase& one) { return !one.same(); }));
}

double RepeatEvaluation::largest_difference() const {
  return largest(cases, [](const RepeatCase& one) { return one.same() ? 0 : std::abs(one.duel.ratio.ratio - 1); });
}

}  // namespace v1
}  // namespace leanattn
