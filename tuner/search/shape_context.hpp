// shape_context.hpp -- ShapeContext: what stays the same while one shape is searched. One thread, the session's.
// Internal to tuner/search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuner/model/search_space.hpp"
#include "tuner/search/session_setup.hpp"

namespace leanattn {
inline namespace v1 {

struct ShapeContext {
  const SessionSetup& session;
  int index = 0;                         ///< of the shape in the request
  Shape requested;                       ///< the shape as the request has it
  const DecodeStep& step;                ///< of that shape, on the session's device
  std::string problem_json, shape_json;  ///< as the database has them
  Config default_config;                 ///< the safe configuration
  double started_s = 0, deadline_s = 0;  ///< on the backend's clock; the search starts when its first kernel is there
  /// What an engine launches without this search: what look-ups answer, or where that failed here the first default
  /// that did not. try_looked_up() sets it once it was timed.
  std::optional<Config> looked_up = {};

  /// The moment at which this share of the shape's time is spent.
  double phase_end(double share) const { return started_s + (deadline_s - started_s) * share; }
  /// Whether that moment has come, or the caller has cancelled.
  bool stopped(double until_s) const { return session.cancelled() || session.backend.now_s() >= until_s; }
  /// Whether a stored configuration is one for this problem on this device.
  bool fits(const Config& config) const;
  /// Whether a candidate stays in the comparison to its end, however slow it seems.
  bool stays(const Config& config) const { return config == default_config || config == looked_up; }
  /// rank_grids() for this step.
  std::vector<RankedConfig> ranked_grids(const CostModel& model, const KernelSpec& spec, int resident) const;
  /// Tells the session's sink how far the search is. total 0: unknown.
  void report(const char* phase, const std::string& candidate, int done, int total, double best_us) const;
};

/// The context of shape number `index` of the request, whose search begins now.
ShapeContext shape_context(const SessionSetup& session, int index, double deadline_s);

}  // namespace v1
}  // namespace leanattn
