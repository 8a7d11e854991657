#include "tuner/search/refine.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kWorthAnother = 0.995;  // a generation of neighbours that gains less is the last

/// The candidates that the last steps of a refinement vary.
std::vector<Candidate> best_few(const ShapeContext& context, const TimedCandidates& timed) {
  std::vector<Candidate> best = timed.fastest_first();
  if (best.size() > context.session.effort.refine_specs) best.resize(context.session.effort.refine_specs);
  return best;
}

/// The kernels that a generation tries.
std::vector<KernelSpec> near_specs(const TimedCandidates& timed, const SearchEffort& effort, bool with_twins) {
  std::vector<KernelSpec> near;
  const auto add = [&near](const KernelSpec& spec) {
    if (std::find(near.begin(), near.end(), spec) == near.end()) near.push_back(spec);
  };
  for (const KernelSpec& spec : timed.best_specs(effort.refine_specs)) {
    for (const KernelSpec& neighbour : neighbours(spec)) add(neighbour);
  }
  if (!with_twins) return near;
  // Which fix-up is better depends on the grid more than on the kernel, and of kernels with small partials only those
  // with tickets were screened.
  for (KernelSpec twin : timed.best_specs(effort.twin_specs)) {
    twin.fixup = twin.fixup == FixUp::ticket ? FixUp::wait : FixUp::ticket;
    if (!twin.features.batch_invariant && validate(twin)) add(twin);
  }
  return near;
}

}  // namespace

Result<TimedCandidates> refine(const ShapeContext& context, const CostModel& model, const ModelTrust& trust,
                               Measurer& measurer, TimedCandidates timed, double until_s) {
  const SearchEffort& effort = context.session.effort;
  for (int generation = 0; generation < effort.refine_generations && !context.stopped(until_s); ++generation) {
    const double before_us = timed.best_us();
    const std::vector<KernelSpec> near = near_specs(timed, effort, generation == 0);
    context.session.compiles.enqueue(near, /*urgent=*/true);
    // Each kernel is tried with the grids that made the best candidates fast, and with the model's own choice.
    const std::vector<std::int64_t> grids = timed.best_grids(effort.grids_per_spec);
    for (std::size_t i = 0; i < near.size() && !context.stopped(until_s); ++i) {
      context.report("refine", kernel_name(near[i]), static_cast<int>(i), static_cast<int>(near.size()),
                     timed.best_us());
      const auto ready = measurer.compiled(near[i], model, until_s);
      if (!ready) continue;
      const auto ranked = context.ranked_grids(model, near[i], ready->resident);
      std::vector<RankedConfig> chosen =
          effort.every_grid ? within_reach(ranked, effort.reach) : trust.promising(spread(ranked, 1), timed.best_us());
      for (const RankedConfig& candidate : ranked) {
        if (std::find(grids.begin(), grids.end(), candidate.config.grid) != grids.end()) chosen.push_back(candidate);
      }
      if (auto done = measurer.try_configs(chosen, "refine", until_s, timed); !done)
        return tl::unexpected(done.error());
    }
    if (timed.best_us() == 0 || timed.best_us() > before_us * kWorthAnother) break;
  }
  return timed;
}

Result<TimedCandidates> try_segment_costs(const ShapeContext& context, Measurer& measurer, TimedCandidates timed,
                                          double until_s) {
  if (!context.step.ragged() || context.step.problem.features.batch_invariant) return timed;
  std::vector<RankedConfig> charged;
  for (const Candidate& candidate : best_few(context, timed)) {
    const int now = candidate.config.segment_cost;
    for (const int cost : {0, now / 2, now + 1, 2 * now}) {
      if (cost == now) continue;
      Config config = candidate.config;
      config.segment_cost = cost;
      charged.push_back({config, candidate.us});
    }
  }
  if (auto done = measurer.try_configs(charged, "refine", until_s, timed); !done) return tl::unexpected(done.error());
  return timed;
}

Result<TimedCandidates> try_l2_promotions(const ShapeContext& context, Measurer& measurer, TimedCandidates timed,
                                          double until_s) {
  std::vector<RankedConfig> promoted;
  for (const Candidate& candidate : best_few(context, timed)) {
    if (candidate.config.spec.load != LoadPath::tensor) continue;
    Config config = candidate.config;
    config.l2_promotion = config.l2_promotion == 128 ? 256 : 128;
    promoted.push_back({config, candidate.us});
  }
  if (auto done = measurer.try_configs(promoted, "refine", until_s, timed); !done) return tl::unexpected(done.error());
  return timed;
}

}  // namespace v1
}  // namespace leanattn
