// partials_merger.hpp -- PartialsMerger: merges the results over pieces of a context into one, also those of a group
// over NCCL. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "generator/kernel_spec.hpp"
#include "leanattn/leanattn.h"
#include "templates/standalone/merge_partials.cuh"
// After merge_partials.cuh, with which it is compiled.
#include "templates/standalone/begin_exchange.cuh"

struct CUctx_st;
struct CUfunc_st;

namespace leanattn {
inline namespace v1 {

class CubinCache;    // cache/cubin/cubin_db.hpp
class LoadedSource;  // runtime/cuda/gpu.hpp

/// Checks the values of the arguments; what pointers point to is not read. Errors: invalid_argument, with the name of
/// the argument and its value.
Result<void> check_merge(const leanattn_merge_args& args);

/// The source of the merger's kernels.
std::string merge_source();

/// Loads its kernels at the first launch, and keeps them.
class PartialsMerger {
 public:
  /// `context` and `cubins` (may be null) must outlive the merger.
  PartialsMerger(Arch arch, CUctx_st* context, CubinCache* cubins);
  ~PartialsMerger();

  /// See leanattn_engine_merge_partials. `capturing` says that CUDA is capturing the stream, so that nothing may be
  /// loaded.
  Result<void> launch(const leanattn_merge_args& args, bool capturing, CUstream_st* stream);
  /// Loads the kernels where they are not yet. Errors: those of leanattn_engine_merge_partials.
  Result<void> prepare(bool capturing);
  /// Enqueue a kernel whose arguments are right, after prepare(), in the current context; also with no tokens. Errors:
  /// launch_failed, context_lost.
  Result<void> merge(const LeanMergeArgs& args, DType dtype, CUstream_st* stream) const;
  Result<void> begin(const LeanBeginArgs& args, CUstream_st* stream) const;
  /// Whether the kernels are loaded.
  bool ready() const { return functions_[0].load(std::memory_order_acquire) != nullptr; }

 private:
  /// Loads the kernel once. The second of two callers waits for the first.
  Result<void> load();

  const Arch arch_;
  CUctx_st* const context_;
  CubinCache* const cubins_;
  std::array<std::atomic<CUfunc_st*>, 2> functions_{};  ///< by leanattn_dtype; the first is set last
  std::atomic<CUfunc_st*> begin_{nullptr};
  std::mutex mutex_;  ///< guards what follows
  std::unique_ptr<LoadedSource> source_;
};

}  // namespace v1
}  // namespace leanattn
