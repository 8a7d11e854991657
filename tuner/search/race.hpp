// race.hpp -- the race, the fourth phase of a shape's search: rounds of the best candidates, of which the slower ones
// drop out. One thread, the session's. Internal to tuner/search; tuner/measure/race.hpp has the rules.
#pragma once

#include <vector>

#include "tuner/search/decision.hpp"
#include "tuner/search/earlier_results.hpp"

namespace leanattn {
inline namespace v1 {

struct Raced {
  std::vector<Candidate> entrants;   ///< the fastest in the screen first
  Race race;                         ///< of these
  std::vector<Candidate> finalists;  ///< those that are left, in the same order
  bool finished = true;              ///< false: it ended early; then the finalists are the best so far
};

/// Stops early, without an error, when the race's time is over or the caller has cancelled, but not before the best so
/// far had kFewestRounds rounds beside what look-ups answer. Errors: wrong_result (a
/// candidate was right in an earlier session and is wrong now), those of the backend that end a session.
Result<Raced> race(const ShapeContext& context, const EarlierResults& earlier, Measurer& measurer,
                   const TimedCandidates& timed);

}  // namespace v1
}  // namespace leanattn
