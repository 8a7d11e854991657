// difference.hpp -- ReportDifference: what changed between an earlier report and this one. Plain data and pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

struct Report;

/// A winner that is in one of the reports or in both.
struct WinnerChange {
  std::string device;   ///< its name, architecture, SMs and MIG profile
  std::string problem;  ///< canonical JSON
  std::string shape;    ///< canonical JSON
  L2Policy policy = L2Policy::cold;
  double old_us = 0, new_us = 0;  ///< medians; 0: not in that report
  double ratio = 0;               ///< new over old; 0: not in both reports
  /// The ratio's interval. It follows from the ends of both medians' 95 % intervals, because reports do not have
  /// samples, and is therefore wider than a 95 % interval.
  double ratio_low = 0, ratio_high = 0;
  std::string old_kernel, new_kernel;
  std::int64_t old_grid = 0, new_grid = 0;
  bool config_changed = false;

  /// "faster" or "slower" if the interval of the ratio does not reach 1, else "same"; "new" or "lost" if only one
  /// report has the winner.
  std::string_view verdict() const;
};

struct ReportDifference {
  std::string old_revision;           ///< of the library that wrote the earlier report
  std::vector<WinnerChange> changes;  ///< the largest change first, new and lost winners last
  double geometric_mean = 0;          ///< of the ratios; 0: no winner is in both reports

  std::size_t count(std::string_view verdict) const;
  std::size_t replaced() const;  ///< how many winners are in both reports with different configurations
};

/// Compares `report` with an earlier one, which is given as its JSON of schema_version 1. Errors: invalid_argument (the
/// text is no such JSON, a field is missing or has another type, an L2 policy is unknown).
Result<ReportDifference> difference_from(std::string_view earlier_json, const Report& report);

}  // namespace v1
}  // namespace leanattn
