// check_workspace.hpp -- CheckWorkspace: device memory through which the CTAs of checked and timed launches exchange
// partials. One thread at a time, with the context that it was first used in current.
#pragma once

#include <cstdint>

#include "generator/workspace.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// It is zeroed only when it is allocated and after a failed launch, so that a kernel that leaves anything behind is
/// found out. It grows as needed. Cases and kernels that are used one after the other may share it.
class CheckWorkspace {
 public:
  /// Makes room for a launch and sets the pointers of `args` to it. Errors: out_of_memory, context_lost.
  Result<void> bind(LeanDecodeArgs& args, const WorkspaceLayout& layout, CUstream_st* stream);
  /// Zeroes everything. Needed after a launch that failed or left something behind. Stream-ordered.
  Result<void> reset(CUstream_st* stream);
  /// Fills the guard behind the bound bytes with kPoisonByte, or zeroes it again. Stream-ordered.
  Result<void> arm_guard(CUstream_st* stream);
  Result<void> disarm_guard(CUstream_st* stream);

  /// How many bytes a launch may touch. The guard lies behind them.
  std::int64_t bound_bytes() const { return bound_bytes_; }
  const DeviceBuffer& buffer() const { return buffer_; }

  static constexpr std::int64_t kGuardBytes = 1024;  ///< of the guard, which no launch may write while it is armed

 private:
  DeviceBuffer buffer_;
  std::int64_t bound_bytes_ = 0;
};

}  // namespace v1
}  // namespace leanattn
