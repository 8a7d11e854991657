// group.cpp -- makes, connects and resets a rank's part of a group.
#include "runtime/engine/group.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <string>

#include "cache/digest.hpp"
#include "generator/generator.hpp"
#include "generator/integers.hpp"
#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/device_pointer.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvml.hpp"
#include "runtime/engine/launch_status.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMostColumns = 1 << 30;
constexpr std::int64_t kColumnsStep = 16;  // so that every part of a slot begins with a line of memory
constexpr std::int64_t kMemoryAlignment = 256;
constexpr std::int64_t kStateBytes = (sizeof(LeanGroup) + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
constexpr const char* kNoPeers =
    "Peers need peer access: NVLink, or PCIe without an IOMMU or ACS in between (nvidia-smi topo -p2p w). Others "
    "exchange over NCCL: make the group with fewer peers.";
constexpr std::uint64_t kBlobMagic = 0x6c65616e67727031;  // "leangrp1"

tl::unexpected<Error> bad_argument(std::string message, std::string hint) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

/// What a blob holds. Sent between processes of one machine and library, so its layout is that of the compiler.
struct BlobContents {
  std::uint64_t magic = kBlobMagic;
  std::int32_t rank = 0, size = 0;
  std::int64_t columns = 0;
  char library[40] = {};  ///< generator_revision()
  char process[48] = {};  ///< of the process that made it
  CUuuid gpu{};
  CUcontext context = nullptr;  ///< these three mean something in that process only
  void* exchange = nullptr;
  CUdevice device = 0;
  std::int32_t exported = 0;  ///< whether `memory` is there
  std::int32_t given = 0;     ///< whether the exchange memory is the caller's
  std::int64_t offset = 0;    ///< from the start of `memory` to the exchange memory
  CUipcMemHandle memory{};
};
static_assert(sizeof(BlobContents) <= LEANATTN_GROUP_BLOB_BYTES && std::is_trivially_copyable_v<BlobContents>);

/// Differs between any two processes, also between a process and its forked child.
std::string process_identity() {
  static const std::string random = detail::make_uuid();
  return fmt::format("{}.{}", random, getpid());
}

template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  std::memcpy(to, from.data(), std::min(N - 1, from.size()));
}

BlobContents contents_of(const GroupMember::Blob& blob) {
  BlobContents contents;
  std::memcpy(&contents, blob.data(), sizeof contents);
  return contents;
}

bool has_group_functions(const DriverApi& api) {
  return api.cuDeviceCanAccessPeer != nullptr && api.cuCtxEnablePeerAccess != nullptr &&
         api.cuIpcGetMemHandle != nullptr && api.cuIpcOpenMemHandle != nullptr && api.cuIpcCloseMemHandle != nullptr;
}

constexpr std::int64_t kFixedBytes = kStateBytes + kLeanSignalBytes;
/// Bytes of a column in all slots.
std::int64_t column_bytes(int ranks) { return std::int64_t{2} * ranks * kLeanColumnBytes; }

}  // namespace

std::int64_t group_columns(const DecodeProblem& problem, std::int64_t batch) {
  const Features& features = problem.features;
  // KV heads of which a rank gets rows.
  const std::int64_t kv_heads =
      features.replicate_output ? problem.kv_heads : std::max(problem.kv_heads / features.context_parallel, 1);
  const std::int64_t rows = query_rows(features, problem.q_heads / problem.kv_heads);
  return saturating_product(saturating_product(batch, kv_heads), rows * v_head_dim(problem) / 4);
}

std::int64_t group_bytes(int ranks, std::int64_t columns) {
  if (columns > kMostColumns) return std::numeric_limits<std::int64_t>::max();
  return kFixedBytes + (columns + kColumnsStep - 1) / kColumnsStep * kColumnsStep * column_bytes(ranks);
}

GroupLink group_link(std::span<const std::string> uuids) {
  GroupLink slowest = GroupLink::same_gpu;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (uuids[i] == uuids[j]) continue;
      const int nvlink = joined_by_nvlink(uuids[i], uuids[j]);
      if (nvlink < 0) return GroupLink::unknown;
      if (nvlink == 0) slowest = GroupLink::pcie;
      if (slowest == GroupLink::same_gpu) slowest = GroupLink::nvlink;
    }
  }
  return slowest;
}

Result<GroupLink> group_link_of(std::span<const int> ordinals) {
  std::vector<std::string> uuids;
  for (const int ordinal : ordinals) {
    const Result<DeviceFacts> facts = device_facts(ordinal);
    if (!facts) return tl::unexpected(facts.error());
    uuids.push_back(facts->uuid);
  }
  return group_link(uuids);
}

std::int64_t resident_share(const GroupMember* group, const PreparedKernel& kernel) {
  return std::max<std::int64_t>(kernel.resident_ctas / (group != nullptr ? group->ranks_here() : 1), 1);
}

GroupMember::GroupMember(const GroupPlace& place, std::int64_t columns, std::shared_ptr<const Context> context,
                         std::shared_ptr<LaunchStatus> status)
    : place_(place), columns_(columns), context_(std::move(context)), status_(std::move(status)) {
  static std::atomic<std::uint64_t> made{0};
  number_ = ++made;
}

Result<std::unique_ptr<GroupMember>> GroupMember::create(const GroupMemberOptions& options,
                                                         std::shared_ptr<const Context> context,
                                                         std::shared_ptr<LaunchStatus> status, PartialsMerger* merger) {
  const GroupPlace place{options.rank, options.size, options.peers != 0 ? options.peers : options.size};
  if (place.size < 2 || place.size > kMostContextParallel)
    return bad_argument(fmt::format("a group of {} ranks", place.size),
                        fmt::format("Give 2 to {}.", kMostContextParallel));
  if (place.rank < 0 || place.rank >= place.size)
    return bad_argument(fmt::format("rank {} of a group of {}", place.rank, place.size),
                        fmt::format("Give 0 to {}.", place.size - 1));
  if (place.peers < 1 || place.size % place.peers != 0)
    return bad_argument(fmt::format("peers is {} in a group of {} ranks", place.peers, place.size),
                        "Give a divisor of the ranks: those of one host; 1 where all go over NCCL; 0 where none does.");
  if (place.nccl_ranks() > LEANATTN_MERGE_PARTS)
    return fail(ErrorCode::unsupported,
                fmt::format("{} ranks that exchange over NCCL, of a group of {} with peers {}", place.nccl_ranks(),
                            place.size, place.peers),
                fmt::format("At most {} do: let the GPUs of a host be peers.", LEANATTN_MERGE_PARTS));
  if (options.memory != nullptr && place.peers == 1)
    return bad_argument("memory is given to a rank without peers", "Nobody sends into it: leave it null.");
  if (reinterpret_cast<std::uintptr_t>(options.memory) % kMemoryAlignment != 0)
    return bad_argument(
        fmt::format("memory is {}, which is not a multiple of {} bytes", options.memory, kMemoryAlignment),
        "Give the beginning of an allocation.");
  const std::int64_t columns = std::max<std::int64_t>(options.memory_bytes - kFixedBytes, 0) /
                               column_bytes(place.peers) / kColumnsStep * kColumnsStep;
  if (columns < kColumnsStep || columns > kMostColumns)
    return bad_argument(fmt::format("memory_bytes of a group is {}", options.memory_bytes),
                        "Give what leanattn_group_bytes says, the most of all problems.");
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (place.peers > 1 && !has_group_functions(**api))
    return fail(ErrorCode::unsupported, "the driver has no functions for peer access and CUDA IPC",
                "Install a complete NVIDIA driver for CUDA 12.0 or newer.");
  std::unique_ptr<GroupMember> member(new GroupMember(place, columns, std::move(context), std::move(status)));
  const CurrentContext scope(member->context_ ? member->context_->get() : nullptr);
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  if (place.nccl_ranks() > 1) {
    auto exchange = GroupExchange::create(place, options.memory_bytes, member->context_, member->status_, merger);
    if (!exchange) return tl::unexpected(std::move(exchange.error()));
    member->exchange_over_nccl_ = *std::move(exchange);
  }
  if (place.peers == 1) return member;
  member->memory_bytes_ = group_bytes(place.peers, columns);
  member->memory_ = static_cast<char*>(options.memory);
  if (options.memory != nullptr) {
    if (auto ok = check_cuda_pointer(**api, "memory", options.memory); !ok)
      return tl::unexpected(std::move(ok.error()));
    const std::int64_t left = bytes_from(**api, options.memory);
    if (left != 0 && left < member->memory_bytes_)
      return bad_argument(fmt::format("memory is {}, with {} bytes to the end of its allocation, and memory_bytes {}",
                                      options.memory, left, options.memory_bytes),
                          "Give memory_bytes of device memory.");
  } else {
    auto memory = DeviceBuffer::allocate(member->memory_bytes_);
    if (!memory) return tl::unexpected(std::move(memory.error()));
    member->own_memory_ = *std::move(memory);
    member->memory_ = static_cast<char*>(member->own_memory_.data());
  }
  if (member->status_) member->status_->count_ranks_from(member->memory_, place.rank - place.peer());
  member->exchange_.assign(static_cast<std::size_t>(place.peers), nullptr);
  member->exchange_[static_cast<std::size_t>(place.peer())] = member->exchange_memory();
  const auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  if (auto ok = member->write_state(stream->get()); !ok) return tl::unexpected(std::move(ok.error()));
  return member;
}

GroupMember::~GroupMember() {
  const CurrentContext scope(context_ ? context_->get() : nullptr);
  if (const auto api = driver()) {
    for (void* const memory : opened_) (*api)->cuIpcCloseMemHandle(reinterpret_cast<CUdeviceptr>(memory));
  }
  exchange_over_nccl_.reset();
  // Nobody could reset the group later, and the engine's other launches shall go on.
  if (status_ && memory_ != nullptr) {
    status_->acknowledge(memory_, memory_bytes_);
    status_->forget_ranks(memory_);
  }
  own_memory_ = DeviceBuffer();
}

char* GroupMember::exchange_memory() const { return memory_ + kStateBytes; }

Result<void> GroupMember::write_state(CUstream_st* stream) const {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  LeanGroup state{};
  state.columns = static_cast<unsigned>(columns_);
  std::copy(exchange_.begin(), exchange_.end(), state.exchange);
  if (auto ok = fill_bytes_async(memory_, 0, memory_bytes_, stream); !ok) return ok;
  if (auto ok = copy_to_device_async(memory_, &state, sizeof state, stream); !ok) return ok;
  return leanattn::check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize", ErrorCode::launch_failed);
}

Result<void> GroupMember::check_nccl_level() const {
  if (!exchange_over_nccl_)
    return bad_argument(fmt::format("all {} ranks of the group are peers, so that none exchanges over NCCL", size()),
                        "Make the group with peers 1, or with the number of ranks of a host.");
  if (!in_its_process()) return tl::unexpected(ProcessMark::forked());
  return {};
}

Result<GroupMember::Blob> GroupMember::export_blob() const {
  if (peers() == 1)
    return bad_argument("a rank without peers has nothing to export",
                        "All of its exchange is over NCCL: call leanattn_group_connect_nccl.");
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const CurrentContext scope(context_ ? context_->get() : nullptr);
  if (!scope.entered()) return tl::unexpected(scope.entered().error());
  BlobContents contents;
  contents.rank = place_.rank, contents.size = place_.size, contents.columns = columns_;
  copy_text(contents.library, generator_revision());
  copy_text(contents.process, process_identity());
  if (auto ok = leanattn::check((*api)->cuCtxGetDevice(&contents.device), "cuCtxGetDevice"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (auto ok = leanattn::check((*api)->cuDeviceGetUuid(&contents.gpu, contents.device), "cuDeviceGetUuid"); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (auto ok = leanattn::check((*api)->cuCtxGetCurrent(&contents.context), "cuCtxGetCurrent"); !ok)
    return tl::unexpected(std::move(ok.error()));
  contents.exchange = exchange_memory();
  contents.given = own_memory_.data() == nullptr;
  // Inside one process nobody needs the handle, and some systems and allocations have none. It is that of a whole
  // allocation, of which the memory that the caller has given may be a part.
  const std::int64_t before = contents.given != 0 ? bytes_before(**api, memory_) : 0;
  contents.exported =
      (*api)->cuIpcGetMemHandle(&contents.memory, reinterpret_cast<CUdeviceptr>(memory_ - before)) == CUDA_SUCCESS;
  contents.offset = before + kStateBytes;
  Blob blob{};
  std::memcpy(blob.data(), &contents, sizeof contents);
  return blob;
}

Result<char*> GroupMember::map(const Blob& blob, int rank) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const BlobContents contents = contents_of(blob);
  if (contents.given != 0 && contents.exported == 0)
    return fail(ErrorCode::unsupported, fmt::format("CUDA IPC cannot export the memory that rank {} was given", rank),
                "It is not of cuMemAlloc: map it yourself, and connect with the addresses "
                "(leanattn_group_connect_mapped).");
  if (contents.process == process_identity()) {
    CUdevice own = 0;
    if (auto ok = leanattn::check((*api)->cuCtxGetDevice(&own), "cuCtxGetDevice"); !ok)
      return tl::unexpected(std::move(ok.error()));
    if (own == contents.device) return static_cast<char*>(contents.exchange);
    int reaches = 0;
    if (auto ok =
            leanattn::check((*api)->cuDeviceCanAccessPeer(&reaches, own, contents.device), "cuDeviceCanAccessPeer");
        !ok)
      return tl::unexpected(std::move(ok.error()));
    if (reaches == 0)
      return fail(ErrorCode::unsupported,
                  fmt::format("GPU {} of rank {} cannot reach the memory of GPU {} of rank {}", own, place_.rank,
                              contents.device, rank),
                  kNoPeers);
    const CUresult enabled = (*api)->cuCtxEnablePeerAccess(contents.context, 0);
    if (enabled != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
      if (auto ok = leanattn::check(enabled, "cuCtxEnablePeerAccess", ErrorCode::launch_failed); !ok)
        return tl::unexpected(std::move(ok.error()));
    }
    return static_cast<char*>(contents.exchange);
  }
  if (contents.exported == 0)
    return fail(ErrorCode::unsupported, fmt::format("rank {} could not export its memory (CUDA IPC)", rank),
                "Allow CUDA IPC in its container (--ipc=host), or put the ranks into one process.");
  CUdeviceptr opened = 0;
  const CUresult status = (*api)->cuIpcOpenMemHandle(&opened, contents.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (status == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || status == CUDA_ERROR_INVALID_DEVICE)
    return fail(ErrorCode::unsupported,
                fmt::format("the GPU of rank {} cannot reach the memory of rank {}", place_.rank, rank), kNoPeers);
  // What the driver answers where CUDA IPC is not allowed differs between systems.
  if (auto ok = leanattn::check(status, "cuIpcOpenMemHandle", ErrorCode::unsupported); !ok) {
    ok.error().hint =
        fmt::format("Rank {} must run on this machine and still have its group; containers need --ipc=host.", rank);
    return tl::unexpected(std::move(ok.error()));
  }
  opened_.push_back(reinterpret_cast<void*>(opened));
  return reinterpret_cast<char*>(opened) + contents.offset;
}

Result<void> GroupMember::connect(std::span<const Blob> blobs, void* const* mapped) {
  if (connected_) return bad_argument("the group is connected already", "Connect each group once.");
  int here = 0;
  std::vector<std::string> gpus;  // UUIDs, by peer
  const auto own = export_blob();
  if (!own) return tl::unexpected(own.error());
  const BlobContents mine = contents_of(*own);
  const int first = place_.rank - place_.peer();  // the rank of peer 0
  for (int peer = 0; peer < peers(); ++peer) {
    const BlobContents contents = contents_of(blobs[static_cast<std::size_t>(peer)]);
    if (contents.magic != kBlobMagic)
      return bad_argument(fmt::format("blob {} is none that leanattn_group_export wrote", peer),
                          fmt::format("Send all {} bytes of it.", LEANATTN_GROUP_BLOB_BYTES));
    if (contents.rank != first + peer)
      return bad_argument(fmt::format("blob {} is that of rank {}", peer, contents.rank),
                          first == 0 ? "Give the blobs in the order of their ranks."
                                     : fmt::format("Give those of ranks {} to {}, the peers, in the order of their "
                                                   "ranks.",
                                                   first, first + peers() - 1));
    if (contents.size != size() || contents.columns != columns_)
      return bad_argument(
          fmt::format("rank {} is of a group of {} ranks with room for {} columns, and rank {} of one of {} with {}",
                      contents.rank, contents.size, contents.columns, rank(), size(), columns_),
          "Make the group with the same size, peers and memory_bytes on all ranks.");
    if (std::strncmp(contents.library, mine.library, sizeof mine.library) != 0)
      return bad_argument(fmt::format("rank {} has another version of leanattn", contents.rank),
                          "Install the same version for all ranks.");
    if (mapped != nullptr && (contents.given == 0 || mapped[peer] == nullptr))
      return bad_argument(contents.given == 0
                              ? fmt::format("rank {} has allocated the memory of its group itself", contents.rank)
                              : fmt::format("memory[{}] is null", peer),
                          "All peers give their ranks memory when they make them, and say here where this GPU reaches "
                          "it; or connect without memory.");
    if (mapped != nullptr && peer == place_.peer() && mapped[peer] != memory_)
      return bad_argument(
          fmt::format("memory[{}] is {}, and this rank was given {}", peer, mapped[peer], static_cast<void*>(memory_)),
          "Give the addresses in the order of the ranks, and of the memory itself, not of the "
          "allocation around it.");
    here += std::memcmp(&contents.gpu, &mine.gpu, sizeof mine.gpu) == 0;
    gpus.push_back(uuid_text(contents.gpu.bytes, false));
  }
  if (const BlobContents placed = contents_of(blobs[static_cast<std::size_t>(place_.peer())]);
      std::strncmp(placed.process, mine.process, sizeof mine.process) != 0 || placed.exchange != mine.exchange)
    return bad_argument(fmt::format("blob {} is of another group than this one", place_.peer()),
                        "Give the blob that this rank's group has exported.");
  const CurrentContext scope(context_ ? context_->get() : nullptr);
  if (!scope.entered()) return scope.entered();
  for (int peer = 0; peer < peers(); ++peer) {
    if (peer == place_.peer()) continue;
    if (mapped != nullptr) {
      exchange_[static_cast<std::size_t>(peer)] = static_cast<char*>(mapped[peer]) + kStateBytes;
      continue;
    }
    auto reached = map(blobs[static_cast<std::size_t>(peer)], first + peer);
    if (!reached) return tl::unexpected(std::move(reached.error()));
    exchange_[static_cast<std::size_t>(peer)] = *reached;
  }
  // Only the pointers are written: another rank may have begun to send.
  const auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  if (auto ok = copy_to_device(memory_ + offsetof(LeanGroup, exchange), exchange_.data(),
                               static_cast<std::int64_t>(exchange_.size() * sizeof(char*)), *stream);
      !ok)
    return ok;
  ranks_here_ = here;
  link_ = group_link(gpus);
  connected_ = true;
  return {};
}

Result<void> GroupMember::reset(CUstream_st* stream) {
  if (exchange_over_nccl_ && !exchange_over_nccl_->connected())
    return fail(ErrorCode::group_broken, "the group has no communicator of NCCL that works",
                "Connect it again on all ranks (leanattn_group_connect_nccl), or make a new group.");
  if (peers() == 1) return {};
  const CurrentContext scope(context_ ? context_->get() : nullptr);
  if (!scope.entered()) return scope.entered();
  if (auto ok = write_state(stream); !ok) return ok;
  if (status_) status_->acknowledge(memory_, memory_bytes_);
  return {};
}

Result<void> GroupMember::check(const DecodeProblem& problem, int batch, const Context* context) const {
  const int ranks = problem.features.context_parallel;
  if (ranks == 1)
    return bad_argument("a problem without context_parallel on a group",
                        fmt::format("Set context_parallel to {}, or plan without the group.", size()));
  if (ranks != size())
    return bad_argument(fmt::format("a problem with context_parallel {} on a group of {} ranks", ranks, size()),
                        "Both must be the same number.");
  if (context != context_.get())
    return bad_argument("the group is of another engine", "Plan with the engine that the group was made with.");
  if (peers() > 1 && !connected_)
    return bad_argument("the group is not connected", "Call leanattn_group_connect first.");
  bool fits = true;
  if (exchange_over_nccl_) {
    fits = exchange_layout(problem, place_, batch).total <= exchange_over_nccl_->bytes();
  }
  if (fits && peers() > 1)
    fits = group_columns(exchange_over_nccl_ ? part_over_nccl(problem, place_) : problem, batch) <= columns_;
  if (fits) return {};
  return bad_argument(fmt::format("launches of {} requests need a group with {} bytes, and this one has {}", batch,
                                  group_bytes(size(), group_columns(problem, batch)),
                                  exchange_over_nccl_ ? exchange_over_nccl_->bytes() : group_bytes(size(), columns_)),
                      "Make the group with the memory_bytes that leanattn_group_bytes says for the largest problem.");
}

const void* GroupMember::slots() const { return memory_ + kFixedBytes; }
std::int64_t GroupMember::slot_bytes() const { return memory_bytes_ - kFixedBytes; }

void GroupMember::bind(LeanDecodeArgs& args) const {
  args.group = memory_;
  args.group_rank = place_.peer();
  args.context_rank = place_.rank;
}

}  // namespace v1
}  // namespace leanattn
