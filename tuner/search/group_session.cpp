#include "tuner/search/group_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>

#include "runtime/engine/group.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/backend/group_backend.hpp"
#include "tuner/search/answer.hpp"
#include "tuner/search/session.hpp"
#include "tuner/worker/backend.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kShareOfPart = 0.6;  // of the budget

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

bool is_set(const std::atomic<bool>* cancel) { return cancel != nullptr && cancel->load(); }

/// What is known of the group where the session ended before it came to it.
TuneSummary interrupted_before(const TuneRequest& group, const DeviceFacts& device, TuningDb& db) {
  TuneSummary summary{.device = device, .shapes = {}, .interrupted = true};
  for (const Shape& shape : group.shapes) summary.shapes.push_back(known_answer(group, device, shape, db));
  return summary;
}

}  // namespace

TuneRequest part_request(const TuneRequest& request) {
  TuneRequest part = request;
  part.problem = without_group(request.problem);
  part.rank_devices.clear();
  part.resume = true;
  if (request.budget)
    part.budget = std::chrono::milliseconds(
        std::max<std::int64_t>(1, std::llround(static_cast<double>(request.budget->count()) * kShareOfPart)));
  return part;
}

Result<TuneRequest> part_request_of_untuned(const TuneRequest& request, const DeviceFacts& device,
                                            const Environment& environment, TuningDb& db) {
  TuneRequest part = part_request(request);
  const auto winners = db.winners(device_model(device), std::nullopt, with_kernels(environment));
  if (!winners) return tl::unexpected(winners.error());
  const std::string problem = to_json(part.problem);
  std::set<std::string> tuned;  // shapes
  for (const Winner& winner : *winners) {
    if (winner.problem == problem && winner.policy == to_string(part.policy) && !winner.stale)
      tuned.insert(winner.shape);
  }
  part.shapes.clear();
  part.weights.clear();
  for (std::size_t i = 0; i < request.shapes.size(); ++i) {
    if (tuned.contains(to_json(request.shapes[i]))) continue;
    part.shapes.push_back(request.shapes[i]);
    if (!request.weights.empty()) part.weights.push_back(request.weights[i]);
  }
  return part;
}

Result<TuneRequest> group_request(const TuneRequest& request, std::span<const DeviceFacts> devices, double seconds) {
  std::vector<std::string> uuids;
  for (const DeviceFacts& device : devices) {
    if (!(device_model(device) == device_model(devices.front())))
      return fail(
          ErrorCode::unsupported,
          fmt::format("a group of different GPUs: {} is {} with {} SMs, {} is {} with {}", devices.front().ordinal,
                      devices.front().name, devices.front().sm_count, device.ordinal, device.name, device.sm_count),
          "Name GPUs of one kind. `leanattn devices` lists them.");
    uuids.push_back(device.uuid);
  }
  TuneRequest group = request;
  group.problem.group_link = group_link(uuids);
  if (request.budget)
    group.budget = std::chrono::milliseconds(
        std::max<std::int64_t>({1, request.budget->count() - std::llround(seconds * 1000),
                                std::llround(static_cast<double>(request.budget->count()) * (1 - kShareOfPart))}));
  return group;
}

Result<TuneSummary> tune_group(const TuneRequest& request, const DeviceFacts& first, const SearchEffort& effort,
                               TuningDb& db, CubinCache* cubins, const ProgressSink& progress,
                               const std::atomic<bool>* cancel) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (request.dry_run) return plan_session(part_request(request), first, effort);
  std::vector<DeviceFacts> devices{first};
  for (const int ordinal : request.rank_devices) {
    const auto known = [&](const DeviceFacts& device) { return device.ordinal == ordinal; };
    if (std::any_of(devices.begin(), devices.end(), known)) continue;
    const Result<DeviceFacts> facts = device_facts(ordinal);
    if (!facts) return tl::unexpected(facts.error());
    devices.push_back(*facts);
  }
  const Environment environment = current_environment(first);
  const Stopwatch watch;
  const Result<TuneRequest> part = part_request_of_untuned(request, first, environment, db);
  if (!part) return tl::unexpected(part.error());
  if (!request.revalidate && !part->shapes.empty()) {
    const auto backend = GpuBackend::create(first, part->problem, part->policy, cubins);
    if (!backend) return tl::unexpected(backend.error());
    auto tuned = run_session(*part, first, environment, **backend, db, effort, progress, cancel);
    if (!tuned) return tuned;
  }
  const Result<TuneRequest> group = group_request(request, devices, watch.seconds());
  if (!group) return tl::unexpected(group.error());
  if (is_set(cancel)) return interrupted_before(*group, first, db);
  const auto backend = GroupBackend::create(first, group->problem, group->policy, cubins, group->rank_devices);
  if (!backend) return tl::unexpected(backend.error());
  auto summary = run_session(*group, first, environment, **backend, db, effort, progress, cancel);
  if (summary) summary->seconds = watch.seconds();
  return summary;
}

Result<std::vector<ModelSummary>> tune_group_devices(const TuneRequest& request, std::span<const DeviceToTune> devices,
                                                     const WorkerOptions& workers, const OpenTuningDb& open_db,
                                                     const SearchEffort& effort, const ProgressSink& progress,
                                                     const std::atomic<bool>* cancel) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  if (devices.empty()) return fail(ErrorCode::no_device, "no devices to tune on", "Name at least one.");
  std::vector<DeviceFacts> facts;
  for (const DeviceToTune& device : devices) facts.push_back(device.facts);
  // What the GPUs are is known before anything is measured.
  if (auto ok = group_request(request, facts, 0); !ok) return tl::unexpected(ok.error());
  const Stopwatch watch;
  ModelSummary model;
  for (const DeviceFacts& device : facts) model.ordinals.push_back(device.ordinal);
  const Result<std::unique_ptr<TuningDb>> db = open_db();
  if (!db) return tl::unexpected(db.error());
  const auto part = part_request_of_untuned(request, facts.front(), devices.front().environment, **db);
  if (!part) return tl::unexpected(part.error());
  if (!request.revalidate && !part->shapes.empty()) {
    auto parts = tune_devices(*part, devices, workers, open_db, effort, progress, cancel);
    if (!parts) return parts;
    for (const ModelSummary& of_part : *parts) {
      model.failures.insert(model.failures.end(), of_part.failures.begin(), of_part.failures.end());
      model.warn_once(of_part.warnings);
    }
  }
  const Result<TuneRequest> group = group_request(request, facts, watch.seconds());
  if (!group) return tl::unexpected(group.error());
  if (is_set(cancel)) {
    model.summary = interrupted_before(*group, facts.front(), **db);
    model.summary.seconds = watch.seconds();
    return std::vector<ModelSummary>{std::move(model)};
  }
  const auto compiler = std::make_shared<WorkerCompiler>(facts.front(), workers);
  Result<TuneSummary> summary = TuneSummary{};
  {
    CompilePool compiles([compiler](const KernelSpec& spec) { return compiler->compile(spec); },
                         compile_thread_count(request.compile_threads));
    ShapeQueue shapes(request.shapes.size(), 1, request.weights);
    WorkerBackend backend(facts.front(), group->problem, group->policy, workers, compiler, cancel, group->rank_devices);
    if (auto started = backend.start(); !started) return tl::unexpected(started.error());
    summary = or_out_of_memory(run_session(*group, facts.front(), devices.front().environment, backend, **db, effort,
                                           progress, cancel, {shapes, compiles}));
    compiles.abandon();
    compiler->stop();
  }
  if (!summary) return tl::unexpected(summary.error());
  if (auto warning = (*db)->take_warning()) model.warnings.push_back(std::move(*warning));
  model.not_kept = (*db)->not_kept();
  model.warn_once(summary->warnings);
  model.summary = std::move(*summary);
  model.summary.seconds = watch.seconds();
  model.summary.interrupted = model.summary.interrupted || is_set(cancel);
  return std::vector<ModelSummary>{std::move(model)};
}

}  // namespace v1
}  // namespace leanattn
