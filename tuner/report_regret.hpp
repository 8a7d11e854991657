// report_regret.hpp -- held-out regret: how much slower looked-up configurations are than the best a full search finds
// for the same shape. Plain data and pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// One shape that was looked up before it was tuned.
struct HeldOutCase {
  DecodeProblem problem;
  Shape shape;
  std::string answer;  ///< where the look-up's answer came from, such as "nearest"
  double looked_up_us = 0, best_us = 0;
  double ratio = 0;  ///< of the two, measured side by side; 0: only the times are known

  /// 0.02: two per cent slower than the best.
  double regret() const { return (ratio > 0 ? ratio : looked_up_us / best_us) - 1; }
};

struct RegretReport {
  std::vector<HeldOutCase> cases;  ///< largest regret first
  double median = 0, ninetieth = 0, largest = 0;
};

/// {"schema_version":1,"cases":[{"problem":{..},"shape":{..},"answer":"nearest","looked_up_us":..,"best_us":..,"ratio":..}]};
/// "ratio" (paired, where both were measured in the same rounds) may be absent, other keys are ignored. Errors:
/// invalid_argument, naming the case.
Result<RegretReport> regret_from_json(std::string_view json);

}  // namespace v1
}  // namespace leanattn
