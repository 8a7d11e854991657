// worker_compiler.hpp -- WorkerCompiler: NVRTC in processes of its own, so that what crashes or hangs it costs one
// kernel. Thread-safe; as many processes as threads that compile at once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "tuner/worker_options.hpp"
#include "tuner/worker_process.hpp"

namespace leanattn {
inline namespace v1 {

class WorkerCompiler {
 public:
  /// For devices that have these facts in common.
  WorkerCompiler(const DeviceFacts& device, WorkerOptions options) : device_(device), options_(std::move(options)) {}

  /// Errors: those of compile(kernel, cache), with compile_failed also for a compiler that crashed or did not end;
  /// kernel_rejected (does not fit an SM), internal (no process to be had).
  Result<CompiledSpec> compile(const KernelSpec& spec);
  /// What compile() made of it, as long as this object; null before that.
  const CompiledKernel* find(const KernelSpec& spec) const;
  /// Ends compilations in hand, which then fail: nobody waits for them any more.
  void stop() { stopping_ = true; }

 private:
  Result<std::unique_ptr<WorkerProcess>> take_worker();

  const DeviceFacts device_;
  const WorkerOptions options_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerProcess>> idle_;  // guarded by mutex_
  std::map<std::string, CompiledKernel> kernels_;     // by kernel_name; nodes never move; guarded by mutex_
};

}  // namespace v1
}  // namespace leanattn
