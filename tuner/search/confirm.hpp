// confirm.hpp -- the confirmation, the last phase of a shape's search: finalists and the default on samples of their
// own. One thread, the session's. Internal to tuner/search.
#pragma once

#include <optional>
#include <vector>

#include "tuner/search/decision.hpp"

namespace leanattn {
inline namespace v1 {

/// Measures the finalists anew, because the samples that chose them favour the lucky ones, and beside them the default
/// of `timed` and what look-ups answered before. Records all of them, and the ties among them in a fixed order; `whole`
/// says whether the search came to its end before, which their trials tell a session that resumes. Stops
/// early, without an error, when the shape's time is over or the caller has cancelled; nullopt when that was before
/// kFewestRounds rounds, and when no candidate is left. Errors: those of the backend that end a session.
Result<std::optional<Decision>> confirm(const ShapeContext& context, Measurer& measurer, const TimedCandidates& timed,
                                        std::vector<Candidate> finalists, bool whole);

}  // namespace v1
}  // namespace leanattn
