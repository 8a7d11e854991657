// group_exchange.cpp -- lays out the staging memory, and enqueues the three parts of a launch over NCCL.
#include "runtime/engine/group_exchange.hpp"

#include <fmt/format.h>

#include <array>
#include <new>
#include <utility>

#include "runtime/cuda/driver.hpp"
#include "runtime/engine/launch_status.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// NCCL takes seconds to find its way between hosts, and ranks may compile kernels before they join.
constexpr std::int64_t kDefaultJoinBoundMs = 60000;
constexpr std::int64_t kStagingAlignment = 16;  // small, so that what leanattn_group_bytes says always suffices

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

}  // namespace

DecodeProblem part_over_nccl(const DecodeProblem& problem, const GroupPlace& place) {
  DecodeProblem part = place.peers == 1 ? without_group(problem) : problem;
  Features& features = part.features;
  if (place.peers > 1) features.context_parallel = place.peers;
  // Where contiguous parts of peers lie, a kernel knows from context_starts, whatever other ranks there are.
  const bool positions = needs_positions(problem.features);
  if (positions && (place.peers == 1 || problem.features.context_interleave > 0)) features.context_ranks = place.size;
  features.context_interleave = positions ? problem.features.context_interleave : 0;
  features.sink_logits = false;  // the merge counts them, once
  part.lse = true;
  part.pdl =
      false;  // the kernel before writes what this one reads early, and NCCL's kernel after does not depend on it
  return part;
}

ExchangeLayout exchange_layout(const DecodeProblem& problem, const GroupPlace& place, std::int64_t batch) {
  const Features& features = problem.features;
  const bool all = features.replicate_output;
  constexpr std::int64_t kElementBytes = 2;
  ExchangeLayout layout;
  layout.tokens = batch * features.q_len;
  layout.heads = all ? problem.q_heads : problem.q_heads / place.peers;
  layout.first_head = all ? 0 : place.peer() * layout.heads;
  layout.share_heads = all ? layout.heads : layout.heads / place.nccl_ranks();
  const std::int64_t head_bytes = layout.tokens * v_head_dim(problem) * kElementBytes;
  layout.share_bytes = layout.share_heads * head_bytes;
  layout.lse_bytes = layout.tokens * problem.q_heads * std::int64_t{sizeof(float)};
  layout.send_lse = aligned(layout.heads * head_bytes);
  layout.receive = layout.send_lse + aligned(layout.lse_bytes);
  layout.receive_lse = layout.receive + place.nccl_ranks() * aligned(layout.share_bytes);
  layout.total = layout.receive_lse + place.nccl_ranks() * aligned(layout.lse_bytes);
  return layout;
}

Result<std::unique_ptr<GroupExchange>> GroupExchange::create(const GroupPlace& place, std::int64_t memory_bytes,
                                                             std::shared_ptr<const Context> context,
                                                             std::shared_ptr<LaunchStatus> status,
                                                             PartialsMerger* merger) {
  std::unique_ptr<GroupExchange> made(new GroupExchange);
  made->place_ = place;
  made->context_ = std::move(context);
  made->status_ = std::move(status);
  made->merger_ = merger;
  auto staging = DeviceBuffer::allocate(memory_bytes);
  if (!staging) return tl::unexpected(std::move(staging.error()));
  auto count = DeviceBuffer::allocate(sizeof(unsigned));
  if (!count) return tl::unexpected(std::move(count.error()));
  auto progress = PinnedBuffer::allocate(sizeof(LeanExchangeProgress));
  if (!progress) return tl::unexpected(std::move(progress.error()));
  made->staging_ = *std::move(staging);
  made->count_ = *std::move(count);
  made->progress_ = *std::move(progress);
  new (made->progress_.data()) LeanExchangeProgress{0, 0};
  const auto stream = Stream::create();
  if (!stream) return tl::unexpected(stream.error());
  if (auto ok = fill_bytes_async(made->count_.data(), 0, made->count_.bytes(), stream->get()); !ok)
    return tl::unexpected(std::move(ok.error()));
  if (auto ok = stream->synchronize(); !ok) return tl::unexpected(std::move(ok.error()));
  return made;
}

GroupExchange::~GroupExchange() {
  communicator_.reset();  // it reads progress_, and its launches the memory of checks_
  // Nobody could connect the group later, and the engine's other launches shall go on.
  if (status_) status_->acknowledge(staging_.data(), staging_.bytes());
}

std::shared_ptr<GroupCommunicator> GroupExchange::communicator() const {
  const std::lock_guard lock(mutex_);
  return communicator_;
}

bool GroupExchange::connected() const {
  const auto communicator = this->communicator();
  return communicator && !communicator->broken();
}

Result<void> GroupExchange::connect_with(
    const std::function<Result<std::unique_ptr<GroupCommunicator>>(const NcclApi&, CommunicatorOptions)>& make) {
  const auto join_ms = bound_from_environment("LEANATTN_JOIN_BOUND_MS", kDefaultJoinBoundMs);
  if (!join_ms) return tl::unexpected(join_ms.error());
  const auto api = nccl();
  if (!api) return tl::unexpected(api.error());
  {
    const std::lock_guard lock(mutex_);
    communicator_.reset();
  }
  // Nothing of the last communicator reports any more.
  if (status_) status_->acknowledge(staging_.data(), staging_.bytes());
  if (checks_) checks_->forget();
  // What a launch that broke the last communicator has left.
  auto* const progress = progress_.as<LeanExchangeProgress>();
  __atomic_store_n(&progress->ended, __atomic_load_n(&progress->begun, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
  CommunicatorOptions options;
  options.rank = place_.nccl_rank(), options.ranks = place_.nccl_ranks();
  options.join_ms = *join_ms;
  options.bound_ms = status_ ? status_->wait_bound_ms() : kDefaultWaitBoundMs;
  options.context = context_;
  options.progress = progress;
  options.on_break = [status = status_, staging = staging_.data()](const Error& error) {
    if (status) status->report(staging, error);
  };
  auto made = make(**api, std::move(options));
  if (!made) return tl::unexpected(std::move(made.error()));
  const std::lock_guard lock(mutex_);
  communicator_ = *std::move(made);
  return {};
}

Result<void> GroupExchange::connect(const NcclUniqueId& id) {
  return connect_with([&](const NcclApi& api, CommunicatorOptions options) {
    return GroupCommunicator::join(api, id, std::move(options));
  });
}

Result<void> GroupExchange::connect(ncclComm* comm) {
  return connect_with([&](const NcclApi& api, CommunicatorOptions options) {
    return GroupCommunicator::borrow(api, comm, std::move(options));
  });
}

Result<void> GroupExchange::prepare(bool capturing) {
  const auto communicator = needed_communicator();
  if (!communicator) return tl::unexpected(communicator.error());
  if (auto ok = (*communicator)->ready(); !ok) return ok;
  return merger_->prepare(capturing);
}

Result<std::shared_ptr<GroupCommunicator>> GroupExchange::needed_communicator() const {
  auto communicator = this->communicator();
  if (communicator) return communicator;
  return fail(ErrorCode::invalid_argument, "the group is not connected over NCCL",
              "Call leanattn_group_connect_nccl on all ranks first.");
}

Result<std::shared_ptr<GroupCommunicator>> GroupExchange::communicator_for(CUstream_st* stream) const {
  if (stream == CU_STREAM_PER_THREAD)
    return fail(
        ErrorCode::invalid_argument, "stream is CU_STREAM_PER_THREAD, on a group over NCCL",
        "NCCL launches from threads of its own, for which that is another stream. Give a stream that was made.");
  auto communicator = needed_communicator();
  if (!communicator) return communicator;
  if (auto ok = (*communicator)->usable(); !ok) return tl::unexpected(std::move(ok.error()));
  return communicator;
}

Result<bool> GroupExchange::compare_and_tell(const DecodeProblem& problem, const LeanDecodeArgs& args,
                                             CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (may_be_capturing(**api, stream)) return false;
  if (!checks_) {
    auto made = ExchangeChecks::create(place_);
    if (!made) return tl::unexpected(std::move(made.error()));
    checks_ = *std::move(made);
  }
  if (auto ok = checks_->before(problem, args, stream); !ok) return tl::unexpected(std::move(ok.error()));
  return true;
}

Result<void> GroupExchange::begin(const DecodeProblem& problem, const ExchangeLayout& layout, LeanDecodeArgs& args,
                                  CUstream_st* stream) {
  const Features& features = problem.features;
  LeanBeginArgs before{};
  before.progress = progress_.as<LeanExchangeProgress>();
  before.launch = count_.as<unsigned>();
  if (auto ok = merger_->begin(before, stream); !ok) return ok;
  const std::int64_t dim = v_head_dim(problem), head_stride = layout.tokens * dim;
  // The kernel counts heads from the first of all. This address is only the start of that count.
  args.o = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(staging_.at(0)) -
                                   static_cast<std::uintptr_t>(layout.first_head * head_stride * 2));
  args.o_stride_head = head_stride;
  args.o_stride_token = dim;
  args.o_stride_batch = features.q_len * dim;
  args.lse = static_cast<float*>(staging_.at(layout.send_lse));
  args.sink_logits = nullptr;
  return {};
}

void GroupExchange::take_back(CUstream_st* stream) const {
  LeanMergeArgs nothing{};
  nothing.progress = progress_.as<LeanExchangeProgress>();
  nothing.launch = count_.as<unsigned>();
  nothing.heads = nothing.request_tokens = 1;
  // Where even this fails, the communicator's watch ends the group.
  (void)merger_->merge(nothing, DType::bf16, stream);
}

Result<void> GroupExchange::finish(const DecodeProblem& problem, const ExchangeLayout& layout,
                                   const LeanDecodeArgs& asked, CUstream_st* stream, GroupCommunicator& communicator,
                                   bool tells) {
  const Features& features = problem.features;
  const int ranks = place_.nccl_ranks(), own = place_.nccl_rank();
  const auto share_sent_to = [&](int rank) {
    return staging_.at(features.replicate_output ? 0 : rank * layout.share_bytes);
  };
  const auto received = [&](int rank) { return staging_.at(layout.receive + rank * aligned(layout.share_bytes)); };
  const auto received_lse = [&](int rank) {
    return staging_.at(layout.receive_lse + rank * aligned(layout.lse_bytes));
  };
  std::array<Transfer, std::size_t{3} * LEAN_MERGE_PARTS> transfers;
  std::size_t count = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == own) continue;
    transfers[count++] = {rank, share_sent_to(rank), received(rank), layout.share_bytes};
    transfers[count++] = {rank, staging_.at(layout.send_lse), received_lse(rank), layout.lse_bytes};
    if (tells) transfers[count++] = checks_->transfer_with(rank);
  }
  if (auto ok = communicator.exchange({transfers.data(), count}, stream); !ok) return ok;
  if (tells) [[unlikely]] {
    if (auto ok = checks_->after(stream); !ok) return ok;
  }

  const std::int64_t dim = v_head_dim(problem);
  const int first_head = features.replicate_output ? 0 : place_.share() * layout.share_heads;
  LeanMergeArgs merge{};
  for (int rank = 0; rank < ranks; ++rank) {
    const auto part = static_cast<std::size_t>(rank);
    merge.o[part] = rank == own ? share_sent_to(own) : received(rank);
    merge.lse[part] =
        static_cast<const float*>(rank == own ? staging_.at(layout.send_lse) : received_lse(rank)) + first_head;
  }
  merge.o_stride_token = dim, merge.o_stride_head = layout.tokens * dim;
  merge.lse_stride_token = merge.out_lse_stride_token = problem.q_heads;
  merge.out_o = static_cast<char*>(asked.o) + first_head * asked.o_stride_head * 2;
  merge.out_stride_token = asked.o_stride_token, merge.out_stride_head = asked.o_stride_head;
  merge.out_stride_batch = features.ragged_q ? features.q_len * asked.o_stride_token : asked.o_stride_batch;
  if (asked.lse != nullptr) merge.out_lse = asked.lse + first_head;
  if (asked.sink_logits != nullptr) merge.sink_logits = asked.sink_logits + first_head;
  if (features.ragged_q) merge.token_count = asked.q_offsets + asked.batch;
  merge.progress = progress_.as<LeanExchangeProgress>();
  merge.launch = count_.as<unsigned>();
  merge.tokens = static_cast<int>(layout.tokens), merge.heads = layout.share_heads;
  merge.request_tokens = features.q_len;
  merge.parts = ranks;
  merge.dim = static_cast<int>(dim);
  return merger_->merge(merge, problem.dtype, stream);
}

}  // namespace v1
}  // namespace leanattn
