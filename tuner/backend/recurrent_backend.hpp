// recurrent_backend.hpp -- RecurrentBackend: kernels of operation `recurrent` on a GPU, compared with the oracle and
// launched for timing beside copies of the same states. One thread at a time; it makes the GPU's context current.
#pragma once

#include <memory>
#include <string>

#include "runtime/cuda/device.hpp"
#include "runtime/problem.hpp"
#include "tuner/backend/recurrent_memory.hpp"
#include "tuner/measure/copy_limit.hpp"
#include "tuner/measure/rotation.hpp"
#include "tuner/measure/timed_graph.hpp"
#include "tuner/oracle/recurrent_case.hpp"

namespace leanattn {
inline namespace v1 {

/// Launches of the fastest way to copy.
struct CopyGraph {
  CopyVariant variant;
  TimedGraph graph;
};

class RecurrentBackend {
 public:
  /// `cubins` may be null, and must outlive the backend. Errors: those of validate(problem), no_driver, no_device,
  /// nvrtc_missing, out_of_memory, context_lost.
  static Result<std::unique_ptr<RecurrentBackend>> create(const DeviceFacts& device, const RecurrentProblem& problem,
                                                          L2Policy policy, CubinCache* cubins);

  /// Compiles a kernel of the problem and loads it. Errors: those of RecurrentKernel::prepare().
  Result<RecurrentKernel> prepare(const RecurrentTunables& tunables) const;
  /// Empty where outputs and states are right, else what is wrong first. Errors: launch_failed, out_of_memory,
  /// context_lost.
  Result<std::string> check(const RecurrentKernel& kernel) const;

  /// Graphs are for steps over so many requests from now on. Launches take turns over states that are at least four
  /// times as large as the L2, because lines that were written stay there, too. Graphs of before must be gone. Errors:
  /// out_of_memory, launch_failed, context_lost.
  Result<void> begin_batch(int batch);
  /// Of a kernel, which must outlive it. Errors: launch_failed, context_lost.
  Result<TimedGraph> graph(const RecurrentKernel& kernel) const;
  /// Of one read of the states and so many writes. Which way is the fastest is found out by a few rounds. Errors:
  /// launch_failed, context_lost.
  Result<CopyGraph> fastest_copy(int writes) const;

  const Rotation& rotation() const { return rotation_; }
  const Stream& stream() const { return stream_; }

 private:
  RecurrentBackend(const DeviceFacts& device, const RecurrentProblem& problem, L2Policy policy, CubinCache* cubins,
                   Context context, Stream stream, CopyLimit copies, RecurrentCase checks)
      : device_(device),
        problem_(problem),
        policy_(policy),
        cubins_(cubins),
        context_(std::move(context)),
        stream_(std::move(stream)),
        copies_(std::move(copies)),
        checks_(std::move(checks)) {}

  DeviceFacts device_;
  RecurrentProblem problem_;
  L2Policy policy_;
  CubinCache* cubins_;
  Context context_;
  Stream stream_;
  CopyLimit copies_;
  RecurrentCase checks_;
  int batch_ = 0;
  Rotation rotation_;
  std::unique_ptr<RecurrentMemory> memory_;
};

}  // namespace v1
}  // namespace leanattn
