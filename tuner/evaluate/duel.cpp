// duel.cpp -- rounds of both configurations, until the interval of their ratio is narrow.
#include "tuner/evaluate/duel.hpp"

#include <fmt/format.h>

#include <vector>

#include "tuner/measure/race.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kFewestDuelRounds = 16, kMostDuelRounds = 40;
constexpr double kGoodRatioInterval = 0.005;  // of a ratio

Result<void> require_right(TuneBackend& backend, const Config& config) {
  const Result<CheckOutcome> outcome = backend.check(config);
  if (!outcome) return tl::unexpected(outcome.error());
  if (outcome->verdict == Verdict::passed) return {};
  return fail(outcome->verdict == Verdict::incorrect ? ErrorCode::wrong_result : ErrorCode::launch_failed,
              fmt::format("{} passed its check before and fails it now: {}", to_json(config), outcome->reason),
              "Run leanattn verify. The GPU or its driver may be at fault.");
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
  while (race.rounds() < kMostDuelRounds) {
    const std::vector<std::size_t> order = race.order();
    std::vector<Config> configs;
    configs.reserve(order.size());
    for (const std::size_t i : order) configs.push_back(both[i]);
    const Result<RoundTimes> times = backend.time(configs);
    if (!times) return tl::unexpected(times.error());
    race.add(order, *times);
    if (race.rounds() < kFewestDuelRounds) continue;
    if (same) break;
    const PairedRatio ratio = race.ratio(0, 1);
    if (ratio.high - ratio.low < kGoodRatioInterval) break;
  }
  result.first_us = median(race.samples(0));
  result.second_us = same ? result.first_us : median(race.samples(1));
  result.ratio = same ? PairedRatio{.pairs = 0, .ratio = 1, .low = 1, .high = 1} : race.ratio(0, 1);
  result.noise = race.noise();
  return result;
}

}  // namespace v1
}  // namespace leanattn
