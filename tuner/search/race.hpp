// race.hpp -- the race, the fourth phase of a shape's search: rounds of the best candidates, of which the slower ones
// drop out. One thread, the session's. Internal to tuner/search; tuner/measure/race.hpp has the rules.
#pragma once

#include <optional>
#include <vector>

#include "tuner/search/decision.hpp"
#include "tuner/search/earlier_results.hpp"

namespace leanattn {
inline namespace v1 {

struct Raced {
  int entrants = 0;
  std::vector<Candidate> finalists;  ///< the fastest in the screen first; empty when the race ended early
  std::optional<Decision> early;     ///< the answer of a race that ended early
};

/// Stops early, without an error, when the race's time is over or the caller has cancelled. Errors: wrong_result (a
/// candidate was right in an earlier session and is wrong now), those of the backend that end a session.
Result<Raced> race(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                   const TimedCandidates& timed);

}  // namespace v1
}  // namespace leanattn
