#include "tuner/report/recurrent_winners.hpp"

#include <algorithm>
#include <tuple>

#include "generator/recurrent/recurrent_json.hpp"
#include "runtime/recurrent/recurrent_choice.hpp"
#include "tuner/search/recurrent_tune.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

std::optional<ReportedRecurrent> reported_recurrent(const Winner& winner, std::span<const Trial* const> tried,
                                                    const DeviceFacts* facts) {
  const auto spec = recurrent_spec_from_json(winner.config);
  const auto batch = batch_from_json(winner.shape);
  const auto policy = parse_l2_policy(winner.policy);
  if (!spec || !batch || !policy || !(winner.median_us > 0)) return std::nullopt;
  ReportedRecurrent row{.spec = *spec,
                        .batch = *batch,
                        .policy = *policy,
                        .median_us = winner.median_us,
                        .low_us = winner.low_us,
                        .high_us = winner.high_us,
                        .gb_per_s = gb_per_s(state_traffic(spec->problem, *batch), winner.median_us),
                        .stale = winner.stale};
  const std::string rule = facts != nullptr ? to_json(default_spec(*facts, spec->problem, *batch)) : "";
  for (const Trial* trial : tried) {
    if (trial->uuid == winner.trial_uuid) row.samples = trial->samples, row.measured = trial->created;
    if (!same_software(trial->environment, winner.environment) || !(trial->median_us > 0)) continue;
    if (is_copy_config(trial->config)) row.copy_us = trial->median_us;
    if (trial->config == rule) row.rule_us = trial->median_us;
  }
  return row;
}

void sort_recurrent(std::vector<ReportedRecurrent>& winners) {
  const auto key = [](const ReportedRecurrent& row) {
    return std::tuple(to_json(row.spec.problem), row.policy, row.batch);
  };
  std::sort(winners.begin(), winners.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
