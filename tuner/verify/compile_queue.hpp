// compile_queue.hpp -- CompileQueue: compiles a list of kernels on all cores and hands them out in the list's order.
// One thread creates and consumes it. Its own threads only compile.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/compiler.hpp"
#include "runtime/threads.hpp"
#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// The first of a VerifyKernel's specs that compiles, or the error of the last one.
struct CompiledChoice {
  const VerifyKernel* kernel = nullptr;
  EmittedKernel emitted;
  Result<CompiledKernel> compiled = fail(ErrorCode::internal, "the kernel was not compiled");
  int rejected = 0;  ///< specs before it that spill
};

class CompileQueue {
 public:
  /// `kernels` must outlive the queue. `cubins` may be null. 0 threads means one for each core. At most `ahead` results
  /// wait to be consumed. Where the system has no thread to give, next() compiles on that of the caller.
  CompileQueue(const std::vector<VerifyKernel>& kernels, CubinCache* cubins, int threads = 0, std::size_t ahead = 256);
  ~CompileQueue();
  CompileQueue(const CompileQueue&) = delete;
  CompileQueue& operator=(const CompileQueue&) = delete;

  /// Waits for the next kernel of the list; nullopt after the last.
  std::optional<CompiledChoice> next();

 private:
  void work();

  const std::vector<VerifyKernel>& kernels_;
  CubinCache* cubins_;
  std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, CompiledChoice> ready_;
  std::size_t started_ = 0, consumed_ = 0;
  bool stopping_ = false;
  ThreadGroup threads_;
};

/// Compiles one kernel of a plan on this thread.
CompiledChoice compile_choice(const VerifyKernel& kernel, CubinCache* cubins);

}  // namespace v1
}  // namespace leanattn
