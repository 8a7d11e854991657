// array_check.hpp -- ArrayCheck: checks on the GPU what the arrays (templates/check/pages.cuh) and the workspace
// (templates/check/workspace.cuh) of a launch hold. It waits for the stream and is meant for LEANATTN_DEBUG=1. Made and
// used with its context current, by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/cuda/gpu.hpp"
#include "runtime/engine/plan.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;  // cache/cubin/cubin_db.hpp

/// The CUDA source of the check, in one piece without includes, for compile_source().
std::string array_check_source();

class ArrayCheck {
 public:
  /// cubins may be null. Errors: those of compile_source and LoadedSource; out_of_memory.
  static Result<ArrayCheck> load(Arch arch, CubinCache* cubins);

  /// Waits for `stream`, which CUDA must not be capturing. Errors: invalid_argument, which names request, index and
  /// value of the first context length beyond the capacity, query offset that falls, rises by more than q_len or is
  /// above query_tokens, or page that is needed and does not exist; launch_failed, context_lost.
  Result<void> operator()(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream) const;

  /// Likewise. Errors: workspace_corrupt, which names the first word of the `bytes` that is not zero; launch_failed,
  /// context_lost.
  Result<void> expect_zero(const void* workspace, std::int64_t bytes, CUstream_st* stream) const;

 private:
  ArrayCheck(LoadedSource source, CUfunc_st* function, CUfunc_st* workspace_function, DeviceBuffer offender)
      : source_(std::move(source)),
        function_(function),
        workspace_function_(workspace_function),
        offender_(std::move(offender)) {}
  /// What a check has left in the word after it has ended: the first offender, or all ones.
  Result<std::uint64_t> first_offender(CUstream_st* stream,
                                       const std::function<Result<void>(unsigned long long*)>& launch_check) const;

  LoadedSource source_;
  CUfunc_st* function_;  ///< of source_; so is the next
  CUfunc_st* workspace_function_;
  DeviceBuffer offender_;  ///< one 64-bit word
};

}  // namespace v1
}  // namespace leanattn
