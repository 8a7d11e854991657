// tune_request.hpp -- TuneRequest: what to tune, and within which limits. Any thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/layers.hpp"
#include "runtime/lookup/decode_step.hpp"
#include "tuner/backend/backend.hpp"

namespace leanattn {
inline namespace v1 {

/// Shapes of a problem of a group are those of one rank. A problem with pdl is tuned for launches that follow each
/// other with programmatic dependent launch: every candidate is launched so, and a time is that of one link of such a
/// chain.
struct TuneRequest {
  DecodeProblem problem;
  std::vector<Shape> shapes;
  StepRequests requests = {};  ///< of the only shape, where they are known
  int device = 0;
  /// Of a problem of a group: the CUDA ordinal of each rank's GPU. One GPU may stand in for several. Else empty.
  std::vector<int> rank_devices = {};
  L2Policy policy = L2Policy::cold;
  std::optional<std::chrono::milliseconds>
      budget;                   ///< for all shapes together; at its end the best answer so far stays
  std::vector<double> weights;  ///< each shape's weight in the budget; empty: all shapes weigh the same
  bool resume = false;          ///< skip candidates that were tried with this library revision, driver and NVRTC
  bool revalidate = false;      ///< do not search: measure the stored winners, their rivals and the defaults again
  bool dry_run = false;         ///< say what would be tried, and touch nothing
  int compile_threads = 0;      ///< 0: one per core
  std::string command;          ///< recorded with the session
  /// The winners from which look-ups on this device answer before the session: what they answer is compared with all
  /// that the session may store. Called when a session begins, on its thread; again where a database was locked. Empty:
  /// the winners of the database that is tuned into.
  std::function<WinnersByProblem(const DeviceModel&, const Environment&)> open_winners = {};
};

/// Errors: invalid_argument and unsupported, for the problem, for a shape, for no shapes at all, for wrong weights, for
/// a budget that is not positive, and for another number of GPUs than the group has ranks.
Result<void> validate(const TuneRequest& request);

/// The request's shapes on a device, which must outlive them, in the request's order.
std::vector<DecodeStep> steps_of(const TuneRequest& request, const DeviceFacts& device);

/// The most ranks of the group that share a GPU; 1 without a group.
int ranks_on_a_gpu(const TuneRequest& request);

/// Whether the device can launch this problem as it asks. Errors: unsupported (pdl before sm_90, no kernels).
Result<void> require_launches(const DeviceFacts& device, const DecodeProblem& problem);

}  // namespace v1
}  // namespace leanattn
