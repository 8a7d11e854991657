// verify_compile.hpp -- CompileQueue: compiles a list of kernels on all cores, hands them out in the list's order.
// Created and consumed by one thread; its own threads only compile.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cache/cubin_db.hpp"
#include "runtime/compiler.hpp"
#include "tuner/verify_plan.hpp"

namespace leanattn {
inline namespace v1 {

/// The first of a VerifyKernel's specs that compiles, or why none does.
struct CompiledChoice {
  const VerifyKernel* kernel = nullptr;
  EmittedKernel emitted;
  Result<CompiledKernel> compiled = fail(ErrorCode::internal, "not compiled");
  int rejected = 0;  ///< specs refused before it (spills)
};

class CompileQueue {
 public:
  /// `kernels` must outlive the queue. cubins may be null. threads 0: one per core. At most `ahead` results wait to be
  /// consumed.
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
  std::vector<std::thread> threads_;
};

/// Compiles one kernel of a plan on this thread.
CompiledChoice compile_choice(const VerifyKernel& kernel, CubinCache* cubins);

}  // namespace v1
}  // namespace leanattn
