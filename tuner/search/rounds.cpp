#include "tuner/search/rounds.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {
namespace {

/// False when there were none to drop.
bool drop_condemned(Measurer& measurer, std::span<const Candidate> candidates, Race& race) {
  bool any = false;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!race.is_alive(i) || !measurer.record_condemned(candidates[i])) continue;
    race.drop(i);
    any = true;
  }
  return any;
}

}  // namespace

Result<bool> run_rounds(const ShapeContext& context, Measurer& measurer, std::span<const Candidate> candidates,
                        const RoundPlan& plan, Race& race) {
  const int enough = race.rounds() + plan.rounds;
  while (race.rounds() < enough) {
    if (!plan.to_the_end && context.stopped(plan.until_s)) return false;
    const std::vector<std::size_t> order = race.order();
    std::vector<Config> configs;
    configs.reserve(order.size());
    for (const std::size_t i : order) configs.push_back(candidates[i].config);
    context.report(plan.phase, fmt::format("{} candidates", order.size()), race.rounds(), enough, plan.best_us);
    const Result<RoundTimes> times = measurer.time(configs);
    if (times) {
      race.add(order, *times);
      continue;
    }
    if (times.error().code == ErrorCode::interrupted) return false;
    if (times.error().code != ErrorCode::launch_failed || !drop_condemned(measurer, candidates, race))
      return tl::unexpected(times.error());
    if (race.alive() == 0) return false;
  }
  return true;
}

}  // namespace v1
}  // namespace leanattn
