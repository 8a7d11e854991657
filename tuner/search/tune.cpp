#include "tuner/search/tune.hpp"

#include "runtime/lookup/device_identity.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/search/devices.hpp"
#include "tuner/search/group_session.hpp"
#include "tuner/search/session.hpp"

namespace leanattn {
inline namespace v1 {

Result<TuneSummary> tune(const TuneRequest& request, TuningDb& db, CubinCache* cubins, const ProgressSink& progress,
                         const std::atomic<bool>* cancel) {
  if (auto ok = validate(request); !ok) return tl::unexpected(ok.error());
  const Result<DeviceFacts> device = device_facts(request.device);
  if (!device) return tl::unexpected(device.error());
  if (auto ok = require_launches(*device, request.problem); !ok) return tl::unexpected(ok.error());
  const SearchEffort effort = effort_for(compile_thread_count(request.compile_threads));
  if (in_group(request.problem.features)) return tune_group(request, *device, effort, db, cubins, progress, cancel);
  if (request.dry_run) return plan_session(request, *device, effort);
  Result<std::unique_ptr<GpuBackend>> backend = GpuBackend::create(*device, request.problem, request.policy, cubins);
  if (!backend) return tl::unexpected(backend.error());
  (*backend)->stand_for_shape(request.requests);
  return run_session(request, *device, current_environment(*device), **backend, db, effort, progress, cancel);
}

Result<std::vector<ModelSummary>> tune_in_workers(const TuneRequest& request, std::span<const int> ordinals,
                                                  const WorkerOptions& workers, const OpenTuningDb& open_db,
                                                  const ProgressSink& progress, const std::atomic<bool>* cancel) {
  std::vector<DeviceToTune> devices;
  for (const int ordinal : ordinals) {
    const Result<DeviceFacts> device = device_facts(ordinal);
    if (!device) return tl::unexpected(device.error());
    if (auto ok = require_launches(*device, request.problem); !ok) return tl::unexpected(ok.error());
    devices.push_back({*device, current_environment(*device)});
  }
  if (in_group(request.problem.features))
    return tune_group_devices(request, devices, workers, open_db,
                              effort_for(compile_thread_count(request.compile_threads)), progress, cancel);
  return tune_devices(request, devices, workers, open_db, effort_for(compile_thread_count(request.compile_threads)),
                      progress, cancel);
}

}  // namespace v1
}  // namespace leanattn
