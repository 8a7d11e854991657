#include "tuner/search/confirm.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/search/rounds.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kGoodInterval = 0.01;  // relative width of the leader's interval at which the confirmation ends early
constexpr int kMoreRounds = 4;          // run at a time once the least number of rounds is done

}  // namespace

Result<std::optional<Decision>> confirm(const ShapeContext& context, Measurer& measurer, const TimedCandidates& timed,
                                        std::vector<Candidate> finalists, bool whole) {
  // The last rounds of a race that was cut short may have cost some of them.
  std::erase_if(finalists, [&](const Candidate& finalist) { return measurer.failed(finalist.config); });
  for (const Candidate& candidate : timed.in_order()) {
    const bool in = std::any_of(finalists.begin(), finalists.end(),
                                [&](const Candidate& finalist) { return finalist.config == candidate.config; });
    // A default of an earlier session was not checked in this one.
    const bool checked = !candidate.known || candidate.config == context.looked_up;
    if (!in && checked && context.stays(candidate.config) && !measurer.failed(candidate.config))
      finalists.push_back(candidate);
  }
  if (finalists.empty()) return std::nullopt;
  Race race(finalists.size());
  const int least = context.session.effort.confirm_rounds_min, most = context.session.effort.confirm_rounds_max;
  while (race.rounds() < most) {
    const RoundPlan plan{.phase = "confirm",
                         .rounds = race.rounds() == 0 ? least : kMoreRounds,
                         .until_s = context.phase_end(1.0),
                         .best_us = timed.best_us()};
    const Result<bool> all = run_rounds(context, measurer, finalists, plan, race);
    if (!all) return tl::unexpected(all.error());
    if (!*all) break;
    const Summary leader = summarize(race.samples(race.leader()));
    if (leader.high - leader.low < kGoodInterval * leader.median) break;
  }
  if (race.rounds() < kFewestRounds || race.alive() == 0) return std::nullopt;

  Decision decision{.finished = race.rounds() >= least};
  const std::size_t leader = race.leader();
  const std::vector<std::size_t> tied = race.tied_with_leader(kTie);
  const std::size_t winner = *std::min_element(tied.begin(), tied.end(), [&](std::size_t a, std::size_t b) {
    return to_json(finalists[a].config) < to_json(finalists[b].config);
  });
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (!race.is_alive(i)) continue;  // it was recorded when it left
    if (finalists[i].config == context.default_config) decision.default_us = median(race.samples(i));
    if (finalists[i].config == context.looked_up) decision.looked_up_us = median(race.samples(i));
    const bool tie = std::find(tied.begin(), tied.end(), i) != tied.end();
    const PairedRatio behind = race.ratio(i, leader);
    measurer.record(finalists[i], tie ? TrialStatus::ok : TrialStatus::pruned,
                    tie ? (whole && decision.finished ? "" : kCutShort)
                        : fmt::format("{:.1f} % slower than the winner (95 % interval {:.1f} .. {:.1f})",
                                      (behind.ratio - 1) * 100, (behind.low - 1) * 100, (behind.high - 1) * 100),
                    race.samples(i), race.noise());
  }
  const Summary summary = summarize(race.samples(winner));
  decision.winner = finalists[winner].config;
  decision.median_us = summary.median, decision.low_us = summary.low, decision.high_us = summary.high;
  return decision;
}

}  // namespace v1
}  // namespace leanattn
