// exchange_checks.cpp -- takes down, sends and compares what the ranks of a group over NCCL launch.
#include "runtime/engine/exchange_checks.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "cache/digest.hpp"
#include "generator/generator.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/engine/group_exchange.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kFactsBytes = sizeof(LaunchFacts);
static_assert(std::is_trivially_copyable_v<LaunchFacts> && kFactsBytes == 72);

}  // namespace

Result<std::unique_ptr<ExchangeChecks>> ExchangeChecks::create(const GroupPlace& place) {
  std::unique_ptr<ExchangeChecks> made(new ExchangeChecks);
  made->own_ = place.nccl_rank(), made->ranks_ = place.nccl_ranks();
  made->peers_ = place.peers, made->peer_ = place.peer();
  auto device = DeviceBuffer::allocate(made->ranks_ * kFactsBytes);
  if (!device) return tl::unexpected(std::move(device.error()));
  auto host = PinnedBuffer::allocate(made->ranks_ * kFactsBytes);
  if (!host) return tl::unexpected(std::move(host.error()));
  made->device_ = *std::move(device);
  made->host_ = *std::move(host);
  return made;
}

Result<void> ExchangeChecks::before(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  LaunchFacts facts;
  facts.problem = detail::Sha256().text(generator_revision()).text(to_json(problem)).finish();
  facts.batch = args.batch;
  facts.scale = args.score_scale;
  std::vector<int> lengths(static_cast<std::size_t>(args.full_lengths != nullptr ? args.batch : 0));
  if (!lengths.empty()) {
    const auto bytes = static_cast<std::int64_t>(lengths.size() * sizeof(int));
    if (auto ok = copy_to_host_async(lengths.data(), args.full_lengths, bytes, stream); !ok) return ok;
  }
  if (auto ok = check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize", ErrorCode::launch_failed); !ok)
    return ok;
  if (std::exchange(told_last_, false)) {
    if (auto ok = compare(); !ok) return ok;
  }
  if (!lengths.empty()) {
    detail::Sha256 digest;
    for (const int length : lengths) digest.number(length);
    facts.full_lengths = digest.finish();
  }
  told()[own_] = facts;
  return copy_to_device_async(device_.at(own_ * kFactsBytes), &told()[own_], kFactsBytes, stream);
}

Transfer ExchangeChecks::transfer_with(int nccl_rank) const {
  return {nccl_rank, device_.at(own_ * kFactsBytes), device_.at(nccl_rank * kFactsBytes), kFactsBytes};
}

Result<void> ExchangeChecks::after(CUstream_st* stream) {
  auto ok = copy_to_host_async(host_.data(), device_.data(), host_.bytes(), stream);
  told_last_ = ok.has_value();
  return ok;
}

Result<void> ExchangeChecks::compare() const {
  const LaunchFacts& mine = told()[own_];
  for (int rank = 0; rank < ranks_; ++rank) {
    const LaunchFacts& theirs = told()[rank];
    std::string what;
    if (theirs.problem != mine.problem) {
      what = "launched another problem than this one, or has another version of leanattn";
    } else if (theirs.batch != mine.batch) {
      what = fmt::format("launched a batch of {}, and this one {}", theirs.batch, mine.batch);
    } else if (theirs.scale != mine.scale) {
      what = fmt::format("launched with scale {}, and this one with {}", theirs.scale, mine.scale);
    } else if (theirs.full_lengths != mine.full_lengths) {
      what = "was given other full_context_lengths than this one";
    }
    if (what.empty()) continue;
    return fail(ErrorCode::group_broken, fmt::format("rank {} of a group {}", rank * peers_ + peer_, what),
                fmt::format("All ranks must launch the same problems in the same order with the same batch, and name "
                            "the same whole contexts. Throw away the results of the launch before this one.{}",
                            peers_ > 1 ? " Ranks whose peers refuse this launch wait for them in vain: then connect "
                                         "the group again on all ranks (leanattn_group_connect_nccl) and reset it."
                                       : ""));
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
