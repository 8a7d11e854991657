// report_difference.hpp -- what changed between an earlier report and this one: winners faster, slower, new, lost,
// replaced. Plain data and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

struct Report;

/// A winner in either report, or in both.
struct WinnerChange {
  std::string device;   ///< name, and what tells equal names apart
  std::string problem;  ///< canonical JSON
  std::string shape;    ///< canonical JSON
  std::string policy;
  double old_us = 0, new_us = 0;  ///< 0: not in that report
  double ratio = 0;               ///< new over old; 0 unless in both
  double ratio_low = 0;           ///< from the ends of both medians' 95 % intervals, hence wider than a 95 % interval
  double ratio_high = 0;          ///< of the ratio; the reports do not hold the samples
  std::string old_kernel, new_kernel;
  std::int64_t old_grid = 0, new_grid = 0;
  bool config_changed = false;

  /// "faster" and "slower" beyond both intervals, "same", "new" or "lost".
  std::string_view verdict() const;
};

struct ReportDifference {
  std::string old_revision;           ///< library that wrote the earlier report
  std::vector<WinnerChange> changes;  ///< largest change first; new and lost ones last
  double geometric_mean = 0;          ///< of the ratios; 0: no winner is in both

  std::size_t count(std::string_view verdict) const;
  std::size_t replaced() const;  ///< in both, with another configuration
};

/// earlier_json: a report's JSON, schema_version 1. Errors: invalid_argument (not such a document, a field missing
/// or ill-typed, a newer schema).
Result<ReportDifference> difference_from(std::string_view earlier_json, const Report& report);

}  // namespace v1
}  // namespace leanattn
