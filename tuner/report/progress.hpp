// progress.hpp -- how the search of one shape got to its winner. Internal to tuner/report. Pure functions; any thread.
#pragma once

#include <span>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The steps of the best time so far over the trials of this `software`, which are given oldest first. A configuration
/// counts from its first trial on, with the time of its trial with the most samples. Time between two trials counts as
/// the search's unless it is more than a minute: then another session began. Empty if no trial was timed.
std::vector<ProgressStep> search_progress(std::span<const Trial* const> trials, const Environment& software);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
