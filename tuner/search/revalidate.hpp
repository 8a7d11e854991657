// revalidate.hpp -- revalidation, which stands in for a shape's search: what an earlier search ended with is measured
// again. One thread, the session's. Internal to tuner/search.
#pragma once

#include <optional>

#include "tuner/search/decision.hpp"

namespace leanattn {
inline namespace v1 {

/// Confirms the stored winner, its closest rivals, the default and what look-ups answer anew. nullopt: nothing usable
/// is stored, or there was no time; what is stored stays. Errors: of the database, those of the backend that end a
/// session.
Result<std::optional<Decision>> revalidate(ShapeContext& context, const CostModel& model, Measurer& measurer);

}  // namespace v1
}  // namespace leanattn
