#include "tuner/search/recurrent_tune.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvml.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "runtime/threads.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/backend/recurrent_backend.hpp"
#include "tuner/measure/timed_round.hpp"
#include "tuner/search/decision.hpp"
#include "tuner/search/trial_writer.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kNarrow = 0.01;  // relative width of the leader's interval at which a confirmation ends early
constexpr int kRoundsAtATime = 4;

/// What all sizes of a step share.
struct RecurrentSession {
  const RecurrentTuneRequest& request;
  const DeviceFacts& device;
  const DeviceModel model;
  RecurrentBackend& backend;
  TuningDb& db;
  TrialWriter& trials;
  const RecurrentProgressSink& progress;
  const std::atomic<bool>* cancel;

  bool cancelled() const { return cancel != nullptr && cancel->load(std::memory_order_relaxed); }
  void report(const char* phase, int batch, int done, int total) const {
    if (progress) progress({phase, batch, done, total});
  }
  RecurrentSpec spec_of(const RecurrentTunables& tunables) const {
    return {.arch = device.arch, .problem = request.problem, .tunables = tunables};
  }
};

/// What is kept of a candidate, or of the copy beside it.
struct RecurrentTrial {
  int batch = 1;
  std::string config;
  std::string kernel_revision = {};
  int registers = 0;
  TrialStatus status = TrialStatus::ok;
  std::string reason = {};
  std::span<const double> samples = {};
  std::string noise = {};
};

void keep(const RecurrentSession& session, RecurrentTrial of) {
  const Summary summary = summarize(of.samples);
  Trial trial;
  trial.problem = to_json(session.request.problem), trial.shape = batch_to_json(of.batch);
  trial.policy = to_string(session.request.policy);
  trial.config = std::move(of.config), trial.kernel_revision = std::move(of.kernel_revision);
  trial.status = of.status, trial.reason = std::move(of.reason);
  trial.samples = summary.samples, trial.median_us = summary.median, trial.mad_us = summary.mad;
  trial.low_us = summary.low, trial.high_us = summary.high;
  if (!of.samples.empty()) trial.samples_json = fmt::format("[{:.3f}]", fmt::join(of.samples, ","));
  trial.throttle = std::move(of.noise);
  trial.registers = of.registers;
  session.trials.add(std::move(trial));
}

RecurrentTrial trial_of(const RecurrentSpec& spec, int batch, TrialStatus status, std::string reason) {
  return {.batch = batch,
          .config = to_json(spec),
          .kernel_revision = kernel_revision(spec),
          .status = status,
          .reason = std::move(reason)};
}

/// Whether an error is one of a kernel, and the GPU goes on without it.
bool is_of_kernel(const Error& error) {
  return is_about_the_kernel(error.code) || error.code == ErrorCode::launch_failed;
}

/// The kernels of the search space that give right results, best guess first. What fails is kept as a trial of every
/// size. Others are compiled meanwhile.
Result<std::vector<RecurrentKernel>> checked_kernels(const RecurrentSession& session, CubinCache* cubins,
                                                     RecurrentTuneSummary& summary) {
  const RecurrentTuneRequest& request = session.request;
  const std::vector<RecurrentTunables> space =
      ranked_tunables(session.device, request.problem, request.batches.front());
  summary.candidates = static_cast<int>(space.size());
  std::atomic<std::size_t> compiling = 0;
  std::atomic<bool> enough = false;
  ThreadGroup compilers;
  compilers.start(
      std::min<std::size_t>(space.size(), static_cast<std::size_t>(compile_thread_count(request.compile_threads))),
      [&] {
        for (std::size_t i = compiling++; i < space.size() && !enough && !session.cancelled(); i = compiling++) {
          const auto emitted = emit(session.spec_of(space[i]));
          // What fails fails again below.
          if (emitted) static_cast<void>(compile_kernel(emitted->source, emitted->entry, emitted->spec.arch, cubins));
        }
      });
  std::vector<RecurrentKernel> kernels;
  const auto check_all = [&]() -> Result<void> {
    for (std::size_t i = 0; i < space.size() && !session.cancelled(); ++i) {
      session.report("check", 0, static_cast<int>(i), summary.candidates);
      TrialStatus status = TrialStatus::compile_fail;
      std::string reason;
      auto kernel = session.backend.prepare(space[i]);
      if (kernel) {
        status = TrialStatus::incorrect;
        const auto failure = session.backend.check(*kernel);
        if (!failure && !is_of_kernel(failure.error())) return tl::unexpected(failure.error());
        if (failure && failure->empty()) {
          kernels.push_back(*std::move(kernel));
          continue;
        }
        if (!failure) status = TrialStatus::launch_fail;
        reason = failure ? *failure : failure.error().message;
      } else if (!is_of_kernel(kernel.error())) {
        return tl::unexpected(kernel.error());
      } else {
        reason = kernel.error().message;
      }
      ++(status == TrialStatus::incorrect ? summary.incorrect : summary.rejected);
      summary.failure = reason;
      for (const int batch : request.batches) keep(session, trial_of(session.spec_of(space[i]), batch, status, reason));
    }
    return {};
  };
  const auto checked = check_all();
  enough = true;
  compilers.join();
  if (!checked) return tl::unexpected(checked.error());
  return kernels;
}

struct Entrant {
  const RecurrentKernel* kernel;
  TimedGraph graph;
};

/// A race among some entrants, and the copy's time in its rounds.
struct TimedRace {
  explicit TimedRace(std::vector<const Entrant*> those) : entrants(std::move(those)), race(entrants.size()) {}

  std::vector<const Entrant*> entrants;
  Race race;
  std::vector<double> copy_us = {};

  bool decides() const { return race.rounds() >= kFewestRounds && race.alive() > 0; }
  const RecurrentSpec& spec(std::size_t entrant) const { return entrants[entrant]->kernel->spec(); }
};

/// One size of a step: what it is measured with, and what came of it so far.
struct StepToTune {
  const CopyGraph& copy;
  std::string neighbours;
  std::vector<RecurrentSpec> stay;  ///< are confirmed however slow they were in the race: what look-ups may answer
  TunedRecurrentStep& result;
  GraphTimer timer = {};

  bool stays(const RecurrentSpec& spec) const { return std::find(stay.begin(), stay.end(), spec) != stay.end(); }
};

/// Runs more rounds that count. False when the caller cancelled first.
Result<bool> run_rounds(const RecurrentSession& session, StepToTune& step, int rounds, TimedRace& timed) {
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
void keep_entrant(const RecurrentSession& session, int batch, const TimedRace& timed, std::size_t entrant,
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
Result<bool> run_race(const RecurrentSession& session, StepToTune& step, TimedRace& timed) {
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
Result<bool> run_confirmation(const RecurrentSession& session, StepToTune& step, TimedRace& timed) {
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
void settle(const RecurrentSession& session, const StepToTune& step, const TimedRace& timed) {
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

/// The winner that the database has of a size; nullopt: none. Errors: those of the database.
Result<std::optional<std::pair<RecurrentSpec, Winner>>> known_winner(const RecurrentSession& session, int batch) {
  const std::string shape = batch_to_json(batch);
  const auto winners = session.db.winners(session.model, to_json(session.request.problem));
  if (!winners) return tl::unexpected(winners.error());
  for (const Winner& winner : *winners) {
    const auto spec = recurrent_spec_from_json(winner.config);
    if (winner.shape == shape && winner.policy == to_string(session.request.policy) && spec)
      return std::pair(*spec, winner);
  }
  return std::nullopt;
}

Result<void> tune_step(const RecurrentSession& session, const std::vector<RecurrentKernel>& kernels,
                       TunedRecurrentStep& result) {
  if (auto committed = session.trials.drain(); !committed) return committed;
  const auto earlier = known_winner(session, result.batch);
  if (!earlier) return tl::unexpected(earlier.error());
  if (auto begun = session.backend.begin_batch(result.batch); !begun) return begun;
  const RecurrentProblem& problem = session.request.problem;
  const auto copy = session.backend.fastest_copy(problem.snapshots ? problem.tokens : 1);
  if (!copy) return tl::unexpected(copy.error());
  StepToTune step{.copy = *copy,
                  .neighbours = neighbours_text(gpu_neighbours(session.device.uuid)),
                  .stay = {result.by_rule},
                  .result = result};
  if (*earlier) step.stay.push_back((*earlier)->first);
  std::vector<Entrant> entrants;
  for (const RecurrentKernel& kernel : kernels) {
    if (session.cancelled()) return {};
    auto graph = session.backend.graph(kernel);
    if (graph) {
      entrants.push_back({&kernel, *std::move(graph)});
    } else if (is_of_kernel(graph.error())) {
      keep(session, trial_of(kernel.spec(), result.batch, TrialStatus::launch_fail, graph.error().message));
    } else {
      return tl::unexpected(graph.error());
    }
  }
  result.timed = static_cast<int>(entrants.size());
  if (entrants.empty()) return {};
  std::vector<const Entrant*> all;
  all.reserve(entrants.size());
  for (const Entrant& entrant : entrants) all.push_back(&entrant);
  TimedRace raced(all);
  const auto through = run_race(session, step, raced);
  if (!through) return tl::unexpected(through.error());
  std::vector<const Entrant*> finalists;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (raced.race.is_alive(i) || step.stays(raced.spec(i))) finalists.push_back(all[i]);
  }
  TimedRace confirmed(finalists);
  if (*through) {
    const auto whole = run_confirmation(session, step, confirmed);
    if (!whole) return tl::unexpected(whole.error());
    result.finished = *whole;
  }
  if (const TimedRace& last = confirmed.decides() ? confirmed : raced; last.decides()) settle(session, step, last);
  if (auto committed = session.trials.drain(); !committed) return committed;
  if (auto rebuilt = session.db.rebuild_winners(session.model, to_json(problem), batch_to_json(result.batch),
                                                to_string(session.request.policy));
      !rebuilt)
    return rebuilt;
  const auto winner = known_winner(session, result.batch);
  if (!winner) return tl::unexpected(winner.error());
  if (*winner) {
    result.winner = (*winner)->first;
    const Winner& row = (*winner)->second;
    result.median_us = row.median_us, result.low_us = row.low_us, result.high_us = row.high_us;
  }
  return {};
}

}  // namespace

Result<std::vector<int>> missing_batches(const RecurrentTuneRequest& request, TuningDb& db, const DeviceFacts& device) {
  const auto winners = db.winners(device_model(device), std::nullopt, current_software(device));
  if (!winners) return tl::unexpected(winners.error());
  std::vector<int> batches = request.batches;
  for (const Winner& winner : *winners) {
    const auto problem = recurrent_problem_from_json(winner.problem);
    if (winner.stale || !problem || *problem != request.problem || winner.policy != to_string(request.policy)) continue;
    if (const auto batch = batch_from_json(winner.shape)) std::erase(batches, *batch);
  }
  return batches;
}

bool is_copy_config(std::string_view config) { return config.starts_with(R"({"copy":)"); }

Result<RecurrentTuneSummary> tune_recurrent(const RecurrentTuneRequest& request, TuningDb& db, CubinCache* cubins,
                                            const RecurrentProgressSink& progress, const std::atomic<bool>* cancel) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  if (request.batches.empty()) return fail(ErrorCode::invalid_argument, "no batch to tune");
  const auto device = device_facts(request.device);
  if (!device) return tl::unexpected(device.error());
  const auto backend = RecurrentBackend::create(*device, request.problem, request.policy, cubins);
  if (!backend) return tl::unexpected(backend.error());
  const DeviceModel model = device_model(*device);
  const auto uuid = db.begin_session(model, current_environment(*device), request.command);
  if (!uuid) return tl::unexpected(uuid.error());

  RecurrentTuneSummary summary{.device = *device};
  const auto tune_all = [&]() -> Result<void> {
    TrialWriter trials(db, *uuid);
    const RecurrentSession session{request, *device, model, **backend, db, trials, progress, cancel};
    const auto kernels = checked_kernels(session, cubins, summary);
    if (!kernels) return tl::unexpected(kernels.error());
    for (const int batch : request.batches) {
      if (session.cancelled()) break;
      summary.steps.push_back({.batch = batch, .by_rule = default_spec(*device, request.problem, batch)});
      if (auto done = tune_step(session, *kernels, summary.steps.back()); !done) return done;
    }
    summary.interrupted = session.cancelled();
    return trials.drain();
  };
  const auto tuned = tune_all();
  // A session that failed keeps its trials, and its end is recorded, too.
  const auto finished = db.finish_session(*uuid);
  if (!tuned) return tl::unexpected(tuned.error());
  if (!finished) return tl::unexpected(finished.error());
  summary.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  return summary;
}

}  // namespace v1
}  // namespace leanattn
