// tune_work.hpp -- what `leanattn tune` is to tune, where that is not said by flags: what a capture counted, or what
// the database has stale winners of. Main thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "cli/shape_flags.hpp"
#include "runtime/capture_file.hpp"
#include "runtime/device.hpp"
#include "tuner/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// One problem, and shapes of it in the order to be tuned.
struct TuneWork {
  Workload workload;
  std::vector<double> weights;  ///< of the shapes in a budget; empty: equal ones
  L2Policy policy = L2Policy::cold;
};

/// Of the time for all, the share of work `index` in what is left for it and those after it.
double share_of(const std::vector<TuneWork>& works, std::size_t index);

/// The captured shapes, most frequent first, weighted by their calls: neighbours of one problem are one work, so a
/// problem may come up several times.
std::vector<TuneWork> captured_work(const CaptureSum& capture, L2Policy policy);

/// The winners of these devices' models, under either policy, that were measured under other software than runs now;
/// what is stale on several is named once, and measured on all of them. Equal weights. Errors: database errors.
Result<std::vector<TuneWork>> stale_work(TuningDb& db, std::span<const DeviceFacts> devices);

/// "1200 calls of 3 shapes: 80.0 % exact, 20.0 % nearest".
std::string describe(const CaptureSum& capture);
nlohmann::ordered_json to_json(const CaptureSum& capture);

}  // namespace v1
}  // namespace leanattn
