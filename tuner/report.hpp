// report.hpp -- what a tuning database holds, for people and for programs: one model, written as JSON, CSV or Markdown.
// Any thread; the database is used from the calling thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// One winner with what follows from it.
struct ReportedWinner {
  DecodeProblem problem;
  Shape shape;
  std::string policy;  ///< "cold" or "warm" L2
  Config config;
  double median_us = 0, low_us = 0, high_us = 0;
  std::int64_t kv_bytes = 0;    ///< K and V, each read once
  double gb_per_s = 0;          ///< kv_bytes over the median, in 10^9 bytes
  double read_limit_us = 0;     ///< measured pure-read time of the same bytes; 0: unknown
  double read_limit_share = 0;  ///< read_limit_us over the median; 0: unknown
  bool stale = false;
};

struct DeviceReport {
  DeviceModel device;
  std::vector<Environment> environments;       ///< oldest first
  std::vector<ReportedWinner> winners;         ///< by problem, batch, context
  std::map<std::string, std::int64_t> trials;  ///< by status
  std::int64_t unreadable = 0;                 ///< winners whose JSON this version does not understand
};

struct Report {
  std::string library_revision;  ///< of the program that wrote the report
  std::vector<DeviceReport> devices;
};

/// Reads the database. Errors: those of the database. An empty database gives a report without devices.
Result<Report> make_report(TuningDb& db);

/// {"schema_version":1,...}: docs/command-line.md lists the fields.
std::string to_json(const Report& report);
/// One line a winner, RFC 4180 quoting, a header line first.
std::string to_csv(const Report& report);
/// A heading a device, its environment, a table of winners, trial counts.
std::string to_markdown(const Report& report);

}  // namespace v1
}  // namespace leanattn
