// launch_checks.hpp -- LaunchChecks: the checks that LEANATTN_DEBUG=1 makes before and after every launch. Thread-safe.
// They take locks, ask the driver and wait for the GPU, so they are not for production.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/stream_identity.hpp"
#include "runtime/engine/array_check.hpp"
#include "runtime/engine/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// Made and destroyed while the context of the engine is current.
class LaunchChecks {
 public:
  /// The first launch compiles the check of arrays; `cubins` (may be null) keeps its cubin.
  LaunchChecks(Arch arch, std::shared_ptr<CubinCache> cubins) : arch_(arch), cubins_(std::move(cubins)) {}

  /// Errors: invalid_argument, when a pointer is not CUDA's, when the workspace is too small for the plan, when a
  /// launch on another stream still uses the workspace, or when a length, query offset or page is out of its range;
  /// workspace_corrupt, when the workspace is not all zero; those of ArrayCheck. All but the first two are not checked
  /// while CUDA captures the stream, because it cannot be waited for then.
  Result<void> before(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream);
  /// Remembers that this launch uses the workspace until it has ended.
  Result<void> after(const LeanDecodeArgs& args, CUstream_st* stream);

 private:
  struct Use {
    StreamIdentity stream;
    Event end;
  };
  Result<void> check_use(const LeanDecodeArgs& args, CUstream_st* stream);
  Result<void> check_arrays(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream);

  std::mutex mutex_;                 ///< guards uses_
  std::map<const void*, Use> uses_;  ///< by workspace

  Arch arch_;
  std::shared_ptr<CubinCache> cubins_;
  std::mutex arrays_mutex_;  ///< guards what follows; held while the GPU checks
  std::optional<ArrayCheck> arrays_;
};

}  // namespace v1
}  // namespace leanattn
