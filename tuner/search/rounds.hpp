// rounds.hpp -- run_rounds: the rounds of a race or a confirmation on the session's backend. One thread, the session's.
// Internal to tuner/search.
#pragma once

#include <span>

#include "tuner/measure/race.hpp"
#include "tuner/search/measurer.hpp"

namespace leanattn {
inline namespace v1 {

struct RoundPlan {
  const char* phase = "";  ///< for the progress, as best_us
  int rounds = 0;          ///< so many more that count
  double until_s = 0;
  double best_us = 0;
  bool to_the_end = false;  ///< also when `until_s` has come or the caller has cancelled
};

/// Runs rounds of those of `candidates` that are still in `race`. A candidate that the backend condemns meanwhile is
/// recorded and leaves the race. False when `until_s` came first, when the caller cancelled, when the backend was
/// interrupted, or when no candidate is left. Errors: those of the backend that end a session.
Result<bool> run_rounds(const ShapeContext& context, Measurer& measurer, std::span<const Candidate> candidates,
                        const RoundPlan& plan, Race& race);

}  // namespace v1
}  // namespace leanattn
