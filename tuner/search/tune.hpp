// tune.hpp -- tuning on GPUs: all that the command line needs of this folder. One call at a time per process, from any
// one thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "cache/tuning/tuning_db.hpp"
#include "tuner/search/offline.hpp"
#include "tuner/search/tune_progress.hpp"
#include "tuner/search/tune_request.hpp"
#include "tuner/search/tune_summary.hpp"
#include "tuner/worker/options.hpp"

namespace leanattn {
inline namespace v1 {

/// Tunes on the GPU request.device, from this process: a kernel that breaks the CUDA context ends the session, and one
/// that hangs never ends it. Every trial is committed as it ends. `cancel` (may be null) is polled; once it is set, the
/// best so far is kept and `interrupted` is true. Errors: no_driver, no_device, nvrtc_missing, invalid_argument,
/// unsupported (pdl before sm_90; GPUs of a group that do not reach each other), database errors, context_lost. A
/// problem of a group is tuned on request.rank_devices: first the part of one rank alone, on the first of them, and
/// then its best candidates in the group (docs/how-tuning-works.md).
Result<TuneSummary> tune(const TuneRequest& request, TuningDb& db, CubinCache* cubins, const ProgressSink& progress,
                         const std::atomic<bool>* cancel);

/// Opens another connection to the one database that all devices write to. Called from the devices' threads.
using OpenTuningDb = std::function<Result<std::unique_ptr<TuningDb>>()>;

/// Tunes on all of these devices at once, each in a worker process: whatever a candidate does costs that candidate
/// only. Equal devices (one DeviceModel) split the shapes and share what is compiled; different ones tune all shapes,
/// each for itself. request.device is ignored. Of a problem of a group all of the devices tune the part of one rank
/// alone, and then request.rank_devices the group, in one worker; ordinals names those devices. Progress comes from one
/// thread at a time. Errors: as tune(), from the first device when all of them failed; when only some of them fail,
/// they are in `failures`.
Result<std::vector<ModelSummary>> tune_in_workers(const TuneRequest& request, std::span<const int> ordinals,
                                                  const WorkerOptions& workers, const OpenTuningDb& open_db,
                                                  const ProgressSink& progress, const std::atomic<bool>* cancel);

}  // namespace v1
}  // namespace leanattn
