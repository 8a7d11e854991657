// launch_status.hpp -- LaunchStatus: the status word through which the launches of an engine report faults. Kernels
// write it into page-locked host memory, so that the host reads it without a call of the driver. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"

namespace leanattn {
inline namespace v1 {

/// How long a thread of a kernel waits for a partial, in milliseconds, where LEANATTN_WAIT_BOUND_MS says nothing.
inline constexpr std::int64_t kDefaultWaitBoundMs = 10000;

/// The longest bound of an environment variable, in milliseconds. It fits 32 bits in microseconds.
inline constexpr std::int64_t kLongestBoundMs = 3600000;

/// A bound as an environment variable gives it: milliseconds, 1 to kLongestBoundMs. Nothing for other texts.
std::optional<std::int64_t> parse_bound(std::string_view text);
/// What the variable says in this process. `otherwise` where it is not set. Errors: invalid_argument.
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

  /// Makes check() return this error, as if a launch on `workspace` had found it: for faults that the host finds. Where
  /// there is an earlier fault, once that is acknowledged.
  void report(const void* workspace, const Error& error);
  /// Forgets the fault that check() tells of. The next one that the host has found takes its place.
  void acknowledge();
  /// Forgets all faults of launches on workspaces in these bytes, or of groups whose state lies there.
  void acknowledge(const void* workspace, std::int64_t bytes);
  /// Whether the fault is of a launch on a workspace in these bytes, or of the group whose state lies there.
  bool has_fault_in(const void* workspace, std::int64_t bytes) const;
  /// Forgets the fault once `stream`, on which its workspace is being zeroed, has got so far. Errors: those of check(),
  /// while CUDA captures the stream, so that nothing is zeroed yet; launch_failed, context_lost.
  Result<void> acknowledge_after(CUstream_st* stream);

  /// Kernels count the peers of a group from 0 on. Of the group whose state is `group`, peer 0 is this rank, until
  /// forget_ranks().
  void count_ranks_from(const void* group, int first_rank);
  void forget_ranks(const void* group);

 private:
  struct HostFault {
    std::uint64_t workspace;
    Error error;
  };
  struct Host {
    std::mutex mutex;  ///< guards what follows
    std::vector<HostFault> faults;
    std::map<std::uint64_t, int> first_ranks;  ///< by the state of the group
  };
  explicit LaunchStatus(PinnedBuffer memory) : memory_(std::move(memory)), host_(std::make_unique<Host>()) {}
  /// Where no fault is told, tells the first one that the host has found. With host_->mutex held.
  void tell_next();
  PinnedBuffer memory_;  ///< one LeanStatus
  std::unique_ptr<Host> host_;
};

}  // namespace v1
}  // namespace leanattn
