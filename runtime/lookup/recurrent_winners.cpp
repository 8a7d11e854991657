#include "runtime/lookup/recurrent_winners.hpp"

#include "generator/recurrent/recurrent_json.hpp"

namespace leanattn {
inline namespace v1 {

std::vector<RecurrentWinner> recurrent_winners(const DeviceFacts& device, const RecurrentProblem& problem,
                                               std::span<const LayeredWinners::Entry> rows, std::size_t& skipped) {
  const auto spec_of = [&](const std::string& text) -> std::optional<RecurrentSpec> {
    const auto spec = recurrent_spec_from_json(text);
    const bool belongs = spec && spec->problem == problem && spec->arch == device.arch;
    return belongs ? std::optional(*spec) : std::nullopt;
  };
  std::vector<RecurrentWinner> winners;
  for (const LayeredWinners::Entry& row : rows) {
    const auto spec = spec_of(row.winner.config);
    const auto batch = batch_from_json(row.winner.shape);
    const auto policy = parse_l2_policy(row.winner.policy);
    if (!spec || !batch || !policy) {
      ++skipped;
      continue;
    }
    if (row.winner.kernel_revision != kernel_revision(*spec)) continue;
    winners.push_back({.spec = *spec,
                       .next = spec_of(row.winner.next_config),
                       .batch = *batch,
                       .policy = *policy,
                       .us = row.winner.median_us,
                       .layer = row.layer,
                       .stale = row.winner.stale});
  }
  return winners;
}

}  // namespace v1
}  // namespace leanattn
