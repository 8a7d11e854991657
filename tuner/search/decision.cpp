#include "tuner/search/decision.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {

Decision settle_early(const ShapeContext& context, Measurer& measurer, std::span<const Candidate> candidates,
                      const Race& race) {
  Decision decision{.finished = false};
  if (race.rounds() < kFewestRounds) return decision;
  const auto runs = [&](std::size_t i) { return !context.session.backend.condemned(candidates[i].config); };
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!race.is_alive(i) || !runs(i)) continue;
    if (!best || median(race.samples(i)) < median(race.samples(*best))) best = i;
  }
  bool compared = !context.looked_up || context.session.backend.condemned(*context.looked_up);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool often_enough = static_cast<int>(race.samples(i).size()) >= kFewestRounds;
    if (!(candidates[i].config == context.looked_up) || !often_enough) continue;
    compared = true;
    decision.looked_up_us = median(race.samples(i));
    if (best && i != *best && runs(i) && race.ratio(*best, i).ratio > 1) best = i;
  }
  if (!best || !compared) return decision;
  const Summary summary = summarize(race.samples(*best));
  measurer.record(candidates[*best], TrialStatus::ok, kCutShort, race.samples(*best), race.noise());
  decision.winner = candidates[*best].config;
  decision.median_us = summary.median, decision.low_us = summary.low, decision.high_us = summary.high;
  return decision;
}

}  // namespace v1
}  // namespace leanattn
