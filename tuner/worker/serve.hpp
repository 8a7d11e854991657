// serve.hpp -- the worker's side of protocol.hpp. `leanattn worker` runs it, and so do the tests' workers with planted
// faults. Main thread of a process of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tuner/worker/protocol.hpp"

namespace leanattn {
inline namespace v1 {

/// What a worker can do. Each function is called from the thread that serves.
struct WorkerService {
  /// Is told once where cubin.db is. Empty: kernels are kept in memory only.
  std::function<void(const std::string& cache_directory)> begin;
  std::function<Result<CompiledKernel>(const KernelSpec& spec)> compile;
  std::function<Result<std::unique_ptr<TuneBackend>>(const OpenDevice& device)> open;
};

/// The service of a real worker, with NVRTC and the GPU.
WorkerService gpu_worker_service();

/// Answers requests on `descriptor`, a socket, until the session closes it. If the session dies, the process is killed.
/// Returns the process's exit code: 0 at the end, 2 when the descriptor is no socket or when something that is not a
/// request arrives.
int serve_worker(int descriptor, const WorkerService& service);

}  // namespace v1
}  // namespace leanattn
