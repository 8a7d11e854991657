// launch_status.cpp -- allocates the status block, and turns what kernels wrote there into an error.
#include "runtime/engine/launch_status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <new>

#include "cache/environment_variable.hpp"
#include "runtime/cuda/beside_captures.hpp"
#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr unsigned kHostFault = 255;  // no kernel reports it

/// Whether an address lies in these bytes.
bool lies_in(std::uint64_t address, const void* memory, std::int64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  return address >= begin && address - begin < static_cast<std::uint64_t>(bytes);
}

}  // namespace

Result<std::int64_t> bound_from_environment(const char* variable, std::int64_t otherwise) {
  const std::string text = environment_variable(variable);
  if (text.empty()) return otherwise;
  if (const auto bound = parse_bound(text)) return *bound;
  return fail(ErrorCode::invalid_argument,
              fmt::format("{} is \"{}\", which is no number from 1 to {}", variable, text, kLongestBoundMs),
              "Give milliseconds, or unset it.");
}

std::optional<std::int64_t> parse_bound(std::string_view text) {
  std::int64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || end != last || value < 1 || value > kLongestBoundMs) return std::nullopt;
  return value;
}

std::int64_t wait_bound_from_environment(std::string* warning) {
  const auto bound = bound_from_environment("LEANATTN_WAIT_BOUND_MS", kDefaultWaitBoundMs);
  if (bound) return *bound;
  *warning = fmt::format("{}; {} holds", bound.error().message, kDefaultWaitBoundMs);
  return kDefaultWaitBoundMs;
}

Result<LaunchStatus> LaunchStatus::allocate(std::int64_t wait_bound_ms) {
  const BesideCaptures relaxed;
  auto memory = PinnedBuffer::allocate(sizeof(LeanStatus));
  if (!memory) return tl::unexpected(std::move(memory.error()));
  new (memory->data()) LeanStatus{0, static_cast<unsigned>(wait_bound_ms * 1000), 0};
  return LaunchStatus(*std::move(memory));
}

Result<void> LaunchStatus::check() const {
  const unsigned fault = __atomic_load_n(&block()->fault, __ATOMIC_ACQUIRE);
  if (fault == 0) [[likely]]
    return {};
  const std::uint64_t workspace = __atomic_load_n(&block()->workspace, __ATOMIC_RELAXED);
  const unsigned kind = fault & ((1u << kLeanRankShift) - 1), peer = fault >> kLeanRankShift;
  const std::int64_t bound_ms = wait_bound_ms();
  int rank = static_cast<int>(peer);
  {
    const std::lock_guard lock(host_->mutex);
    if (kind == kHostFault) {
      for (const HostFault& found : host_->faults) {
        if (found.workspace == workspace) return tl::unexpected(found.error);
      }
      if (!host_->faults.empty()) return tl::unexpected(host_->faults.front().error);
      return {};  // acknowledged meanwhile
    }
    if (const auto first = host_->first_ranks.find(workspace); first != host_->first_ranks.end()) rank += first->second;
  }
  if (kind == kLeanRankMissing)
    return fail(ErrorCode::group_broken,
                fmt::format("rank {} of a group did not send its results within {} ms", rank, bound_ms),
                "It has ended, is late, has failed or has launched something else: look at its errors. Throw away the "
                "results since the last check that was well, and reset the group on all ranks "
                "(leanattn_group_reset), between two barriers. Where it was only late, give more time "
                "(LEANATTN_WAIT_BOUND_MS).");
  if (kind == kLeanRankDiffers)
    return fail(ErrorCode::group_broken,
                fmt::format("rank {} of a group launched another kernel, batch or scale than this one, or, with "
                            "LEANATTN_DEBUG, was given other full_context_lengths",
                            rank),
                "All ranks must launch the same problems in the same order with the same batch, and plan with the same "
                "tuning database. Then reset the group on all ranks (leanattn_group_reset), between two barriers.");
  const std::string what =
      fault == kLeanWrongTicket
          ? "a counter there had an impossible value"
          : fmt::format("a CTA waited for {} ms in vain, for another one's partial result there or for its own KV",
                        bound_ms);
  return fail(ErrorCode::workspace_corrupt,
              fmt::format("a launch on workspace {:#x} ended with a fault: {}", workspace, what),
              "The workspace was not all zero before the launch, or two launches used it at a time, or context_lengths "
              "changed while a launch ran, or another kernel held the SMs for longer (LEANATTN_WAIT_BOUND_MS). Throw "
              "away the results since the last check that was well, and initialise this workspace again. "
              "LEANATTN_DEBUG=1 finds the cause.");
}

void LaunchStatus::report(const void* workspace, const Error& error) {
  const std::lock_guard lock(host_->mutex);
  host_->faults.push_back({reinterpret_cast<std::uintptr_t>(workspace), error});
  tell_next();
}

void LaunchStatus::tell_next() {
  if (host_->faults.empty()) return;
  unsigned none = 0;
  if (!__atomic_compare_exchange_n(&block()->fault, &none, kHostFault, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return;
  __atomic_store_n(&block()->workspace, host_->faults.front().workspace, __ATOMIC_RELEASE);
}

void LaunchStatus::acknowledge() {
  const std::lock_guard lock(host_->mutex);
  const std::uint64_t workspace = __atomic_load_n(&block()->workspace, __ATOMIC_RELAXED);
  if (__atomic_exchange_n(&block()->fault, 0, __ATOMIC_ACQ_REL) == kHostFault)
    std::erase_if(host_->faults, [&](const HostFault& found) { return found.workspace == workspace; });
  tell_next();
}

void LaunchStatus::acknowledge(const void* workspace, std::int64_t bytes) {
  const std::lock_guard lock(host_->mutex);
  std::erase_if(host_->faults, [&](const HostFault& found) { return lies_in(found.workspace, workspace, bytes); });
  if (has_fault_in(workspace, bytes)) __atomic_store_n(&block()->fault, 0, __ATOMIC_RELEASE);
  tell_next();
}

bool LaunchStatus::has_fault_in(const void* workspace, std::int64_t bytes) const {
  if (!has_fault()) [[likely]]
    return false;
  return lies_in(__atomic_load_n(&block()->workspace, __ATOMIC_RELAXED), workspace, bytes);
}

void LaunchStatus::count_ranks_from(const void* group, int first_rank) {
  const std::lock_guard lock(host_->mutex);
  host_->first_ranks[reinterpret_cast<std::uintptr_t>(group)] = first_rank;
}

void LaunchStatus::forget_ranks(const void* group) {
  const std::lock_guard lock(host_->mutex);
  host_->first_ranks.erase(reinterpret_cast<std::uintptr_t>(group));
}

Result<void> LaunchStatus::acknowledge_after(CUstream_st* stream) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (may_be_capturing(**api, stream)) return check();
  if (auto ok = leanattn::check((*api)->cuStreamSynchronize(stream), "cuStreamSynchronize", ErrorCode::launch_failed);
      !ok)
    return ok;
  acknowledge();
  return {};
}

}  // namespace v1
}  // namespace leanattn
