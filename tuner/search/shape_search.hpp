// shape_search.hpp -- tune_shape: the search for one shape's winner, phase by phase. One thread, the session's.
// Internal to tuner/search.
#pragma once

#include "tuner/search/session_knowledge.hpp"
#include "tuner/search/session_setup.hpp"
#include "tuner/search/tune_summary.hpp"

namespace leanattn {
inline namespace v1 {

/// Tunes shape number `index` of the request until `deadline_s` on the backend's clock. Adds what it learns to
/// `knowledge`. Errors: interrupted, context_lost, out_of_memory, wrong_result, database errors.
Result<TunedShape> tune_shape(const SessionSetup& session, SessionKnowledge& knowledge, int index, double deadline_s);

}  // namespace v1
}  // namespace leanattn
