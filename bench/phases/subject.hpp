// subject.hpp -- Subject: a kernel that is timed beside others on one shape. One thread at a time, with the context of
// the backend current.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tuner/backend/gpu_backend.hpp"

namespace leanattn {

/// A kernel, whole or a variant (KernelVariant), for the shape that the backend has begun. It has a
/// workspace of its own, since what a variant leaves behind must not meet a whole one.
class Subject {
 public:
  /// `config` is the configuration that the kernel was emitted from. Errors: those of emitting, compiling and loading.
  static Result<Subject> make(GpuBackend& backend, const Config& config, const Result<EmittedKernel>& emitted,
                              CubinCache* cubins);

  /// Errors: wrong_result where the kernel disagrees with the oracle, and those of a launch.
  Result<void> require_correct();
  /// The graph that race() replays. `adjust` is that of GpuBackend::graph. Errors: those of GpuBackend::graph.
  Result<TimedGraph> graph(const std::function<void(int launch, LeanDecodeArgs& args)>& adjust = {}) const;

 private:
  Subject(GpuBackend& backend, const Config& config, LoadedKernel kernel)
      : backend_(&backend), config_(config), kernel_(std::move(kernel)) {}

  GpuBackend* backend_;
  Config config_;
  LoadedKernel kernel_;
  std::unique_ptr<CheckWorkspace> workspace_ = std::make_unique<CheckWorkspace>();
};

/// Microseconds a launch, of each round that counted.
struct Samples {
  std::vector<std::vector<double>> us;  ///< [graph][round]
  std::vector<double> read_us;          ///< of the kernel that only reads
  std::string noise;                    ///< why the samples should be doubted; empty where nothing speaks against them
};

/// Times graphs in interleaved rounds of rotating order (race.hpp). Errors: internal where no round counted, and those
/// of GpuBackend::time_graphs.
Result<Samples> race(GpuBackend& backend, const std::vector<const TimedGraph*>& graphs);

}  // namespace leanattn
