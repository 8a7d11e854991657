#include "tuner/search/devices.hpp"

#include <algorithm>
#include <memory>
#include <mutex>

#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/one_gpu.hpp"
#include "runtime/threads.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/session.hpp"
#include "tuner/worker/backend.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Equal devices and what they share. It outlives the devices' threads.
struct ModelGroup {
  ModelGroup(const TuneRequest& request, std::vector<DeviceToTune> equal, const WorkerOptions& workers,
             int compile_threads)
      : devices(std::move(equal)),
        compiler(std::make_shared<WorkerCompiler>(devices.front().facts, workers)),
        compiles([made = compiler](const KernelSpec& spec) { return made->compile(spec); }, compile_threads),
        shapes(request.shapes.size(), devices.size(), request.weights) {}

  std::vector<DeviceToTune> devices;
  std::shared_ptr<WorkerCompiler> compiler;
  CompilePool compiles;
  ShapeQueue shapes;
};

std::vector<std::vector<DeviceToTune>> by_model(std::span<const DeviceToTune> devices) {
  std::vector<std::vector<DeviceToTune>> groups;
  for (const DeviceToTune& device : devices) {
    const auto equal = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return device_model(group.front().facts) == device_model(device.facts);
    });
    if (equal == groups.end()) {
      groups.push_back({device});
    } else {
      equal->push_back(device);
    }
  }
  return groups;
}

/// The result of one device's thread.
struct DeviceOutcome {
  Result<TuneSummary> summary = TuneSummary{};
  std::optional<std::string> warning;
  std::optional<Error> not_kept;  ///< why the database does not have what was measured
};

DeviceOutcome tune_on_device(const TuneRequest& request, const DeviceToTune& device, ModelGroup& group,
                             const WorkerOptions& workers, const OpenTuningDb& open_db, const SearchEffort& effort,
                             const ProgressSink& progress, const std::atomic<bool>* cancel) {
  DeviceOutcome outcome;
  Result<std::unique_ptr<TuningDb>> db = open_db();
  if (!db) {
    outcome.summary = tl::unexpected(db.error());
    return outcome;
  }
  WorkerOptions options = workers;
  options.requests = request.requests;
  WorkerBackend backend(device.facts, request.problem, request.policy, std::move(options), group.compiler, cancel);
  if (auto started = backend.start(); !started) {
    outcome.summary = tl::unexpected(started.error());
    return outcome;
  }
  outcome.summary = run_session(request, device.facts, device.environment, backend, **db, effort, progress, cancel,
                                {group.shapes, group.compiles});
  outcome.warning = (*db)->take_warning();
  outcome.not_kept = (*db)->not_kept();
  return outcome;
}

/// For each shape the answer of the device that searched it, or that of the database if none did.
Result<ModelSummary> merged(const TuneRequest& request, const ModelGroup& group, std::vector<DeviceOutcome> outcomes,
                            const OpenTuningDb& open_db) {
  ModelSummary model;
  model.summary.device = group.devices.front().facts;
  std::vector<std::optional<TunedShape>> shapes(request.shapes.size());
  const bool any_searched = std::any_of(outcomes.begin(), outcomes.end(), [](const DeviceOutcome& outcome) {
    return outcome.summary && outcome.summary->any_searched();
  });
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    model.ordinals.push_back(group.devices[i].facts.ordinal);
    if (outcomes[i].warning) model.warnings.push_back(*outcomes[i].warning);
    if (outcomes[i].not_kept) model.not_kept = outcomes[i].not_kept;
    if (!outcomes[i].summary) {
      model.failures.emplace_back(model.ordinals.back(), outcomes[i].summary.error());
      continue;
    }
    TuneSummary& summary = *outcomes[i].summary;
    if (summary.out_of_memory && !any_searched)
      model.failures.emplace_back(model.ordinals.back(), *summary.out_of_memory);
    if (!model.summary.out_of_memory) model.summary.out_of_memory = summary.out_of_memory;
    model.warn_once(summary.warnings);
    model.summary.seconds = std::max(model.summary.seconds, summary.seconds);
    model.summary.interrupted = model.summary.interrupted || summary.interrupted;
    for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
      TunedShape& tuned = summary.shapes[shape];
      // A search may end before its first candidate; then it says why.
      if (tuned.candidates > 0 || !tuned.no_winner.empty()) shapes[shape] = std::move(tuned);
    }
  }
  const Result<std::unique_ptr<TuningDb>> db = open_db();
  if (!db) return tl::unexpected(db.error());
  for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
    model.summary.shapes.push_back(shapes[shape]
                                       ? std::move(*shapes[shape])
                                       : known_answer(request, model.summary.device, request.shapes[shape], **db));
  }
  return model;
}

}  // namespace

Result<std::vector<ModelSummary>> tune_devices(const TuneRequest& request, std::span<const DeviceToTune> devices,
                                               const WorkerOptions& workers, const OpenTuningDb& open_db,
                                               const SearchEffort& effort, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (auto ok = one_gpu_only(request.problem, "tuning on devices that share nothing"); !ok)
    return tl::unexpected(ok.error());
  if (devices.empty()) return fail(ErrorCode::no_device, "no devices to tune on", "Name at least one.");
  const std::vector<std::vector<DeviceToTune>> models = by_model(devices);
  const int threads = compile_thread_count(request.compile_threads);
  std::vector<std::unique_ptr<ModelGroup>> groups;
  groups.reserve(models.size());
  for (const std::vector<DeviceToTune>& equal : models) {
    groups.push_back(
        std::make_unique<ModelGroup>(request, equal, workers, std::max(threads / static_cast<int>(models.size()), 1)));
  }

  std::mutex progress_mutex;
  std::vector<std::vector<DeviceOutcome>> outcomes(groups.size());
  ThreadGroup running;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    outcomes[g].resize(groups[g]->devices.size());
    for (std::size_t i = 0; i < groups[g]->devices.size(); ++i) {
      const auto tune_one = [&, g, i] {
        const DeviceToTune& device = groups[g]->devices[i];
        const ProgressSink sink = [&](const TuneProgress& said) {
          TuneProgress of_device = said;
          if (devices.size() > 1) of_device.device = device.facts.ordinal;
          const std::lock_guard lock(progress_mutex);
          progress(of_device);
        };
        outcomes[g][i] = tune_on_device(request, device, *groups[g], workers, open_db, effort,
                                        progress ? sink : ProgressSink(), cancel);
      };
      if (!running.start(tune_one)) tune_one();
    }
  }
  running.join();
  for (const auto& group : groups) {
    // Nothing waits for what is being compiled now.
    group->compiles.abandon();
    group->compiler->stop();
  }

  std::vector<ModelSummary> summaries;
  std::size_t failures = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    Result<ModelSummary> summary = merged(request, *groups[g], std::move(outcomes[g]), open_db);
    if (!summary) return tl::unexpected(summary.error());
    failures += summary->failures.size();
    summaries.push_back(std::move(*summary));
  }
  if (failures == devices.size()) return tl::unexpected(summaries.front().failures.front().second);
  return summaries;
}

}  // namespace v1
}  // namespace leanattn
