// compiler.hpp -- WorkerCompiler: runs NVRTC in processes of its own, so that a kernel which crashes or hangs it costs
// only itself. Thread-safe. There are as many processes as threads that compile at once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "tuner/worker/options.hpp"
#include "tuner/worker/process.hpp"

namespace leanattn {
inline namespace v1 {

class WorkerCompiler {
 public:
  /// Compiles for devices that have these facts in common.
  WorkerCompiler(const DeviceFacts& device, WorkerOptions options) : device_(device), options_(std::move(options)) {}

  /// Errors: those of compile(kernel, cache); compile_failed also when the compiler crashed or did not end;
  /// kernel_rejected (it does not fit an SM); internal (no process could be started).
  Result<CompiledSpec> compile(const KernelSpec& spec);
  /// The kernel that compile() made, valid as long as this object; null before that.
  const CompiledKernel* find(const KernelSpec& spec) const;
  /// Ends the compilations that have begun, which then fail. For when nobody waits for them any more.
  void stop() { stopping_ = true; }

 private:
  Result<std::unique_ptr<WorkerProcess>> take_worker();

  const DeviceFacts device_;
  const WorkerOptions options_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerProcess>> idle_;  // guarded by mutex_
  std::map<std::string, CompiledKernel> kernels_;     // by kernel_name; its nodes never move; guarded by mutex_
};

}  // namespace v1
}  // namespace leanattn
