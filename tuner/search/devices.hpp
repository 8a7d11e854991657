// devices.hpp -- tune_devices: sessions on several devices at once, each behind a worker process. tune_in_workers()
// runs it on GPUs, and the tests run it on simulated ones. One thread calls it; it starts one more for each device.
#pragma once

#include <span>
#include <vector>

#include "tuner/search/search_effort.hpp"
#include "tuner/search/tune.hpp"
#include "tuner/worker/options.hpp"

namespace leanattn {
inline namespace v1 {

/// A device, and the environment under which its measurements are recorded.
struct DeviceToTune {
  DeviceFacts facts;
  Environment environment;
};

/// See tune_in_workers(). No two devices have the same ordinal.
Result<std::vector<ModelSummary>> tune_devices(const TuneRequest& request, std::span<const DeviceToTune> devices,
                                               const WorkerOptions& workers, const OpenTuningDb& open_db,
                                               const SearchEffort& effort, const ProgressSink& progress,
                                               const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
