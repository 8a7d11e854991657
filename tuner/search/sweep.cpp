#include "tuner/search/sweep.hpp"

#include "tuner/search/model_trust.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kReach = 1.3;  // grids are tried whose prediction is up to this many times that of the kernel's best

}  // namespace

Result<TimedCandidates> sweep(const ShapeContext& context, const CostModel& model, Measurer& measurer,
                              TimedCandidates timed, double until_s) {
  const std::vector<KernelSpec> specs = timed.best_specs(context.session.effort.sweep_specs);
  for (std::size_t i = 0; i < specs.size() && !context.stopped(until_s); ++i) {
    context.report("sweep", kernel_name(specs[i]), static_cast<int>(i), static_cast<int>(specs.size()),
                   timed.best_us());
    const auto ready = measurer.compiled_already(specs[i], model);
    if (!ready) continue;
    const auto chosen = within_reach(context.ranked_grids(model, specs[i], ready->resident), kReach);
    if (auto done = measurer.try_configs(chosen, "sweep", until_s, timed); !done) return tl::unexpected(done.error());
  }
  return timed;
}

}  // namespace v1
}  // namespace leanattn
