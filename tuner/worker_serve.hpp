// worker_serve.hpp -- the worker's side of worker_protocol.hpp: what `leanattn worker` runs, and the tests' workers
// with faults planted. Main thread of a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tuner/worker_protocol.hpp"

namespace leanattn {
inline namespace v1 {

/// What a worker can do. Each is called from the thread that serves.
struct WorkerService {
  /// Says once where cubin.db is; empty: memory only.
  std::function<void(const std::string& cache_directory)> begin;
  std::function<Result<CompiledKernel>(const KernelSpec& spec)> compile;
  std::function<Result<std::unique_ptr<TuneBackend>>(const OpenDevice& device)> open;
};

/// NVRTC and the GPU.
WorkerService gpu_worker_service();

/// Answers requests on `descriptor`, a socket, until the session closes it; dies with the session should that end
/// first. Returns the process's exit code: 0 at the end, 2 when the descriptor is no socket or what comes is no
/// request.
int serve_worker(int descriptor, const WorkerService& service);

}  // namespace v1
}  // namespace leanattn
