// exchange_checks.hpp -- ExchangeChecks: with LEANATTN_DEBUG=1 the ranks of a group over NCCL tell each other what they
// launch, so that ranks that launch different things are found. Used by one launch at a time. Internal to this folder.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/engine/group_communicator.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

struct GroupPlace;  // runtime/engine/group_exchange.hpp

/// What all ranks must launch alike.
struct LaunchFacts {
  std::array<std::uint8_t, 32> problem{};       ///< SHA-256 of the problem and of the kernels' version
  std::array<std::uint8_t, 32> full_lengths{};  ///< of the lengths of the whole contexts; zeros where none are given
  std::int32_t batch = 0;
  float scale = 0;
};

/// What was told with a launch is compared when the next one begins, because a launch must not wait for other ranks:
/// one thread may launch several of them in turn.
class ExchangeChecks {
 public:
  /// In the current context. Errors: out_of_memory, context_lost.
  static Result<std::unique_ptr<ExchangeChecks>> create(const GroupPlace& place);

  /// Waits for the stream, compares what the ranks told with the launch before, and takes down what this one is to
  /// tell. Errors: group_broken, which names the rank; launch_failed, context_lost.
  Result<void> before(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream);
  /// Forgets what was told, when launches have ended before all was told.
  void forget() { told_last_ = false; }
  /// How this rank and another one of the communicator tell each other.
  Transfer transfer_with(int nccl_rank) const;
  /// Brings what was told to the host. To be called behind the exchange. Errors: launch_failed, context_lost.
  Result<void> after(CUstream_st* stream);

 private:
  ExchangeChecks() = default;
  /// Compares what all ranks told of their last launch.
  Result<void> compare() const;
  LaunchFacts* told() const { return host_.as<LaunchFacts>(); }

  int own_ = 0, ranks_ = 0, peers_ = 1, peer_ = 0;
  DeviceBuffer device_;  ///< [ranks] LaunchFacts, by rank of the communicator
  PinnedBuffer host_;    ///< the same
  bool told_last_ = false;
};

}  // namespace v1
}  // namespace leanattn
