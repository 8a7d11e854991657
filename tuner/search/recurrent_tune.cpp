#include "tuner/search/recurrent_tune.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/nvml.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "runtime/threads.hpp"
#include "tuner/backend/compile_pool.hpp"
#include "tuner/search/recurrent_race.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Whether an error is one of a kernel, and the GPU goes on without it.
bool is_of_kernel(const Error& error) {
  return is_about_the_kernel(error.code) || error.code == ErrorCode::launch_failed;
}

/// Why a kernel does not enter the race.
struct Refusal {
  TrialStatus status;
  std::string reason;
};

/// Adds the kernel to `kernels`, or says why not. Errors: those that end a session.
Result<std::optional<Refusal>> add_if_right(const RecurrentBackend& backend, const RecurrentTunables& tunables,
                                            std::vector<RecurrentKernel>& kernels) {
  const auto refused = [](TrialStatus status, const Error& error) -> Result<std::optional<Refusal>> {
    if (!is_of_kernel(error)) return tl::unexpected(error);
    return Refusal{status, error.message};
  };
  auto kernel = backend.prepare(tunables);
  if (!kernel) return refused(TrialStatus::compile_fail, kernel.error());
  auto failure = backend.check(*kernel);
  if (!failure) return refused(TrialStatus::launch_fail, failure.error());
  if (!failure->empty()) return Refusal{TrialStatus::incorrect, *std::move(failure)};
  kernels.push_back(*std::move(kernel));
  return std::nullopt;
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
      const auto refusal = add_if_right(session.backend, space[i], kernels);
      if (!refusal) return tl::unexpected(refusal.error());
      if (!*refusal) continue;
      const auto& [status, reason] = **refusal;
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
  RecurrentStep step{.copy = *copy,
                     .neighbours = neighbours_text(gpu_neighbours(session.device.uuid)),
                     .stay = {result.by_rule},
                     .result = result};
  if (*earlier) step.stay.push_back((*earlier)->first);
  std::vector<RecurrentEntrant> entrants;
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
  if (auto found = find_fastest(session, step, entrants); !found) return found;
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
      auto done = tune_step(session, *kernels, summary.steps.back());
      if (done) continue;
      const auto fits = [](const TunedRecurrentStep& step) { return step.finished; };
      const bool last = batch == request.batches.back();
      if (done.error().code != ErrorCode::out_of_memory || (last && std::ranges::none_of(summary.steps, fits)))
        return done;
      summary.steps.back().no_memory = done.error().message;
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
