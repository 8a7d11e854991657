// duel.hpp -- Duel: two configurations of one shape, raced against each other. One thread, as a tuning session.
#pragma once

#include <string>

#include "tuner/backend/backend.hpp"
#include "tuner/measure/statistics.hpp"

namespace leanattn {
inline namespace v1 {

struct Duel {
  PairedRatio ratio;  ///< the first over the second; 1 without pairs if both are the same configuration
  double first_us = 0, second_us = 0;  ///< medians
  std::string noise;                   ///< why the ratio should be doubted; empty: it should not
};
/// Checks both configurations and races them for 16 to 40 rounds, until the ratio's interval is narrower than 0.5 %.
/// The backend must have begun the shape. Errors: wrong_result (one of them disagrees with the oracle), those of the
/// backend.
Result<Duel> duel(TuneBackend& backend, const Config& first, const Config& second);

}  // namespace v1
}  // namespace leanattn
