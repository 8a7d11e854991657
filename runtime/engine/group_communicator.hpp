// group_communicator.hpp -- GroupCommunicator: an NCCL communicator of a group's ranks, in which no call waits longer
// than the bound and launches that wait in vain are found. Thread-safe. Internal to this folder.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "leanattn/error.hpp"
#include "runtime/cuda/nccl.hpp"
#include "runtime/engine/partials_merger.hpp"

namespace leanattn {
inline namespace v1 {

class Context;  // runtime/cuda/gpu.hpp

/// What a rank sends to another one and gets from it in an exchange: device memory.
struct Transfer {
  int rank = 0;
  const void* send = nullptr;
  void* receive = nullptr;
  std::int64_t bytes = 0;
};

/// Who is in a communicator, and how it is watched.
struct CommunicatorOptions {
  int rank = 0, ranks = 0;
  std::int64_t join_ms = 0;                ///< how long ranks are waited for when they join, and when they connect
  std::int64_t bound_ms = 0;               ///< how long a rank is waited for in an exchange
  std::shared_ptr<const Context> context;  ///< of the rank's GPU; null in tests
  /// Where the rank's launches say how far they are; valid as long as the communicator.
  const LeanExchangeProgress* progress = nullptr;
  /// Called once, on any thread, when the communicator breaks.
  std::function<void(const Error&)> on_break;
};

class GroupCommunicator {
 public:
  /// Begins to make a communicator of all ranks that give this id, and returns at once: a thread of its own waits for
  /// the others and has every two ranks connect. Errors: launch_failed.
  static Result<std::unique_ptr<GroupCommunicator>> join(const NcclApi& api, const NcclUniqueId& id,
                                                         CommunicatorOptions options);
  /// Takes a communicator of the caller's, which stays the caller's and must outlive this object, and has every two
  /// ranks connect, which waits for all of them, also without a bound where the communicator is a blocking one. Errors:
  /// invalid_argument (of other ranks or another GPU), launch_failed, group_broken.
  static Result<std::unique_ptr<GroupCommunicator>> borrow(const NcclApi& api, ncclComm* comm,
                                                           CommunicatorOptions options);
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;
  /// Ends the watch. A communicator of its own is aborted, which is waited for at most a second: NCCL keeps what
  /// captured graphs refer to until they are destroyed.
  ~GroupCommunicator();

  /// Waits until all ranks are connected, at most for join_ms for each step. Errors: group_broken, those of NCCL.
  Result<void> ready();
  /// Whether all ranks are connected by now. Errors: group_broken; not_prepared, while ready() would wait.
  Result<void> usable() const;
  /// Enqueues all transfers as one, after usable(). Errors: group_broken, also where this call breaks it.
  Result<void> exchange(std::span<const Transfer> transfers, CUstream_st* stream);
  /// Whether an error has ended it.
  bool broken() const;

 private:
  class Call;
  struct Hello;
  struct State;
  explicit GroupCommunicator(std::shared_ptr<State> state);
  static Result<void> run(State& state, std::span<const Transfer> transfers, CUstream_st* stream,
                          std::int64_t bound_ms);
  static Result<void> settle(State& state, ncclComm* comm, const char* what, std::int64_t bound_ms);
  static Result<void> connect(State& state);
  static Result<void> wait_for(State& state, CUstream_st* stream);
  static Result<void> look_for_error(State& state);
  static void break_up(const std::shared_ptr<State>& state, const Error& error);
  static void abort_in_background(const std::shared_ptr<State>& state);
  static void watch(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace v1
}  // namespace leanattn
