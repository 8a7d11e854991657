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

bool same_problem(const KernelSpec& spec, const KernelSpec& base) {
  return spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group &&
         spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse && spec.pdl == base.pdl &&
         spec.features == base.features;
}

}  // namespace

ShapeContext shape_context(const SessionSetup& session, int index, double deadline_s) {
  const Shape& requested = session.request.shapes[static_cast<std::size_t>(index)];
  const Shape shape = canonical(requested);
  return {.session = session,
          .index = index,
          .requested = requested,
          .shape = shape,
          .problem_json = to_json(session.request.problem),
          .shape_json = to_json(shape),
          .default_config = leanattn::default_config(session.device, session.request.problem, shape),
          .started_s = session.backend.now_s(),
          .deadline_s = deadline_s};
}

bool ShapeContext::fits(const Config& config) const {
  return same_problem(config.spec, base_spec(session.device.arch, session.request.problem)) &&
         validate(config.spec).has_value();
}

std::vector<RankedConfig> ShapeContext::ranked_grids(const CostModel& model, const KernelSpec& spec,
                                                     int resident) const {
  return rank_grids(model.of(spec), session.device, session.request.problem, shape, spec, resident);
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
