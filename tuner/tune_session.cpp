#include "tuner/tune_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/lookup.hpp"
#include "tuner/decode_case.hpp"
#include "tuner/portfolio_fit.hpp"
#include "tuner/search_space.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

Result<void> tune_shapes(SessionState& state, ShapeQueue& shapes, TuneSummary& summary) {
  std::vector<std::optional<TunedShape>> tuned(state.request.shapes.size());
  bool first = true;
  for (; !state.cancelled(); first = false) {
    const double now = state.backend.now_s();
    if (now >= state.ends_s) break;
    const std::optional<ShapeQueue::Turn> turn = shapes.take();
    if (!turn) break;
    // The first shape also waits for the compiler, on behalf of all of them: it may take two shares.
    const double deadline =
        now + (state.ends_s - now) * (first && turn->turns_left > 1 ? std::min(1.0, 2 * turn->share) : turn->share);
    Result<TunedShape> shape = tune_shape(state, static_cast<int>(turn->index), deadline);
    if (!shape && shape.error().code == ErrorCode::interrupted) break;
    if (!shape) {
      shapes.give_back(turn->index);
      return tl::unexpected(shape.error());
    }
    tuned[turn->index] = std::move(*shape);
    state.model = fit_model(state.prior, state.device, state.samples, state.read_limits);
  }
  if (auto committed = state.trials.drain(); !committed) return committed;
  for (std::size_t i = 0; i < tuned.size(); ++i)
    summary.shapes.push_back(tuned[i] ? std::move(*tuned[i])
                                      : known_answer(state.request, state.device, state.request.shapes[i], state.db));
  return {};
}

}  // namespace

TunedShape known_answer(const TuneRequest& request, const DeviceFacts& device, const Shape& shape, TuningDb& db) {
  TunedShape known;
  known.shape = shape;
  known.winner = default_config(device, request.problem, shape);
  known.finished = false;
  const Result<std::vector<Winner>> winners = db.winners(device_model(device));
  if (!winners) return known;
  for (const Winner& winner : *winners) {
    if (winner.problem != to_json(request.problem) || winner.shape != to_json(shape) ||
        winner.policy != (request.policy == L2Policy::cold ? "cold" : "warm"))
      continue;
    if (const Result<Config> config = config_from_json(winner.config)) {
      known.winner = *config;
      known.median_us = winner.median_us, known.low_us = winner.low_us, known.high_us = winner.high_us;
      known.read_limit_us = winner.read_limit_us;
    }
  }
  return known;
}

SearchEffort effort_for(int compile_threads) {
  SearchEffort effort;
  effort.specs = static_cast<std::size_t>(std::clamp(40 + 6 * compile_threads, 48, 128));
  return effort;
}

SearchEffort exhaustive_effort(std::size_t specs, double reach) {
  return {.specs = specs,
          .grids_per_spec = std::numeric_limits<std::size_t>::max(),
          .sweep_specs = 0,
          .refine_specs = 8,
          .refine_generations = 1,
          .race_size = 96,
          .finalists = 8,
          .every_grid = true,
          .reach = reach};
}

Result<void> validate(const TuneRequest& request) {
  if (auto ok = validate(request.problem); !ok) return ok;
  if (request.shapes.empty())
    return fail(ErrorCode::invalid_argument, "no shapes to tune for",
                "Give at least one batch size and context length.");
  for (const Shape& shape : request.shapes) {
    if (auto ok = validate(request.problem, shape); !ok) return ok;
  }
  if (!request.weights.empty() && request.weights.size() != request.shapes.size()) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} weights for {} shapes", request.weights.size(), request.shapes.size()),
                "Give one a shape, or none.");
  }
  for (const double weight : request.weights) {
    if (!std::isfinite(weight) || weight <= 0) {
      return fail(ErrorCode::invalid_argument, fmt::format("a weight of {}", weight), "Give positive numbers.");
    }
  }
  if (request.budget && request.budget->count() <= 0) {
    return fail(ErrorCode::invalid_argument, fmt::format("a budget of {} ms", request.budget->count()),
                "Give a positive time, or none at all.");
  }
  return {};
}

Result<void> require_launches(const DeviceFacts& device, const DecodeProblem& problem) {
  if (!problem.pdl || has_dependent_launch(device.arch)) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("programmatic dependent launch needs sm_90 or newer, this is {}", to_string(device.arch)),
              "Leave --pdl out: here a problem with it launches as one without.");
}

TuneSummary plan_session(const TuneRequest& request, const DeviceFacts& device, const SearchEffort& effort) {
  TuneSummary summary;
  summary.device = device;
  const CostModel model = default_model(device);
  const std::vector<KernelSpec> specs = choose_specs(model, device, request.problem, request.shapes, effort.specs);
  for (const Shape& shape : request.shapes) {
    TunedShape planned;
    planned.shape = shape;
    planned.winner = default_config(device, request.problem, shape);
    planned.finished = false;
    planned.candidates = 1;
    for (const KernelSpec& spec : specs) {
      const auto ranked =
          rank_grids(model.of(spec), device, request.problem, canonical(shape), spec, guess_resident(device, spec));
      for (const RankedConfig& candidate : spread(ranked, effort.grids_per_spec)) {
        planned.candidates += candidate.config == planned.winner ? 0 : 1;
      }
    }
    summary.shapes.push_back(planned);
  }
  return summary;
}

Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  CompilePool compiles([&backend](const KernelSpec& spec) { return backend.compile(spec); }, request.compile_threads);
  ShapeQueue shapes(request.shapes.size(), 1, request.weights);
  return run_session(request, device, environment, backend, db, effort, progress, cancel, {shapes, compiles});
}

Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel, SessionWork work) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (auto ok = require_launches(device, request.problem); !ok) return tl::unexpected(ok.error());
  const double started = backend.now_s();
  const DeviceModel model = device_model(device);
  const char* policy = request.policy == L2Policy::cold ? "cold" : "warm";
  Result<std::vector<ModelSample>> samples = measured_samples(db, model, device, request.problem, policy);
  if (!samples) return tl::unexpected(samples.error());
  const auto read_limits = db.read_limits(model, policy);
  if (!read_limits) return tl::unexpected(read_limits.error());
  const Result<std::string> session = db.begin_session(model, environment, request.command);
  if (!session) return tl::unexpected(session.error());

  TuneSummary summary;
  summary.device = device;
  Result<void> tuned;
  {
    TrialWriter trials(db, *session);
    SessionState state{.request = request,
                       .device = device,
                       .device_model = model,
                       .backend = backend,
                       .db = db,
                       .trials = trials,
                       .compiles = work.compiles,
                       .effort = effort,
                       .environment = environment,
                       .prior = default_parameters(device),
                       .model = {},
                       .read_limits = *read_limits,
                       .samples = std::move(*samples),
                       .specs = {},
                       .progress = progress,
                       .cancel = cancel,
                       .started_s = started};
    if (request.budget) state.ends_s = started + static_cast<double>(request.budget->count()) / 1000.0;
    state.model = fit_model(state.prior, device, state.samples, state.read_limits);
    std::vector<Shape> shapes;
    for (const Shape& shape : request.shapes) shapes.push_back(canonical(shape));
    if (!request.revalidate) state.specs = choose_specs(state.model, device, request.problem, shapes, effort.specs);
    tuned = tune_shapes(state, work.shapes, summary);
    if (auto committed = trials.drain(); !committed && tuned) tuned = committed;
  }
  // A session that failed keeps its trials, and says when it ended.
  Result<void> fitted;
  if (tuned) fitted = refit(db, device, request.problem, policy);
  const Result<void> finished = db.finish_session(*session);
  if (!tuned) return tl::unexpected(tuned.error());
  if (!fitted) return tl::unexpected(fitted.error());
  if (!finished) return tl::unexpected(finished.error());
  summary.seconds = backend.now_s() - started;
  summary.interrupted = cancel != nullptr && cancel->load();
  return summary;
}

}  // namespace v1
}  // namespace leanattn
