// tune_work.hpp -- TuneWork: the shapes that `leanattn tune` is to tune. They come from the flags, a call capture or
// the stale winners of a database. Main thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "cli/flags/shape_flags.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/engine/call_capture_file.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
inline namespace v1 {

/// One problem, and its shapes in the order in which they are tuned.
struct TuneWork {
  Workload workload;
  std::vector<double> weights;  ///< each shape's share of the budget, up to a factor; empty: equal shares
  L2Policy policy = L2Policy::cold;
};

/// The share that work `index` has of the time that is left for it and the works behind it.
double share_of(const std::vector<TuneWork>& works, std::size_t index);

/// The shapes of a call capture, the most frequent first, weighted by their calls. Neighbours with the same problem are
/// one work, so that a problem may have several works.
std::vector<TuneWork> captured_work(const CallCaptureSum& capture, L2Policy policy);

/// The stale winners of these devices' models under either L2 policy, with equal weights. A shape that is stale on
/// several models is in the list once, and is measured on all of them. Errors: those of the database.
Result<std::vector<TuneWork>> stale_work(TuningDb& db, std::span<const DeviceFacts> devices);

/// Leaves out the shapes that have a winner on the model of each of these devices, measured with the driver, NVRTC and
/// kernel of now; and works of which no shape is left. Errors: those of the database.
Result<std::vector<TuneWork>> missing_work(std::vector<TuneWork> works, TuningDb& db,
                                           std::span<const DeviceFacts> devices);

/// A call capture in one line: "1200 calls of 3 shapes: 80.0 % exact, 20.0 % nearest".
std::string describe(const CallCaptureSum& capture);
nlohmann::ordered_json to_json(const CallCaptureSum& capture);

}  // namespace v1
}  // namespace leanattn
