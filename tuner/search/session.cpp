#include "tuner/search/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tuner/model/search_space.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/looked_up.hpp"
#include "tuner/search/shape_search.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

Result<void> tune_shapes(const SessionSetup& session, SessionKnowledge& knowledge, ShapeQueue& shapes,
                         TuneSummary& summary) {
  std::vector<std::optional<TunedShape>> tuned(session.request.shapes.size());
  std::vector<std::string> no_room(tuned.size());  // why a shape does not fit
  bool first = true;
  for (; !session.cancelled(); first = false) {
    const double now = session.backend.now_s();
    if (now >= session.ends_s) break;
    const std::optional<ShapeQueue::Turn> turn = shapes.take();
    if (!turn) break;
    // The first shape waits for the compiler on behalf of all of them, so it may take two shares.
    const double share = first && turn->turns_left > 1 ? std::min(1.0, 2 * turn->share) : turn->share;
    Result<TunedShape> shape =
        tune_shape(session, knowledge, static_cast<int>(turn->index), now + (session.ends_s - now) * share);
    if (!shape && shape.error().code == ErrorCode::interrupted) break;
    if (!shape && shape.error().code == ErrorCode::out_of_memory) {
      // Equal GPUs have no more memory, so that the shape is no one else's turn either.
      no_room[turn->index] = fmt::format("there is too little memory for it ({})", shape.error().message);
      if (!summary.out_of_memory) summary.out_of_memory = shape.error();
      continue;
    }
    if (!shape) {
      shapes.give_back(turn->index);
      return tl::unexpected(shape.error());
    }
    tuned[turn->index] = std::move(*shape);
    knowledge.model = knowledge.fitted(session.device);
  }
  if (auto committed = session.trials.drain(); !committed) return committed;
  for (std::size_t i = 0; i < tuned.size(); ++i) {
    if (!tuned[i]) {
      tuned[i] = known_answer(session.request, session.device, session.request.shapes[i], session.db);
      tuned[i]->no_winner = std::move(no_room[i]);
    }
    summary.shapes.push_back(std::move(*tuned[i]));
  }
  return {};
}

}  // namespace

TuneSummary plan_session(const TuneRequest& request, const DeviceFacts& device, const SearchEffort& effort) {
  TuneSummary summary;
  summary.device = device;
  const CostModel model = default_model(device);
  const std::vector<DecodeStep> steps = steps_of(request, device);
  const std::vector<KernelSpec> specs = choose_specs(model, steps, effort.specs);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TunedShape planned;
    planned.shape = request.shapes[i];
    planned.winner = default_config(steps[i]);
    planned.finished = false;
    planned.candidates = 1;
    for (const KernelSpec& spec : specs) {
      const auto ranked = rank_grids(model.of(spec), steps[i], spec, guess_resident(device, spec));
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
  return or_out_of_memory(
      run_session(request, device, environment, backend, db, effort, progress, cancel, {shapes, compiles}));
}

Result<TuneSummary> or_out_of_memory(Result<TuneSummary> summary) {
  if (summary && summary->out_of_memory && !summary->any_searched()) return tl::unexpected(*summary->out_of_memory);
  return summary;
}

Result<TuneSummary> run_session(const TuneRequest& request, const DeviceFacts& device, const Environment& environment,
                                TuneBackend& backend, TuningDb& db, const SearchEffort& effort,
                                const ProgressSink& progress, const std::atomic<bool>* cancel, SessionWork work) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (auto ok = require_launches(device, request.problem); !ok) return tl::unexpected(ok.error());
  const double started = backend.now_s();
  const DeviceModel model = device_model(device);
  const std::string_view policy = to_string(request.policy);
  // The ranks of a group stream as the part alone does, so what was measured of that ranks their kernels and grids.
  const DecodeProblem alone = without_group(request.problem);
  Result<std::vector<ModelSample>> samples = measured_samples(db, model, device, alone, policy);
  if (!samples) return tl::unexpected(samples.error());
  const auto read_limits = db.read_limits(model, policy);
  if (!read_limits) return tl::unexpected(read_limits.error());
  Result<LookedUp> looked_up = looked_up_configs(request, device, model, environment, db);
  if (!looked_up) return tl::unexpected(looked_up.error());
  const Result<std::string> session = db.begin_session(model, environment, request.command);
  if (!session) return tl::unexpected(session.error());

  TuneSummary summary;
  summary.device = device;
  summary.warnings = std::move(looked_up->warnings);
  Result<void> tuned;
  {
    TrialWriter trials(db, *session);
    SessionSetup setup{.request = request,
                       .device = device,
                       .device_model = model,
                       .backend = backend,
                       .db = db,
                       .trials = trials,
                       .compiles = work.compiles,
                       .effort = effort,
                       .environment = environment,
                       .progress = progress,
                       .cancel = cancel,
                       .steps = steps_of(request, device),
                       .looked_up = std::move(looked_up->configs),
                       .started_s = started};
    if (request.budget) setup.ends_s = started + static_cast<double>(request.budget->count()) / 1000.0;
    SessionKnowledge knowledge{
        .prior = default_parameters(device), .samples = std::move(*samples), .read_limits = *read_limits};
    knowledge.model = knowledge.fitted(device);
    if (!request.revalidate) knowledge.specs = choose_specs(knowledge.model, setup.steps, effort.specs);
    tuned = tune_shapes(setup, knowledge, work.shapes, summary);
    if (auto committed = trials.drain(); !committed && tuned) tuned = committed;
  }
  // A session that failed keeps its trials, and its end is recorded, too.
  const Result<void> finished = db.finish_session(*session);
  if (!tuned) return tl::unexpected(tuned.error());
  if (!finished) return tl::unexpected(finished.error());
  summary.seconds = backend.now_s() - started;
  summary.interrupted = cancel != nullptr && cancel->load();
  return summary;
}

}  // namespace v1
}  // namespace leanattn
