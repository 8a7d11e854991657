// tune_decide.cpp -- the deciding half of ShapeSearch: the race, the confirmation of its finalists, and the answer.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/tune_shape.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Rounds run before each cut, and what part of the race survives it (of those that the interval has not dropped
// already).
struct Rung {
  int rounds;
  std::size_t one_of;
};
constexpr Rung kRungs[] = {{3, 2}, {3, 3}, {4, 0}};  // 0: as many as there are finalists

constexpr double kTie = 0.003;          // relative differences below this are nobody's business
constexpr double kGoodInterval = 0.01;  // width of the leader's interval at which confirmation ends early

}  // namespace

Result<bool> ShapeSearch::run_rounds(Race& race, const std::vector<Candidate>& candidates, int rounds,
                                     const char* phase, double until_s) {
  const int wanted = race.rounds() + rounds;
  while (race.rounds() < wanted) {
    if (stopped(until_s)) return false;
    const std::vector<std::size_t> order = race.order();
    std::vector<Config> configs;
    for (const std::size_t i : order) configs.push_back(candidates[i].config);
    report(phase, fmt::format("{} candidates", order.size()), race.rounds(), wanted);
    const Result<RoundTimes> times = time(configs);
    if (times) {
      race.add(order, *times);
      continue;
    }
    if (times.error().code == ErrorCode::interrupted) return false;
    if (times.error().code != ErrorCode::launch_failed || !drop_condemned(race, candidates))
      return tl::unexpected(times.error());
    if (race.alive() == 0) return false;
  }
  return true;
}

bool ShapeSearch::drop_condemned(Race& race, const std::vector<Candidate>& candidates) {
  bool any = false;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!race.is_alive(i) || !record_condemned(candidates[i])) continue;
    race.drop(i);
    any = true;
  }
  return any;
}

Result<void> ShapeSearch::decide() {
  std::stable_sort(held_.begin(), held_.end(), [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  const bool anything_new = std::any_of(held_.begin(), held_.end(), [](const Candidate& c) { return !c.known; });
  if (!anything_new) return {};
  std::vector<Candidate> racing;
  for (const Candidate& candidate : held_) {
    // Of what earlier sessions settled, only their winner races again.
    const bool incumbent = std::find(incumbents_.begin(), incumbents_.end(), candidate.config) != incumbents_.end();
    if (candidate.known && !incumbent) continue;
    if (racing.size() < state_.effort.race_size || incumbent) {
      racing.push_back(candidate);
    } else if (!(candidate.config == default_)) {
      const double samples[] = {candidate.us};
      record(candidate.config, candidate.compiled, TrialStatus::pruned,
             fmt::format("{:.1f} % slower than the best in its first sample", (candidate.us / best_us_ - 1) * 100),
             samples);
    }
  }
  for (auto candidate = racing.begin(); candidate != racing.end();) {
    // An incumbent that was not timed in this session has not been checked in it either.
    if (candidate->known) {
      if (auto begun = begin_measuring(); !begun) return begun;
      const Result<bool> passed = passes_check(*candidate);
      if (!passed) return tl::unexpected(passed.error());
      if (!*passed && state_.backend.condemned(candidate->config)) {
        candidate = racing.erase(candidate);
        continue;
      }
      if (!*passed && state_.cancelled()) break;  // what is known already decides
      if (!*passed)
        return fail(ErrorCode::wrong_result,
                    fmt::format("{} was right in an earlier session and is wrong now", to_json(candidate->config)),
                    "Run leanattn verify; the GPU or its driver may be at fault.");
    }
    ++candidate;
  }
  result_.raced = static_cast<int>(racing.size());

  Race race(racing.size());
  std::vector<bool> recorded(racing.size());
  const double until_s = phase_end(0.9);
  for (const Rung& rung : kRungs) {
    const Result<bool> all = run_rounds(race, racing, rung.rounds, "race", until_s);
    if (!all) return tl::unexpected(all.error());
    for (std::size_t i = 0; i < racing.size(); ++i) recorded[i] = recorded[i] || !race.is_alive(i);
    if (!*all) {
      settle_early(&race, racing);
      return {};
    }
    const std::size_t leader = race.leader();
    race.drop_slower(kTie);
    race.keep_best(rung.one_of > 0 ? std::max(state_.effort.race_size / rung.one_of, state_.effort.finalists)
                                   : state_.effort.finalists);
    for (std::size_t i = 0; i < racing.size(); ++i) {
      if (race.is_alive(i) || recorded[i] || racing[i].config == default_) continue;
      recorded[i] = true;
      record(racing[i].config, racing[i].compiled, TrialStatus::pruned,
             fmt::format("{:.1f} % slower than the leader after {} rounds", (race.ratio(i, leader).ratio - 1) * 100,
                         race.rounds()),
             race.samples(i), race.noise());
    }
    if (race.alive() <= 1) break;
  }
  std::vector<Candidate> finalists;
  for (std::size_t i = 0; i < racing.size(); ++i) {
    if (race.is_alive(i)) finalists.push_back(racing[i]);
  }
  std::stable_sort(finalists.begin(), finalists.end(),
                   [](const Candidate& a, const Candidate& b) { return a.us < b.us; });
  return confirm(std::move(finalists));
}

Result<void> ShapeSearch::confirm(std::vector<Candidate> finalists) {
  // Fresh samples: those that chose the finalists favour the lucky ones.
  const auto is_default = [&](const Candidate& c) { return c.config == default_; };
  if (std::none_of(finalists.begin(), finalists.end(), is_default)) {
    const auto it = std::find_if(held_.begin(), held_.end(), [&](const Candidate& c) {
      return is_default(c) && !c.known && !state_.backend.condemned(c.config);
    });
    if (it != held_.end()) finalists.push_back(*it);
  }
  Race race(finalists.size());
  const int least = state_.effort.confirm_rounds_min, most = state_.effort.confirm_rounds_max;
  while (race.rounds() < most) {
    const Result<bool> all = run_rounds(race, finalists, race.rounds() == 0 ? least : 4, "confirm", phase_end(1.0));
    if (!all) return tl::unexpected(all.error());
    if (!*all) break;
    const Summary leader = summarize(race.samples(race.leader()));
    if (leader.high - leader.low < kGoodInterval * leader.median) break;
  }
  if (race.rounds() < 3 || race.alive() == 0) {
    settle_early(&race, finalists);
    return {};
  }
  const std::size_t leader = race.leader();
  const std::vector<std::size_t> tied = race.tied_with_leader(kTie);
  const std::size_t winner = *std::min_element(tied.begin(), tied.end(), [&](std::size_t a, std::size_t b) {
    return to_json(finalists[a].config) < to_json(finalists[b].config);
  });
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    if (!race.is_alive(i)) continue;  // it is recorded
    if (is_default(finalists[i])) result_.default_us = median(race.samples(i));
    const bool tie = std::find(tied.begin(), tied.end(), i) != tied.end();
    const PairedRatio behind = race.ratio(i, leader);
    record(finalists[i].config, finalists[i].compiled, tie ? TrialStatus::ok : TrialStatus::pruned,
           tie ? ""
               : fmt::format("{:.1f} % slower than the winner (95 % interval {:.1f} .. {:.1f})",
                             (behind.ratio - 1) * 100, (behind.low - 1) * 100, (behind.high - 1) * 100),
           race.samples(i), race.noise());
  }
  const Summary summary = summarize(race.samples(winner));
  result_.winner = finalists[winner].config;
  result_.median_us = summary.median, result_.low_us = summary.low, result_.high_us = summary.high;
  if (race.rounds() < least) result_.finished = false;
  return {};
}

void ShapeSearch::settle_early(const Race* race, const std::vector<Candidate>& candidates) {
  result_.finished = false;
  if (race != nullptr && race->rounds() > 0 && race->alive() > 0) {
    const std::size_t leader = race->leader();
    const Summary summary = summarize(race->samples(leader));
    record(candidates[leader].config, candidates[leader].compiled, TrialStatus::ok, "", race->samples(leader),
           race->noise());
    result_.winner = candidates[leader].config;
    result_.median_us = summary.median, result_.low_us = summary.low, result_.high_us = summary.high;
    return;
  }
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (state_.backend.condemned(candidate.config)) continue;
    if (best == nullptr || candidate.us < best->us) best = &candidate;
  }
  if (best == nullptr) return;
  const double samples[] = {best->us};
  if (!best->known) record(best->config, best->compiled, TrialStatus::ok, "", samples);
  result_.winner = best->config;
  result_.median_us = result_.low_us = result_.high_us = best->us;
}

Result<void> ShapeSearch::answer() {
  if (auto committed = state_.trials.drain(); !committed) return committed;
  const std::int64_t bytes = kv_bytes(state_.request.problem, shape_);
  if (read_limit_us_ > 0) {
    result_.read_limit_us = read_limit_us_;
    state_.read_limits.emplace_back(bytes, read_limit_us_);
    if (auto kept = state_.db.set_read_limit(state_.device_model, state_.policy(), bytes, read_limit_us_); !kept)
      return kept;
  }
  if (auto rebuilt = state_.db.rebuild_winners(state_.device_model, problem_json_, shape_json_, state_.policy());
      !rebuilt)
    return rebuilt;
  // What look-ups will use is what the database says, with earlier sessions' trials counted in.
  const Result<std::vector<Winner>> winners = state_.db.winners(state_.device_model);
  if (!winners) return tl::unexpected(winners.error());
  for (const Winner& winner : *winners) {
    if (winner.problem != problem_json_ || winner.shape != shape_json_ || winner.policy != state_.policy()) continue;
    const Result<Config> config = config_from_json(winner.config);
    if (!config) continue;
    result_.winner = *config;
    result_.median_us = winner.median_us, result_.low_us = winner.low_us, result_.high_us = winner.high_us;
    if (read_limit_us_ == 0) result_.read_limit_us = winner.read_limit_us;
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
