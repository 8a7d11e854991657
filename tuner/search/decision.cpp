#include "tuner/search/decision.hpp"

namespace leanattn {
inline namespace v1 {

Decision settle_early(const ShapeContext& context, Measurer& measurer, std::span<const Candidate> candidates,
                      const Race& race) {
  Decision decision{.finished = false};
  if (race.rounds() > 0 && race.alive() > 0) {
    const std::size_t leader = race.leader();
    const Summary summary = summarize(race.samples(leader));
    measurer.record(candidates[leader], TrialStatus::ok, "", race.samples(leader), race.noise());
    decision.winner = candidates[leader].config;
    decision.median_us = summary.median, decision.low_us = summary.low, decision.high_us = summary.high;
    return decision;
  }
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (context.session.backend.condemned(candidate.config)) continue;
    if (best == nullptr || candidate.us < best->us) best = &candidate;
  }
  if (best == nullptr) return decision;
  if (!best->known) measurer.record(*best, TrialStatus::ok, "", {&best->us, 1});
  decision.winner = best->config;
  decision.median_us = decision.low_us = decision.high_us = best->us;
  return decision;
}

}  // namespace v1
}  // namespace leanattn
