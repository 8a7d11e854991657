// tune_shape.hpp -- ShapeSearch: the search for one shape's winner. screen -> sweep -> refine -> race -> confirm. One
// thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/race.hpp"
#include "tuner/search_space.hpp"
#include "tuner/tune_session.hpp"

namespace leanattn {
inline namespace v1 {

class ShapeSearch {
 public:
  ShapeSearch(SessionState& state, int index, double deadline_s);

  Result<TunedShape> run();

 private:
  /// A configuration that was timed, or that an earlier session timed.
  struct Candidate {
    Config config;
    CompiledSpec compiled;
    double us = 0;       ///< one sample, normalised to the shape's read limit
    bool known = false;  ///< from an earlier session: not timed again
  };

  // What an earlier session left.
  Result<void> load_known();
  /// The closest winners of problems with the same head_dim and group, whatever their features, layout or number of KV
  /// heads.
  void find_relatives(const std::vector<Winner>& winners);
  /// Whether a search with this software got to the end of its confirmation: resuming has nothing to add to it.
  bool finished_earlier();

  // Search (tune_screen.cpp). Each stops early, without an error, when `until_s` has come or the caller cancelled.
  Result<void> screen(double until_s);
  /// Without those that the model, once it was fitted to samples, says are far behind the best time so far.
  std::vector<RankedConfig> promising(std::vector<RankedConfig> candidates) const;
  Result<void> sweep(double until_s);
  Result<void> refine(double until_s);
  /// What a segment costs depends on the device: of a ragged shape, the best candidates with more and less charged.
  Result<void> try_charges(double until_s);
  /// Checks and times what was not seen before.
  Result<void> try_configs(std::span<const RankedConfig> configs, const char* phase, double until_s);
  Result<void> time_batch(std::vector<Candidate> batch);
  Result<void> keep(const Candidate& candidate, double us);
  Result<bool> passes_check(const Candidate& candidate);
  /// Records what time() found out about a candidate; false when there is nothing against it.
  bool record_condemned(const Candidate& candidate);
  /// The backend's time(), its duration counted.
  Result<RoundTimes> time(std::span<const Config> configs);
  /// Compiled and usable; counts and records those that are not. nullopt also when there was no time to wait.
  std::optional<CompiledSpec> compiled(const KernelSpec& spec, double until_s, bool wait = true);
  std::vector<KernelSpec> spec_order();
  /// Distinct specs of the candidates, best first.
  std::vector<KernelSpec> best_specs(std::size_t count) const;

  // Instead of a search (tune_revalidate.cpp).
  /// The stored winner first, then what ran it close; empty where nothing usable is stored.
  Result<std::vector<Config>> stored_finalists();
  /// Confirms them and the default anew. False: there was nothing to confirm, or no time.
  Result<bool> revalidate();
  /// Whether a stored configuration is one for this problem on this device.
  bool fits(const Config& config) const;

  // Decision (tune_decide.cpp).
  Result<void> decide();
  Result<bool> run_rounds(Race& race, const std::vector<Candidate>& candidates, int rounds, const char* phase,
                          double until_s);
  Result<void> confirm(std::vector<Candidate> finalists);
  /// Those that time() has condemned leave the race, recorded. False when there are none.
  bool drop_condemned(Race& race, const std::vector<Candidate>& candidates);
  void settle_early(const Race* race, const std::vector<Candidate>& candidates);
  Result<void> answer();

  // Shared.
  Result<void> begin_measuring();
  bool stopped(double until_s) const { return state_.cancelled() || state_.backend.now_s() >= until_s; }
  double phase_end(double share) const;
  void record(const Config& config, const CompiledSpec& compiled, TrialStatus status, std::string reason,
              std::span<const double> samples, const std::string& throttle = {});
  void report(const char* phase, const std::string& candidate, int done, int total);

  SessionState& state_;
  const int index_;
  const Shape shape_;
  const std::string problem_json_, shape_json_;
  const double started_s_, deadline_s_;

  TunedShape result_;
  Config default_;
  std::vector<Config> incumbents_;             ///< earlier winners of this shape
  std::vector<Config> relatives_;              ///< what won for like heads and near shapes, made to fit
  std::map<std::string, Trial> known_;         ///< resume: by config
  std::map<std::string, bool> seen_;           ///< configs considered
  std::map<std::string, bool> specs_counted_;  ///< kernels in result_.compiled or result_.rejected
  std::vector<Candidate> held_;                ///< timed and still in, best first at the end of a phase
  bool measuring_ = false;
  double least_predicted_us_ = 0;  ///< over the session's kernels; 0 before the model was asked
  bool model_fitted_ = false;      ///< to samples of this session, some of them of this shape or earlier ones
  double read_limit_us_ = 0;
  double best_us_ = 0;
};

}  // namespace v1
}  // namespace leanattn
