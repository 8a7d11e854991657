// tune_devices.hpp -- sessions on several devices at once, each behind a worker process: what tune_in_workers() runs on
// GPUs and the tests run on simulated ones. One caller's thread; it starts one more a device.
#pragma once

#include <span>
#include <vector>

#include "tuner/tune_session.hpp"
#include "tuner/worker_options.hpp"

namespace leanattn {
inline namespace v1 {

/// A device, and what is measured on it is measured under.
struct DeviceToTune {
  DeviceFacts facts;
  Environment environment;
};

/// See tune_in_workers(). `devices` have ordinals of their own.
Result<std::vector<ModelSummary>> tune_devices(const TuneRequest& request, std::span<const DeviceToTune> devices,
                                               const WorkerOptions& workers, const OpenTuningDb& open_db,
                                               const SearchEffort& effort, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
