// regret.hpp -- RegretReport: how much slower looked-up configurations are than the best ones that a full search finds
// for the same shapes. Plain data and pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// One untuned shape that was looked up and then searched.
struct HeldOutCase {
  DecodeProblem problem;
  Shape shape;
  std::string answer;  ///< the answer's provenance, such as "nearest"
  double looked_up_us = 0, best_us = 0;
  double ratio = 0;  ///< the paired ratio of the two; 0: unknown, because they were not timed in the same rounds

  /// How much slower the answer is: 0.02 means two per cent slower than the best.
  double regret() const { return (ratio > 0 ? ratio : looked_up_us / best_us) - 1; }
};

struct RegretReport {
  std::vector<HeldOutCase> cases;                 ///< the largest regret first
  double median = 0, ninetieth = 0, largest = 0;  ///< regrets
};

/// Reads the JSON of `leanattn evaluate regret`, or any other that has these keys:
/// {"schema_version":1,"cases":[{"problem":{..},"shape":{..},"answer":"nearest","looked_up_us":..,"best_us":..,"ratio":..}]};
/// "ratio" may be absent, and other keys are ignored. Errors: invalid_argument, naming the case.
Result<RegretReport> regret_from_json(std::string_view text);

}  // namespace v1
}  // namespace leanattn
