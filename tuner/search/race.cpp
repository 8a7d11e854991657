#include "tuner/search/race.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/search/rounds.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kRaceEnds = 0.9;  // share of the shape's time

/// The rounds before a cut, and the part of the race's size that may survive it.
struct Rung {
  int rounds;
  std::size_t one_of;
};
constexpr Rung kRungs[] = {{3, 2}, {3, 3}, {4, 0}};  // 0: as many as there are finalists

/// The fastest candidates of the screen, and the earlier winners. The others that are new are recorded as pruned.
std::vector<Candidate> choose_entrants(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                                       const TimedCandidates& timed) {
  std::vector<Candidate> entrants;
  for (const Candidate& candidate : timed.fastest_first()) {
    // Earlier sessions have settled what they knew, except for their winner, which races again.
    const bool incumbent =
        std::find(earlier.incumbents.begin(), earlier.incumbents.end(), candidate.config) != earlier.incumbents.end();
    if (candidate.known && !incumbent) continue;
    if (entrants.size() < context.session.effort.race_size || incumbent) {
      entrants.push_back(candidate);
    } else if (!(candidate.config == context.default_config)) {
      measurer.record(
          candidate, TrialStatus::pruned,
          fmt::format("{:.1f} % slower than the best in its first sample", (candidate.us / timed.best_us() - 1) * 100),
          {&candidate.us, 1});
    }
  }
  return entrants;
}

/// An entrant that was not timed in this session was not checked in it either: checks these. Condemned ones leave.
Result<std::vector<Candidate>> check_known(const ShapeContext& context, Measurer& measurer,
                                           std::vector<Candidate> entrants) {
  for (auto candidate = entrants.begin(); candidate != entrants.end();) {
    if (candidate->known) {
      if (auto begun = measurer.begin(); !begun) return tl::unexpected(begun.error());
      const Result<bool> passed = measurer.passes_check(*candidate);
      if (!passed) return tl::unexpected(passed.error());
      if (!*passed && context.session.backend.condemned(candidate->config)) {
        candidate = entrants.erase(candidate);
        continue;
      }
      if (!*passed && context.session.cancelled()) break;  // the times of earlier sessions decide
      if (!*passed)
        return fail(ErrorCode::wrong_result,
                    fmt::format("{} was right in an earlier session and is wrong now", to_json(candidate->config)),
                    "Run leanattn verify; the GPU or its driver may be at fault.");
    }
    ++candidate;
  }
  return entrants;
}

}  // namespace

Result<Raced> race(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                   const TimedCandidates& timed) {
  const SearchEffort& effort = context.session.effort;
  const Result<std::vector<Candidate>> checked =
      check_known(context, measurer, choose_entrants(context, earlier, measurer, timed));
  if (!checked) return tl::unexpected(checked.error());
  const std::vector<Candidate>& entrants = *checked;
  Raced raced{.entrants = static_cast<int>(entrants.size()), .finalists = {}, .early = std::nullopt};

  Race race(entrants.size());
  std::vector<bool> recorded(entrants.size());
  for (const Rung& rung : kRungs) {
    const RoundPlan plan{
        .phase = "race", .rounds = rung.rounds, .until_s = context.phase_end(kRaceEnds), .best_us = timed.best_us()};
    const Result<bool> all = run_rounds(context, measurer, entrants, plan, race);
    if (!all) return tl::unexpected(all.error());
    for (std::size_t i = 0; i < entrants.size(); ++i) recorded[i] = recorded[i] || !race.is_alive(i);
    if (!*all) {
      raced.early = settle_early(context, measurer, entrants, race);
      return raced;
    }
    const std::size_t leader = race.leader();
    race.drop_slower(kTie);
    race.keep_best(rung.one_of > 0 ? std::max(effort.race_size / rung.one_of, effort.finalists) : effort.finalists);
    for (std::size_t i = 0; i < entrants.size(); ++i) {
      if (race.is_alive(i) || recorded[i] || entrants[i].config == context.default_config) continue;
      recorded[i] = true;
      measurer.record(entrants[i], TrialStatus::pruned,
                      fmt::format("{:.1f} % slower than the leader after {} rounds",
                                  (race.ratio(i, leader).ratio - 1) * 100, race.rounds()),
                      race.samples(i), race.noise());
    }
    if (race.alive() <= 1) break;
  }
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    if (race.is_alive(i)) raced.finalists.push_back(entrants[i]);
  }
  return raced;
}

}  // namespace v1
}  // namespace leanattn
