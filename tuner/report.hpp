// report.hpp -- what a tuning database holds and what follows from it, as one model for all renderers
// (report_render.hpp). Any thread; the database is used from the calling thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "runtime/problem.hpp"
#include "tuner/paper.hpp"
#include "tuner/report_difference.hpp"
#include "tuner/report_regret.hpp"

namespace leanattn {
inline namespace v1 {

/// How many times as long one thing takes as another, with its 95 % bootstrap interval.
struct TimeRatio {
  double ratio = 0;          ///< 0: unknown
  double low = 0, high = 0;  ///< both 0: too few samples for an interval

  bool known() const { return ratio > 0; }
  bool has_interval() const { return low > 0; }
};

/// Another configuration than the winner, tried for the same shape.
struct Rival {
  Config config;
  double median_us = 0;
  int samples = 0;
  TimeRatio over_winner;  ///< its time over the winner's
};

/// Times of every configuration tried for a shape, over the fastest of them.
struct CandidateSpread {
  /// The shares of candidates that `quantiles` are taken at.
  static constexpr std::array<double, 7> kShares = {0, 0.1, 0.25, 0.5, 0.75, 0.9, 1};
  std::int64_t configurations = 0;  ///< timed
  std::int64_t kernels = 0;         ///< distinct ones among them
  std::array<double, 7> quantiles{};
};

/// What the schedule model, fitted to this GPU's trials, makes of the winner's time. The parts and `unexplained_us` add
/// up to the measured median.
struct TimeParts {
  double start_us = 0;        ///< launch, schedule, first bytes
  double stream_us = 0;       ///< moving K and V
  double segments_us = 0;     ///< drain and refill between output tiles of one CTA
  double fix_up_us = 0;       ///< storing and merging partials
  double unexplained_us = 0;  ///< measured less predicted; may be negative
  int busy_sms = 0;           ///< SMs that get a CTA
  double contributors = 0;    ///< CTAs that share an output tile, on average; below 1: output tiles a CTA
  double balance = 0;         ///< LeanTiles of an average SM over those of the busiest
  double kib_in_flight = 0;   ///< KV that the kernel's rings hold on a busy SM
  std::string limited_by;     ///< "read limit", "start-up", "stream", "segments", "fix-up" or "unexplained"
};

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

  int samples = 0;
  std::string measured;                       ///< when: ISO 8601 UTC; empty: unknown
  std::optional<Rival> default_config;        ///< what an untuned library would launch
  std::optional<Rival> runner_up;             ///< the fastest other configuration with at least three samples
  std::optional<Rival> flash_attention2;      ///< best with one CTA an output tile
  std::optional<Rival> flash_decoding;        ///< best with the same number of CTAs for every output tile
  std::optional<CandidateSpread> candidates;  ///< nullopt: its trials are gone
  std::optional<TimeParts> parts;             ///< nullopt: the GPU is none this version knows

  /// Median over the read limit; 0: unknown.
  double over_limit() const { return read_limit_us > 0 ? median_us / read_limit_us : 0; }
};

/// One value of one tuning parameter: the best time of any candidate with it over the best of all, over the shapes of a
/// problem.
struct ParameterValue {
  std::string value;
  double geometric_mean = 0, worst = 0;
  std::int64_t shapes = 0;      ///< in which it was tried
  std::int64_t candidates = 0;  ///< configurations with it
};
struct ParameterSensitivity {
  std::string parameter;  ///< a field of KernelSpec, or "schedule": fa2, even or lean
  std::vector<ParameterValue> values;
  /// What forgetting to tune it may cost: the largest geometric mean of its values, those tried for every shape only.
  double spread = 0;
};

/// Winners of one problem under one L2 policy.
struct ProblemReport {
  DecodeProblem problem;
  std::string policy;
  std::vector<std::size_t> winners;               ///< of DeviceReport::winners, by batch, context
  std::vector<ParameterSensitivity> sensitivity;  ///< largest spread first
  double model_error = 0;  ///< median relative error of the schedule model fitted to its trials; 0: not fitted
};

/// Trials that neither won nor merely lost, alike but for names and numbers.
struct FailureGroup {
  std::string status;   ///< as TrialStatus
  std::string reason;   ///< with kernels' names and numbers replaced
  std::string example;  ///< one reason as it was stored
  std::string kernel;   ///< of that trial
  std::int64_t count = 0;
};

struct DeviceReport {
  DeviceModel device;
  std::vector<Environment> environments;       ///< oldest first
  std::string first_trial, last_trial;         ///< ISO 8601 UTC
  std::vector<ReportedWinner> winners;         ///< by problem, batch, context
  std::vector<ProblemReport> problems;         ///< in the order of their winners
  std::map<std::string, std::int64_t> trials;  ///< by status
  std::vector<FailureGroup> failures;          ///< most frequent first
  std::int64_t unreadable = 0;                 ///< winners whose JSON this version does not understand
};

struct Report {
  std::string library_revision;  ///< of the program that wrote the report
  std::vector<DeviceReport> devices;
  std::optional<PaperReport> paper;            ///< given: `bench --paper` results
  std::optional<RegretReport> regret;          ///< given: look-ups of shapes that were not tuned
  std::optional<ReportDifference> difference;  ///< given: an earlier report
};

/// Reads the database. Errors: those of the database. An empty database gives a report without devices.
Result<Report> make_report(TuningDb& db);

}  // namespace v1
}  // namespace leanattn
