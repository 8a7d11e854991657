// sweep.hpp -- the sweep, the second phase of a shape's search: all promising grids of the best kernels. One thread,
// the session's. Internal to tuner/search.
#pragma once

#include "tuner/search/measurer.hpp"

namespace leanattn {
inline namespace v1 {

/// `timed` with what was timed now. Stops early, without an error, when `until_s` has come or the caller has cancelled.
/// Errors: those of the backend that end a session.
Result<TimedCandidates> sweep(const ShapeContext& context, const CostModel& model, Measurer& measurer,
                              TimedCandidates timed, double until_s);

}  // namespace v1
}  // namespace leanattn
