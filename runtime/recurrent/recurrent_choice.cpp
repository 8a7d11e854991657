#include "runtime/recurrent/recurrent_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "generator/integers.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Bytes of the state that a warp of 32 lanes keeps best: enough to hide its latency, and registers for several CTAs.
constexpr int kBytesOfLane = 128, kUsualWarps = 4;
/// Few lanes make short sums, but each works out the gates of more channels.
int usual_row_lanes(const RecurrentProblem& problem) {
  return update_of(problem.kind).decay == Decay::channel && problem.gates != Gates::given ? 16 : 8;
}

}  // namespace

std::vector<RecurrentTunables> ranked_tunables(const DeviceFacts& device, const RecurrentProblem& problem, int batch) {
  const std::int64_t sms = std::max(device.sm_count, 1), heads = std::int64_t{std::max(batch, 1)} * problem.v_heads;
  const auto cost = [&](const RecurrentTunables& tunables) {
    // CTAs of the SM that has most of them, over the mean. Less than a tenth is lost among CTAs that start in turn.
    const std::int64_t ctas = heads * (problem.value_dim / rows_of_cta(tunables));
    const std::int64_t uneven = 10 * (divide_up(ctas, sms) * sms - ctas) / ctas;
    const int lane_bytes = tunables.warp_rows * problem.key_dim * bytes_of(problem.state) / 32;
    return std::tuple(uneven, std::abs(lane_bytes - kBytesOfLane),
                      std::abs(tunables.row_lanes - usual_row_lanes(problem)), std::abs(tunables.warps - kUsualWarps));
  };
  std::vector<RecurrentTunables> ranked = recurrent_search_space(device.arch, problem);
  std::stable_sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
  return ranked;
}

RecurrentSpec default_spec(const DeviceFacts& device, const RecurrentProblem& problem, int batch) {
  const std::vector<RecurrentTunables> ranked = ranked_tunables(device, problem, batch);
  return {.arch = device.arch, .problem = problem, .tunables = ranked.empty() ? RecurrentTunables{} : ranked.front()};
}

}  // namespace v1
}  // namespace leanattn
