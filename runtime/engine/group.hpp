// group.hpp -- GroupMember: one rank's part of a group of GPUs that share contexts: the memory into which its peers
// send, and where theirs is, and what goes over NCCL (docs/groups.md). Thread-safe but for connect() and
// connect_nccl(), which must come before all other use.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "leanattn/leanattn.h"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/process_mark.hpp"
#include "runtime/engine/group_exchange.hpp"
#include "runtime/engine/kernel_store.hpp"
#include "runtime/problem.hpp"

/// The opaque handle of the C ABI. Every object of it is the base of a GroupMember.
struct leanattn_group {};

namespace leanattn {
inline namespace v1 {

class LaunchStatus;  // runtime/engine/launch_status.hpp

/// How ranks exchange their results.
struct GroupMemberOptions {
  int rank = 0, size = 2;
  int peers = 0;  ///< ranks that exchange inside their kernels; 0: all, 1: none
  std::int64_t memory_bytes = 0;
  void* memory = nullptr;  ///< into which peers send, of the caller's; null: the rank allocates it
};

/// Columns of O, of four values each, that a rank may get from each of the others in a launch of so many requests.
std::int64_t group_columns(const DecodeProblem& problem, std::int64_t batch);
/// The memory that a group needs for so many. Saturates at INT64_MAX.
std::int64_t group_bytes(int ranks, std::int64_t columns);

class GroupMember : public ::leanattn_group {
 public:
  using Blob = std::array<unsigned char, LEANATTN_GROUP_BLOB_BYTES>;

  /// See leanattn_group_create. `context` may be null in tests, and `merger` where all ranks are peers; it must outlive
  /// the group. Errors: invalid_argument, unsupported, out_of_memory, context_lost.
  static Result<std::unique_ptr<GroupMember>> create(const GroupMemberOptions& options,
                                                     std::shared_ptr<const Context> context,
                                                     std::shared_ptr<LaunchStatus> status,
                                                     PartialsMerger* merger = nullptr);
  GroupMember(const GroupMember&) = delete;
  GroupMember& operator=(const GroupMember&) = delete;
  /// Unmaps what connect() mapped, and frees the memory of this rank.
  ~GroupMember();

  /// See leanattn_group_export. Errors: launch_failed, context_lost.
  Result<Blob> export_blob() const;
  /// See leanattn_group_connect, and, with `mapped`, leanattn_group_connect_mapped. Errors: invalid_argument,
  /// unsupported, launch_failed, context_lost.
  Result<void> connect(std::span<const Blob> blobs, void* const* mapped = nullptr);
  /// See leanattn_group_connect_nccl. Errors: invalid_argument, unsupported, launch_failed, group_broken.
  template <class Id>
  Result<void> connect_nccl(const Id& id) {
    if (auto ok = check_nccl_level(); !ok) return ok;
    return exchange_over_nccl_->connect(id);
  }
  /// See leanattn_group_reset. Errors: launch_failed, group_broken, context_lost.
  Result<void> reset(CUstream_st* stream);

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int peers() const { return place_.peers; }  ///< ranks that exchange inside their kernels, this one included
  const GroupPlace& place() const { return place_; }
  /// The level over NCCL; null where all ranks are peers.
  GroupExchange* over_nccl() const { return exchange_over_nccl_.get(); }
  std::int64_t columns() const { return columns_; }  ///< for which each slot of the exchange has room
  bool connected() const {
    return (connected_ || peers() == 1) && (!exchange_over_nccl_ || exchange_over_nccl_->connected());
  }
  /// Whether other peers are on this rank's GPU. Their launches must find room beside each other, which cooperative
  /// launches do not wait for together.
  bool shares_gpu() const { return ranks_here_ > 1; }
  /// The slowest link between any two of the peers; unknown until connect(), and where NVML does not say.
  GroupLink link() const { return link_; }
  int ranks_here() const { return ranks_here_; }    ///< on this rank's GPU, itself included
  std::uint64_t number() const { return number_; }  ///< that no other group of the process has had; from 1 on
  bool in_its_process() const { return mark_.here(); }

  /// Whether this rank can launch the problem with so many requests. context: of the engine that asks. Errors:
  /// invalid_argument, which says what does not fit.
  Result<void> check(const DecodeProblem& problem, int batch, const Context* context) const;
  /// Points the arguments of a launch to this rank's state.
  void bind(LeanDecodeArgs& args) const;
  /// What the other ranks send to this one, which is all zero between launches, for checks: a device pointer.
  const void* slots() const;
  std::int64_t slot_bytes() const;

 private:
  GroupMember(const GroupPlace& place, std::int64_t columns, std::shared_ptr<const Context> context,
              std::shared_ptr<LaunchStatus> status);
  /// Whether there is a level over NCCL to connect. Errors: invalid_argument, context_lost.
  Result<void> check_nccl_level() const;
  /// Where this GPU reaches the exchange memory that a blob describes.
  Result<char*> map(const Blob& blob, int rank);
  /// Zeroes the exchange memory, writes the state, and waits.
  Result<void> write_state(CUstream_st* stream) const;
  char* exchange_memory() const;

  const ProcessMark mark_;
  GroupPlace place_;
  std::int64_t columns_;
  std::shared_ptr<const Context> context_;
  std::shared_ptr<LaunchStatus> status_;
  std::uint64_t number_;
  bool connected_ = false;
  int ranks_here_ = 1;
  GroupLink link_ = GroupLink::unknown;
  DeviceBuffer own_memory_;                            ///< empty where the caller has given it
  char* memory_ = nullptr;                             ///< LeanGroup, then the exchange memory
  std::int64_t memory_bytes_ = 0;                      ///< of it that is used
  std::vector<void*> opened_;                          ///< memory of other processes
  std::vector<char*> exchange_;                        ///< [peer], as in LeanGroup
  std::unique_ptr<GroupExchange> exchange_over_nccl_;  ///< null where all ranks are peers
};

/// The slowest link between any two of these GPUs, each of which stands for a rank. uuids: as in DeviceFacts. unknown
/// where NVML does not say.
GroupLink group_link(std::span<const std::string> uuids);
/// The same by the CUDA ordinals of this process. Errors: no_driver, no_device.
Result<GroupLink> group_link_of(std::span<const int> ordinals);

/// The CTAs of a kernel that are resident at once beside those of the other ranks on the GPU. group: null for none.
std::int64_t resident_share(const GroupMember* group, const PreparedKernel& kernel);

}  // namespace v1
}  // namespace leanattn
