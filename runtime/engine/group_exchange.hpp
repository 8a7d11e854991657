// group_exchange.hpp -- GroupExchange: the level of a group over NCCL. A launch there is three: what goes before, the
// decode kernel of the rank's part, and the exchange of the parts' O and LSE with their merge (docs/groups.md). Used by
// one launch at a time; connect() comes before all other use. Internal to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/engine/exchange_checks.hpp"
#include "runtime/engine/group_communicator.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

class LaunchStatus;  // runtime/engine/launch_status.hpp

/// A rank of a group of `size`, of which each `peers` exchange inside their kernels: rank r is peer r % peers of those,
/// and rank r / peers of the communicator that its results go through.
struct GroupPlace {
  int rank = 0, size = 1, peers = 1;

  int peer() const { return rank % peers; }
  int nccl_ranks() const { return size / peers; }
  int nccl_rank() const { return rank / peers; }
  /// Which of the equal shares of the query heads the rank writes, where not all write all.
  int share() const { return peer() * nccl_ranks() + nccl_rank(); }
};

/// The problem of the kernel that a rank launches there: of its own part, or of those of its peers.
DecodeProblem part_over_nccl(const DecodeProblem& problem, const GroupPlace& place);

/// Where a launch has what in the staging memory: bytes from its start.
struct ExchangeLayout {
  std::int64_t tokens = 0;  ///< query tokens, those of ragged requests that may not be there included
  int first_head = 0;       ///< of those that the kernel writes
  int heads = 0;            ///< that the kernel writes
  int share_heads = 0;      ///< of these, those that this rank writes in the end
  std::int64_t share_bytes = 0, lse_bytes = 0;  ///< of one part: O [share_heads, tokens, dim] and LSE [tokens, q_heads]
  std::int64_t send = 0, send_lse = 0;          ///< O [heads, tokens, dim] and LSE of this rank's own part
  std::int64_t receive = 0, receive_lse = 0;    ///< [nccl_ranks] O and LSE of the others
  std::int64_t total = 0;
};
ExchangeLayout exchange_layout(const DecodeProblem& problem, const GroupPlace& place, std::int64_t batch);

class GroupExchange {
 public:
  /// Staging memory for launches whose exchange_layout() takes up to `memory_bytes`. In the current context. `status`
  /// may be null in tests, `merger` must outlive this object. Errors: out_of_memory.
  static Result<std::unique_ptr<GroupExchange>> create(const GroupPlace& place, std::int64_t memory_bytes,
                                                       std::shared_ptr<const Context> context,
                                                       std::shared_ptr<LaunchStatus> status, PartialsMerger* merger);
  ~GroupExchange();

  /// See leanattn_group_connect_nccl. A communicator that there is already is given up. Errors: those of NCCL.
  Result<void> connect(const NcclUniqueId& id);
  Result<void> connect(ncclComm* comm);
  /// Whether connect() was called, and since then nothing broke.
  bool connected() const;
  /// Waits for all ranks, and loads the kernels unless `capturing`. Errors: group_broken, not_prepared, those of
  /// PartialsMerger.
  Result<void> prepare(bool capturing);

  std::int64_t bytes() const { return staging_.bytes(); }
  /// Enqueues a launch of the group's problem, of which launch_kernel() enqueues the decode kernel with `args`. These
  /// are the caller's at first, and point to the staging memory when it is called. checked: ranks compare what they
  /// launch, except while CUDA captures the stream. Errors: invalid_argument (not connected, the stream), not_prepared,
  /// those of launch_kernel, group_broken, launch_failed, context_lost.
  template <class LaunchKernel>
  Result<void> around(const DecodeProblem& problem, LeanDecodeArgs& args, CUstream_st* stream, bool checked,
                      const LaunchKernel& launch_kernel) {
    const auto communicator = communicator_for(stream);
    if (!communicator) return tl::unexpected(communicator.error());
    const auto telling = checked ? compare_and_tell(problem, args, stream) : Result<bool>(false);
    if (!telling) return tl::unexpected(telling.error());
    const LeanDecodeArgs asked = args;
    const ExchangeLayout layout = exchange_layout(problem, place_, args.batch);
    if (auto ok = begin(problem, layout, args, stream); !ok) return ok;
    if (auto ok = launch_kernel(); !ok) {
      take_back(stream);
      return ok;
    }
    return finish(problem, layout, asked, stream, **communicator, *telling);
  }

 private:
  /// The communicator of a launch on this stream. Errors: invalid_argument, not_prepared, group_broken.
  Result<std::shared_ptr<GroupCommunicator>> communicator_for(CUstream_st* stream) const;
  /// What ExchangeChecks::before() says; and whether this launch is told, which it is not while CUDA captures the
  /// stream.
  Result<bool> compare_and_tell(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream);
  /// Enqueues what goes before the decode kernel, and points its arguments at the staging memory.
  Result<void> begin(const DecodeProblem& problem, const ExchangeLayout& layout, LeanDecodeArgs& args,
                     CUstream_st* stream);
  /// After a begin() that no exchange follows: enqueues what says so, because it would be waited for otherwise.
  void take_back(CUstream_st* stream) const;
  /// Enqueues the exchange and the merge. asked: the arguments as they were before begin(). tells: the ranks tell each
  /// other of the launch.
  Result<void> finish(const DecodeProblem& problem, const ExchangeLayout& layout, const LeanDecodeArgs& asked,
                      CUstream_st* stream, GroupCommunicator& communicator, bool tells);
  GroupExchange() = default;
  Result<void> connect_with(
      const std::function<Result<std::unique_ptr<GroupCommunicator>>(const NcclApi&, CommunicatorOptions)>& make);
  std::shared_ptr<GroupCommunicator> communicator() const;
  /// The same. Errors: invalid_argument, before connect().
  Result<std::shared_ptr<GroupCommunicator>> needed_communicator() const;

  GroupPlace place_;
  std::shared_ptr<const Context> context_;
  std::shared_ptr<LaunchStatus> status_;
  PartialsMerger* merger_ = nullptr;
  DeviceBuffer staging_;
  DeviceBuffer count_;                      ///< the number of launches, 4 bytes
  PinnedBuffer progress_;                   ///< one LeanExchangeProgress
  std::unique_ptr<ExchangeChecks> checks_;  ///< from the first checked launch on

  mutable std::mutex mutex_;  ///< guards communicator_
  std::shared_ptr<GroupCommunicator> communicator_;
};

}  // namespace v1
}  // namespace leanattn
