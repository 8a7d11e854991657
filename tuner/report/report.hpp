// report.hpp -- Report: what a tuning database has and what follows from it. render.hpp writes it in all formats. Any
// thread; the database is used from the calling thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/problem.hpp"
#include "tuner/evaluate/paper.hpp"
#include "tuner/report/difference.hpp"
#include "tuner/report/regret.hpp"

namespace leanattn {
inline namespace v1 {

/// The ratio of two times, with its 95 % bootstrap interval.
struct TimeRatio {
  double ratio = 0;          ///< 0: unknown
  double low = 0, high = 0;  ///< both 0: there are too few samples for an interval

  bool known() const { return ratio > 0; }
  bool has_interval() const { return low > 0; }
};

/// Another configuration than the winner that was tried for the same shape.
struct Rival {
  Config config;
  double median_us = 0;
  int samples = 0;
  TimeRatio over_winner;  ///< its time over the winner's
};

/// The times of all configurations that were tried for a shape, over the fastest of them.
struct CandidateSpread {
  /// The shares of candidates at which `quantiles` are taken.
  static constexpr std::array<double, 7> kShares = {0, 0.1, 0.25, 0.5, 0.75, 0.9, 1};
  std::int64_t configurations = 0;    ///< how many were timed
  std::int64_t kernels = 0;           ///< how many different ones these have
  std::array<double, 7> quantiles{};  ///< of time over the fastest time
};

/// The parts of a winner's time by the cost model, which is fitted to this GPU's trials. Together with `unexplained_us`
/// they add up to the measured median.
struct TimeParts {
  double start_us = 0;        ///< the launch, the schedule and the first bytes
  double stream_us = 0;       ///< the transfer of K and V
  double segments_us = 0;     ///< draining and refilling the ring between output tiles of one CTA
  double fix_up_us = 0;       ///< storing and merging partials
  double unexplained_us = 0;  ///< the measured time minus the predicted one; may be negative
  int busy_sms = 0;           ///< how many SMs get a CTA
  double contributors = 0;    ///< the average number of CTAs that share an output tile; below 1 if CTAs have several
  double balance = 0;         ///< LeanTiles of an average SM over those of the busiest SM
  double kib_in_flight = 0;   ///< of K and V that the rings hold on a busy SM
  std::string limited_by;     ///< "read limit", "start-up", "stream", "segments", "fix-up" or "unexplained"
};

/// How far the search of a shape was after so many of its trials.
struct ProgressStep {
  std::int64_t trials = 0;  ///< failed ones included
  double seconds = 0;       ///< since the first trial, without the pauses between sessions
  double best_us = 0;       ///< the best time so far
};

/// One winner and what follows from its trials.
struct ReportedWinner {
  DecodeProblem problem;
  Shape shape;
  L2Policy policy = L2Policy::cold;
  Config config;
  double median_us = 0, low_us = 0, high_us = 0;
  std::int64_t kv_bytes = 0;    ///< of K and V, each read once
  double gb_per_s = 0;          ///< kv_bytes over the median, in 10^9 bytes
  double read_limit_us = 0;     ///< 0: unknown
  double read_limit_share = 0;  ///< read_limit_us over the median; 0: unknown
  bool stale = false;

  int samples = 0;
  std::string measured;                       ///< the time of the measurement, ISO 8601 in UTC; empty: unknown
  std::optional<Rival> default_config;        ///< the default configuration
  std::optional<Rival> runner_up;             ///< the fastest other configuration with at least three samples
  std::optional<Rival> flash_attention2;      ///< the best with one CTA for each output tile
  std::optional<Rival> flash_decoding;        ///< the best with the same number of CTAs for each output tile
  std::optional<CandidateSpread> candidates;  ///< nullopt: the trials were dropped
  std::vector<ProgressStep> progress;         ///< where the best time improved, and the end; empty: unknown
  std::optional<TimeParts> parts;             ///< nullopt: this version does not know the GPU

  /// The median over the read limit; 0: unknown.
  double over_limit() const { return read_limit_us > 0 ? median_us / read_limit_us : 0; }
};

/// One winner of operation `recurrent`: a step of some batch.
struct ReportedRecurrent {
  RecurrentSpec spec;
  int batch = 1;
  L2Policy policy = L2Policy::cold;
  double median_us = 0, low_us = 0, high_us = 0;
  double gb_per_s = 0;  ///< of states read and written, in 10^9 bytes
  double copy_us = 0;   ///< of a kernel that only reads each state once and writes each that is stored; 0: unknown
  double rule_us = 0;   ///< of the tunables that the rule says; 0: unknown
  bool stale = false;
  int samples = 0;
  std::string measured = {};  ///< the time of the measurement, ISO 8601 in UTC; empty: unknown

  /// The median over that of the copy; 0: unknown.
  double over_copy() const { return copy_us > 0 ? median_us / copy_us : 0; }
  /// The median over that of the rule's tunables; 0: unknown.
  double over_rule() const { return rule_us > 0 ? median_us / rule_us : 0; }
};

/// One value of a parameter. The ratio is the best time of any candidate with this value over the best time of all.
struct ParameterValue {
  std::string value;
  double geometric_mean = 0, worst = 0;  ///< of the ratio, over the shapes of a problem
  std::int64_t shapes = 0;               ///< for which it was tried
  std::int64_t candidates = 0;           ///< how many configurations have it
};
struct ParameterSensitivity {
  std::string parameter;  ///< a field of KernelSpec, or "schedule" with the values fa2, even and lean
  std::vector<ParameterValue> values;
  /// What it may cost not to tune the parameter: the largest geometric mean among values that were tried for every
  /// shape.
  double spread = 0;
};

/// The winners of one problem under one L2 policy.
struct ProblemReport {
  DecodeProblem problem;
  L2Policy policy = L2Policy::cold;
  std::vector<std::size_t> winners;               ///< indices into DeviceReport::winners, by batch and context
  std::vector<ParameterSensitivity> sensitivity;  ///< the largest spread first
  double model_error = 0;  ///< the median relative error of the cost model on its trials; 0: none was fitted
};

/// Failed trials whose reasons differ only in kernels' names and in numbers.
struct FailureGroup {
  std::string status;   ///< the name of a TrialStatus
  std::string reason;   ///< with names of kernels and numbers replaced
  std::string example;  ///< one of the reasons as it was recorded
  std::string kernel;   ///< the kernel of that trial
  std::int64_t count = 0;
  /// Parameters and values that all trials of the group share, while trials of the device differ in them.
  std::vector<std::pair<std::string, std::string>> common;
};

struct DeviceReport {
  DeviceModel device;
  std::vector<Environment> environments;       ///< the oldest first
  std::string first_trial, last_trial;         ///< ISO 8601 UTC
  std::vector<ReportedWinner> winners;         ///< by problem, batch and context
  std::vector<ProblemReport> problems;         ///< in the order of their winners
  std::vector<ReportedRecurrent> recurrent;    ///< by problem, L2 policy and batch
  std::map<std::string, std::int64_t> trials;  ///< how many have each status
  std::vector<FailureGroup> failures;          ///< the most frequent first
  std::int64_t unreadable = 0;                 ///< how many winners this version cannot read
};

struct Report {
  std::string library_revision;  ///< of the program that wrote the report
  std::vector<DeviceReport> devices;
  std::optional<PaperReport> paper;            ///< nullopt, like the next two: its file was not given
  std::optional<RegretReport> regret;          ///< held-out regret
  std::optional<ReportDifference> difference;  ///< from an earlier report
};

/// The report of a database. An empty database gives a report without devices. Errors: those of the database.
Result<Report> make_report(TuningDb& db);

}  // namespace v1
}  // namespace leanattn
