#include "tuner/search/recurrent_race.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tuner/measure/timed_round.hpp"
#include "tuner/search/decision.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kNarrow = 0.01;  // relative width of the leader's interval at which a confirmation ends early
constexpr int kRoundsAtATime = 4;

/// A race among some entrants, and the copy's time in its rounds.
struct RecurrentRace {
  explicit RecurrentRace(std::vector<const RecurrentEntrant*> those)
      : entrants(std::move(those)), race(entrants.size()) {}

  std::vector<const RecurrentEntrant*> entrants;
  Race race;
  std::vector<double> copy_us = {};

  bool decides() const { return race.rounds() >= kFewestRounds && race.alive() > 0; }
  const RecurrentSpec& spec(std::size_t entrant) const { return entrants[entrant]->kernel->spec(); }
};

/// Runs more rounds that count. False when the caller cancelled first.
Result<bool> run_rounds(const RecurrentSession& session, RecurrentStep& step, int rounds, RecurrentRace& timed) {
  for (const int enough = timed.race.rounds() + rounds; timed.race.rounds() < enough;) {
    if (session.cancelled()) return false;
    const std::vector<std::size_t> order = timed.race.order();
    std::vector<const TimedGraph*> graphs;
    graphs.reserve(order.size());
    for (const std::size_t i : order) graphs.push_back(&timed.entrants[i]->graph);
    auto times = time_round(step.timer, step.copy.graph, graphs, session.backend.stream(), session.device.uuid);
    if (!times) return tl::unexpected(times.error());
    times->neighbours = step.neighbours;
    times->stays_in_l2 = session.backend.rotation().stays_in_l2;
    if (timed.race.add(order, *times)) timed.copy_us.push_back(times->sentinel_us);
  }
  return true;
}

/// Keeps what became of an entrant.
void keep_entrant(const RecurrentSession& session, int batch, const RecurrentRace& timed, std::size_t entrant,
                  TrialStatus status, std::string reason) {
  RecurrentTrial trial = trial_of(timed.spec(entrant), batch, status, std::move(reason));
  trial.registers = timed.entrants[entrant]->kernel->resources().registers;
  trial.samples = timed.race.samples(entrant), trial.noise = timed.race.noise();
  keep(session, std::move(trial));
}

std::string slower(const PairedRatio& ratio, const char* than) {
  return fmt::format("{:.1f} % slower than {} (95 % interval {:.1f} .. {:.1f}) in {} rounds", (ratio.ratio - 1) * 100,
                     than, (ratio.low - 1) * 100, (ratio.high - 1) * 100, ratio.pairs);
}

/// Rounds of all entrants, of which the slower ones leave. False when the caller cancelled first.
Result<bool> run_race(const RecurrentSession& session, RecurrentStep& step, RecurrentRace& timed) {
  const SearchEffort& effort = session.request.effort;
  struct Rung {
    int rounds;
    std::size_t left;
  };
  const int batch = step.result.batch;
  Race& race = timed.race;
  for (const Rung& rung : {Rung{3, effort.race_size}, {3, effort.race_size / 3}, {4, effort.finalists}}) {
    session.report("race", batch, static_cast<int>(race.alive()), static_cast<int>(timed.entrants.size()));
    auto all = run_rounds(session, step, rung.rounds, timed);
    if (!all || !*all) return all;
    const std::vector<std::size_t> before = race.order();
    const std::size_t leader = race.leader();
    race.drop_slower(kTie);
    race.keep_best(std::max(rung.left, effort.finalists));
    for (const std::size_t i : before) {
      if (!race.is_alive(i) && !step.stays(timed.spec(i)))
        keep_entrant(session, batch, timed, i, TrialStatus::pruned, slower(race.ratio(i, leader), "the leader"));
    }
    if (race.alive() <= 1) break;
  }
  return true;
}

/// Rounds until the leader's time is known well. False when the caller cancelled first.
Result<bool> run_confirmation(const RecurrentSession& session, RecurrentStep& step, RecurrentRace& timed) {
  const SearchEffort& effort = session.request.effort;
  while (timed.race.rounds() < effort.confirm_rounds_max) {
    session.report("confirm", step.result.batch, timed.race.rounds(), effort.confirm_rounds_max);
    const int rounds = timed.race.rounds() == 0 ? effort.confirm_rounds_min : kRoundsAtATime;
    auto all = run_rounds(session, step, rounds, timed);
    if (!all || !*all) return all;
    const Summary leader = summarize(timed.race.samples(timed.race.leader()));
    if (leader.high - leader.low < kNarrow * leader.median) break;
  }
  return true;
}

/// Keeps those that are left: the leader, and what cannot be told from it, may win. And the copy beside them.
void settle(const RecurrentSession& session, const RecurrentStep& step, const RecurrentRace& timed) {
  TunedRecurrentStep& result = step.result;
  const Race& race = timed.race;
  const std::size_t leader = race.leader();
  const std::vector<std::size_t> tied = race.tied_with_leader(kTie);
  for (std::size_t i = 0; i < timed.entrants.size(); ++i) {
    if (timed.spec(i) == result.by_rule) result.by_rule_us = median(race.samples(i));
    if (!race.is_alive(i) && !step.stays(timed.spec(i))) continue;  // it was kept when it left
    const bool tie = std::find(tied.begin(), tied.end(), i) != tied.end();
    keep_entrant(session, result.batch, timed, i, tie ? TrialStatus::ok : TrialStatus::pruned,
                 tie ? (result.finished ? "" : kCutShort) : slower(race.ratio(i, leader), "the winner"));
  }
  result.copy_us = median(timed.copy_us);
  result.noise = race.noise();
  const int writes = session.request.problem.snapshots ? session.request.problem.tokens : 1;
  keep(session,
       {.batch = result.batch,
        .config =
            nlohmann::json{{"operation", "recurrent"}, {"copy", step.copy.variant.name}, {"writes", writes}}.dump(),
        .status = TrialStatus::pruned,
        .reason = "a copy of the same states",
        .samples = timed.copy_us,
        .noise = result.noise});
}

}  // namespace

Result<void> find_fastest(const RecurrentSession& session, RecurrentStep& step,
                          const std::vector<RecurrentEntrant>& entrants) {
  std::vector<const RecurrentEntrant*> all;
  all.reserve(entrants.size());
  for (const RecurrentEntrant& entrant : entrants) all.push_back(&entrant);
  RecurrentRace raced(all);
  const auto through = run_race(session, step, raced);
  if (!through) return tl::unexpected(through.error());
  std::vector<const RecurrentEntrant*> finalists;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (raced.race.is_alive(i) || step.stays(raced.spec(i))) finalists.push_back(all[i]);
  }
  RecurrentRace confirmed(finalists);
  if (*through) {
    const auto whole = run_confirmation(session, step, confirmed);
    if (!whole) return tl::unexpected(whole.error());
    step.result.finished = *whole;
  }
  if (const RecurrentRace& last = confirmed.decides() ? confirmed : raced; last.decides()) settle(session, step, last);
  return {};
}

}  // namespace v1
}  // namespace leanattn
