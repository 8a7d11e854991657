#include "tuner/search/shape_context.hpp"

#include <algorithm>
#include <string_view>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Rough shares of the work: what is done when a phase starts, and what the phase itself is. They are for the estimate
// of the time that is left.
double work_before(std::string_view phase) {
  if (phase == "screen") return 0;
  if (phase == "sweep") return 0.45;
  if (phase == "refine") return 0.65;
  if (phase == "race") return 0.85;
  return 0.95;
}

double work_of(std::string_view phase) { return phase == "screen" ? 0.45 : phase == "confirm" ? 0.05 : 0.2; }

}  // namespace

ShapeContext shape_context(const SessionSetup& session, int index, double deadline_s) {
  const DecodeStep& step = session.steps[static_cast<std::size_t>(index)];
  return {.session = session,
          .index = index,
          .requested = session.request.shapes[static_cast<std::size_t>(index)],
          .step = step,
          .problem_json = to_json(session.request.problem),
          .shape_json = to_json(step.shape),
          .default_config = leanattn::default_config(step),
          .started_s = session.backend.now_s(),
          .deadline_s = deadline_s};
}

bool ShapeContext::fits(const Config& config) const {
  return differ_in_tunables_only(config.spec, step.base) && validate(config.spec).has_value();
}

std::vector<RankedConfig> ShapeContext::ranked_grids(const CostModel& model, const KernelSpec& spec,
                                                     int resident) const {
  return rank_grids(model.of(spec), step, spec, resident);
}

void ShapeContext::report(const char* phase, const std::string& candidate, int done, int total, double best_us) const {
  if (!session.progress) return;
  const double now = session.backend.now_s();
  const int count = static_cast<int>(session.request.shapes.size());
  const double part =
      work_before(phase) + work_of(phase) * (total > 0 ? std::min(1.0, static_cast<double>(done) / total) : 0.5);
  const double share = (index + part) / count, elapsed = now - session.started_s;
  const double eta = share > 0.02 ? elapsed * (1 - share) / share : 0;
  session.progress({.shape = requested,
                    .shape_index = index,
                    .shape_count = count,
                    .phase = phase,
                    .candidate = candidate,
                    .done = done,
                    .total = total,
                    .best_us = best_us,
                    .elapsed_s = elapsed,
                    .eta_s = std::clamp(eta, 0.0, std::max(session.ends_s - now, 0.0))});
}

}  // namespace v1
}  // namespace leanattn
