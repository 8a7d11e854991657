// launch_status.hpp -- LaunchStatus: the status word through which the launches of an engine report faults. Kernels
// write it into page-locked host memory, so that the host reads it without a call of the driver. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// How long a thread of a kernel waits for a partial, in milliseconds, where LEANATTN_WAIT_BOUND_MS says nothing.
inline constexpr std::int64_t kDefaultWaitBoundMs = 10000;

/// What an environment variable says of a bound in milliseconds: 1 to 3600000. `otherwise` where it is not set. Errors:
/// invalid_argument.
Result<std::int64_t> bound_from_environment(const char* variable, std::int64_t otherwise);

/// What LEANATTN_WAIT_BOUND_MS says. Of what is no bound `warning` becomes a sentence, and the default holds.
std::int64_t wait_bound_from_environment(std::string* warning);

/// Made and destroyed while the context of the engine is current. No launch that was given the block may run later.
class LaunchStatus {
 public:
  /// Streams may be captured meanwhile. Errors: out_of_memory, context_lost.
  static Result<LaunchStatus> allocate(std::int64_t wait_bound_ms);

  /// For LeanDecodeArgs::status. With unified addressing the GPU reads pinned memory at the host's address (CUDA driver
  /// API, "Unified Addressing").
  LeanStatus* block() const { return memory_.as<LeanStatus>(); }

  /// How long launches wait for each other, in milliseconds.
  std::int64_t wait_bound_ms() const { return __atomic_load_n(&block()->wait_bound_us, __ATOMIC_RELAXED) / 1000; }

  /// Whether a launch has ended with a fault. One load.
  bool has_fault() const { return __atomic_load_n(&block()->fault, __ATOMIC_ACQUIRE) != 0; }
  /// Errors: workspace_corrupt, which names the workspace, what may have happened to it and what to do; group_broken,
  /// which names the rank.
  Result<void> check() const;

  /// Makes check() return this error, as if a launch on `workspace` had found it: for faults that the host finds. An
  /// earlier fault stays.
  void report(const void* workspace, const Error& error);
  /// Forgets the fault.
  void acknowledge() { __atomic_store_n(&block()->fault, 0, __ATOMIC_RELEASE); }
  /// Whether the fault is of a launch on a workspace in these bytes, or of the group whose state lies there.
  bool has_fault_in(const void* workspace, std::int64_t bytes) const;
  /// Forgets the fault once `stream`, on which its workspace is being zeroed, has got so far. Errors: those of check(),
  /// while CUDA captures the stream, so that nothing is zeroed yet; launch_failed, context_lost.
  Result<void> acknowledge_after(CUstream_st* stream);

 private:
  struct HostFault {
    std::mutex mutex;  ///< guards error
    Error error;
  };
  explicit LaunchStatus(PinnedBuffer memory) : memory_(std::move(memory)), host_(std::make_unique<HostFault>()) {}
  PinnedBuffer memory_;  ///< one LeanStatus
  std::unique_ptr<HostFault> host_;
};

}  // namespace v1
}  // namespace leanattn
