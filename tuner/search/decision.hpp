// decision.hpp -- Decision: the winner of a shape's search, and how sure it is. Plain data; any thread. Internal to
// tuner/search.
#pragma once

#include <optional>
#include <span>

#include "tuner/measure/race.hpp"
#include "tuner/search/measurer.hpp"

namespace leanattn {
inline namespace v1 {

/// Relative differences below this do not matter to anybody.
inline constexpr double kTie = 0.003;

/// With fewer rounds than this, nothing is decided: the first samples of a candidate may be far off.
inline constexpr int kFewestRounds = 3;

/// The reason of `ok` trials of a search that did not come to its end.
inline constexpr const char* kCutShort = "the search was cut short";

struct Decision {
  std::optional<Config> winner = {};  ///< nullopt: no candidate was left, or too few rounds
  double median_us = 0, low_us = 0, high_us = 0;
  std::optional<double> default_us = {};    ///< the default's time beside the winner, where it took part
  std::optional<double> looked_up_us = {};  ///< likewise of what look-ups answered before
  int raced = 0;                            ///< candidates that took part
  bool finished = true;                     ///< false: the budget or an interrupt came before the last round
};

/// The answer that a race gives which could not be finished: its leader, unless what look-ups answered before was
/// faster in the rounds that they had in common. Records it. There is no winner after fewer than kFewestRounds rounds.
Decision settle_early(const ShapeContext& context, Measurer& measurer, std::span<const Candidate> candidates,
                      const Race& race);

}  // namespace v1
}  // namespace leanattn
