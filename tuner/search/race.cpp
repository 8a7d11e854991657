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
    // Earlier sessions have settled what they knew, except for their winner, which races again, as does what look-ups
    // answer, however slow it was in its one sample.
    const bool incumbent =
        candidate.config == context.looked_up ||
        std::find(earlier.incumbents.begin(), earlier.incumbents.end(), candidate.config) != earlier.incumbents.end();
    if (candidate.known && !incumbent) continue;
    if (entrants.size() < context.session.effort.race_size || incumbent) {
      entrants.push_back(candidate);
    } else if (!context.stays(candidate.config)) {
      measurer.record(
          candidate, TrialStatus::pruned,
          fmt::format("{:.1f} % slower than the best in its first sample", (candidate.us / timed.best_us() - 1) * 100),
          {&candidate.us, 1});
    }
  }
  return entrants;
}

/// An entrant that was not timed in this session was not checked in it either: checks these. Condemned ones leave, and
/// once the caller has cancelled all that were not checked.
Result<std::vector<Candidate>> check_known(const ShapeContext& context, Measurer& measurer,
                                           std::vector<Candidate> entrants) {
  for (auto candidate = entrants.begin(); candidate != entrants.end();) {
    if (candidate->known) {
      if (auto begun = measurer.begin(); !begun) return tl::unexpected(begun.error());
      const Result<bool> passed = measurer.passes_check(*candidate);
      if (!passed) return tl::unexpected(passed.error());
      if (!*passed && (context.session.backend.condemned(candidate->config) || context.session.cancelled())) {
        candidate = entrants.erase(candidate);
        continue;
      }
      if (!*passed)
        return fail(ErrorCode::wrong_result,
                    fmt::format("{} was right in an earlier session and is wrong now", to_json(candidate->config)),
                    "Run leanattn verify; the GPU or its driver may be at fault.");
    }
    ++candidate;
  }
  return entrants;
}

/// At most `most` of those that are left: the fastest of the rounds, or of the screen where there was no round.
std::vector<Candidate> finalists_of(const Race& race, std::span<const Candidate> entrants, std::size_t most) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    if (race.is_alive(i)) left.push_back(i);
  }
  if (left.size() > most) {
    if (race.rounds() > 0) {
      std::stable_sort(left.begin(), left.end(),
                       [&](std::size_t a, std::size_t b) { return median(race.samples(a)) < median(race.samples(b)); });
    }
    left.resize(most);
    std::sort(left.begin(), left.end());
  }
  std::vector<Candidate> finalists;
  finalists.reserve(left.size());
  for (const std::size_t i : left) finalists.push_back(entrants[i]);
  return finalists;
}

/// A search that is cut short before its race still compares the best so far with what look-ups answer, in as few
/// rounds as decide something. These are some milliseconds.
Result<void> compare_last(const ShapeContext& context, Measurer& measurer, const TimedCandidates& timed, Raced& raced) {
  Race& race = raced.race;
  if (race.rounds() >= kFewestRounds || race.alive() == 0) return {};
  for (std::size_t i = 0; i < raced.entrants.size(); ++i) {
    const Config& config = raced.entrants[i].config;
    const bool best = std::any_of(raced.finalists.begin(), raced.finalists.end(),
                                  [&](const Candidate& finalist) { return finalist.config == config; });
    if (race.is_alive(i) && !best && !(config == context.looked_up)) race.drop(i);
  }
  const RoundPlan plan{.phase = "race",
                       .rounds = kFewestRounds - race.rounds(),
                       .until_s = context.deadline_s,
                       .best_us = timed.best_us(),
                       .to_the_end = true};
  const Result<bool> all = run_rounds(context, measurer, raced.entrants, plan, race);
  return all ? Result<void>{} : tl::unexpected(all.error());
}

}  // namespace

Result<Raced> race(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                   const TimedCandidates& timed) {
  const SearchEffort& effort = context.session.effort;
  Result<std::vector<Candidate>> checked =
      check_known(context, measurer, choose_entrants(context, earlier, measurer, timed));
  if (!checked) return tl::unexpected(checked.error());
  const std::size_t count = checked->size();
  Raced raced{.entrants = *std::move(checked), .race = Race(count), .finalists = {}};
  const std::vector<Candidate>& entrants = raced.entrants;
  Race& race = raced.race;

  std::vector<bool> recorded(entrants.size());
  for (const Rung& rung : kRungs) {
    const RoundPlan plan{
        .phase = "race", .rounds = rung.rounds, .until_s = context.phase_end(kRaceEnds), .best_us = timed.best_us()};
    const Result<bool> all = run_rounds(context, measurer, entrants, plan, race);
    if (!all) return tl::unexpected(all.error());
    for (std::size_t i = 0; i < entrants.size(); ++i) recorded[i] = recorded[i] || !race.is_alive(i);
    if (!*all) {
      raced.finished = false;
      break;
    }
    const std::size_t leader = race.leader();
    race.drop_slower(kTie);
    race.keep_best(rung.one_of > 0 ? std::max(effort.race_size / rung.one_of, effort.finalists) : effort.finalists);
    for (std::size_t i = 0; i < entrants.size(); ++i) {
      if (race.is_alive(i) || recorded[i] || context.stays(entrants[i].config)) continue;
      recorded[i] = true;
      measurer.record(entrants[i], TrialStatus::pruned,
                      fmt::format("{:.1f} % slower than the leader after {} rounds",
                                  (race.ratio(i, leader).ratio - 1) * 100, race.rounds()),
                      race.samples(i), race.noise());
    }
    if (race.alive() <= 1) break;
  }
  raced.finalists = finalists_of(race, entrants, effort.finalists);
  if (!raced.finished) {
    if (auto compared = compare_last(context, measurer, timed, raced); !compared)
      return tl::unexpected(compared.error());
  }
  return raced;
}

}  // namespace v1
}  // namespace leanattn
