// array_check.hpp -- ArrayCheck: what a launch's arrays hold, looked at on the device (templates/check_pages.cuh). For
// LEANATTN_DEBUG=1: it waits for the stream. Made and used with the owning context current, by one thread at a time.
#pragma once

#include <string>

#include "runtime/gpu.hpp"
#include "runtime/plan.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;  // cache/cubin_db.hpp

/// The check's CUDA source: flat and include-free, for compile_source().
std::string array_check_source();

class ArrayCheck {
 public:
  /// cubins may be null. Errors: those of compile_source and LoadedSource; out_of_memory.
  static Result<ArrayCheck> load(Arch arch, CubinCache* cubins);

  /// Waits for `stream`, which must not be capturing. Errors: invalid_argument (the first request of which a context
  /// length is beyond the capacity, a query offset falls or leaps, or a page that is used does not exist; with index
  /// and value), launch_failed, context_lost.
  Result<void> operator()(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream) const;

 private:
  ArrayCheck(LoadedSource source, CUfunc_st* function, DeviceBuffer offender)
      : source_(std::move(source)), function_(function), offender_(std::move(offender)) {}

  LoadedSource source_;
  CUfunc_st* function_;    ///< of source_
  DeviceBuffer offender_;  ///< one 64-bit word
};

}  // namespace v1
}  // namespace leanattn
