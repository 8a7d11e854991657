// recurrent_winners.hpp -- the winners of operation `recurrent`, as reports show them. Pure functions; any thread.
// Internal to tuner/report.
#pragma once

#include <optional>
#include <span>

#include "runtime/cuda/device.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// nullopt: the winner is none of operation `recurrent`. `tried` are the trials of its problem, batch and L2 policy,
/// the oldest first; `facts` may be null.
std::optional<ReportedRecurrent> reported_recurrent(const Winner& winner, std::span<const Trial* const> tried,
                                                    const DeviceFacts* facts);

/// By problem, L2 policy and batch.
void sort_recurrent(std::vector<ReportedRecurrent>& winners);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
