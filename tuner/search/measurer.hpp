// measurer.hpp -- Measurer: checks and times the candidates of one shape on the session's backend, and records what
// came of each. It notices what was tried before, so that every candidate is measured and recorded once. One thread,
// the session's. Internal to tuner/search.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tuner/search/candidate.hpp"
#include "tuner/search/shape_context.hpp"

namespace leanattn {
inline namespace v1 {

/// Trials of earlier sessions, by configuration.
using KnownTrials = std::map<std::string, Trial>;

/// What a shape's search has come to so far.
struct SearchCounts {
  int candidates = 0, compiled = 0, rejected = 0, incorrect = 0;
  double gpu_seconds = 0;  ///< spent on checking and timing
  std::string neighbours;  ///< other processes on the GPU, where there were any
  std::string failure;     ///< why the last candidate that failed did so
};

class Measurer {
 public:
  /// Candidates with a trial in `known` are not measured again; it outlives the measurer. Every time that is measured
  /// is added to `samples`.
  Measurer(const ShapeContext& context, const KnownTrials& known, std::vector<ModelSample>& samples);

  /// The kernel, if it is compiled and usable. Counts kernels, and records those that are not usable with the grid that
  /// the model likes best. Waits for the compiler until then.
  std::optional<CompiledSpec> compiled(const KernelSpec& spec, const CostModel& model, double until_s);
  /// The same without waiting.
  std::optional<CompiledSpec> compiled_already(const KernelSpec& spec, const CostModel& model);

  /// Checks and times those that were not seen before, and adds to `timed` what is worth keeping. Known candidates are
  /// added with the time they had. `phase` is for the progress. Stops early, without an error, when `until_s` has come
  /// or the caller has cancelled. Errors: those of the backend that end a session.
  Result<void> try_configs(std::span<const RankedConfig> configs, const char* phase, double until_s,
                           TimedCandidates& timed);
  /// Makes the shape the backend's subject, if it is not yet. try_configs() does so itself.
  Result<void> begin();
  /// Checks one candidate, and records it if it fails. False also when the check was interrupted, which says nothing
  /// about the candidate. Neither does an error that ends the session, unless the backend holds it against the
  /// candidate.
  Result<bool> passes_check(const Candidate& candidate);
  /// One round of the backend's time(). Errors: those of the backend.
  Result<RoundTimes> time(std::span<const Config> configs);
  /// Records what the backend holds against a candidate; false when there is nothing.
  bool record_condemned(const Candidate& candidate);

  void record(const Candidate& candidate, TrialStatus status, std::string reason, std::span<const double> samples = {},
              const std::string& throttle = {});

  /// Whether it is settled that this configuration cannot run here or gives wrong results: its kernel was refused, its
  /// check failed, or it took its worker with it.
  bool failed(const Config& config) const;

  const SearchCounts& counts() const { return counts_; }
  /// 0 until begin().
  double read_limit_us() const { return read_limit_us_; }

 private:
  std::optional<CompiledSpec> counted(const Result<CompiledSpec>* result, const KernelSpec& spec,
                                      const CostModel& model);
  Result<void> time_batch(const std::vector<Candidate>& batch, TimedCandidates& timed);
  void keep(Candidate candidate, double us, TimedCandidates& timed);

  const ShapeContext& context_;
  const SessionSetup& session_;
  const KnownTrials& known_;
  std::vector<ModelSample>& samples_;
  SearchCounts counts_;
  std::set<std::string> seen_configs_, seen_kernels_, failed_configs_, failed_kernels_;
  bool begun_ = false;
  double read_limit_us_ = 0;
};

}  // namespace v1
}  // namespace leanattn
