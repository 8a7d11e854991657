#include "runtime/recurrent/recurrent_choice.hpp"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "generator/integers.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Bytes of the state that a warp of 32 lanes keeps best: enough to hide its latency, and registers for several CTAs.
constexpr int kBytesOfLane = 64, kUsualWarps = 4;
/// Few lanes make short sums, but each needs more registers for q and k, and works out the gates of more channels.
int usual_row_lanes(const RecurrentProblem& problem) {
  return update_of(problem.kind).decay == Decay::channel && problem.gates != Gates::given ? 32 : 16;
}

/// Bytes of the state that a lane keeps.
int lane_bytes(const RecurrentProblem& problem, const RecurrentTunables& tunables) {
  return tunables.warp_rows * problem.key_dim * bytes_of(problem.state) / 32;
}

/// A winner of a batch that is so many times larger or smaller still says something.
constexpr double kFarthest = 2;

}  // namespace

std::vector<RecurrentTunables> ranked_tunables(const DeviceFacts& device, const RecurrentProblem& problem, int batch,
                                               const RecurrentTunables* like) {
  const std::int64_t sms = std::max(device.sm_count, 1), heads = std::int64_t{std::max(batch, 1)} * problem.v_heads;
  const int bytes = like != nullptr ? lane_bytes(problem, *like) : kBytesOfLane,
            lanes = like != nullptr ? like->row_lanes : usual_row_lanes(problem),
            warps = like != nullptr ? like->warps : kUsualWarps;
  const auto cost = [&](const RecurrentTunables& tunables) {
    // CTAs of the SM that has most of them, over the mean. Less than a tenth is lost among CTAs that start in turn.
    const std::int64_t ctas = heads * (problem.value_dim / rows_of_cta(tunables));
    const std::int64_t uneven = 10 * (divide_up(ctas, sms) * sms - ctas) / ctas;
    return std::tuple(uneven, std::abs(lane_bytes(problem, tunables) - bytes), std::abs(tunables.row_lanes - lanes),
                      std::abs(tunables.warps - warps));
  };
  std::vector<RecurrentTunables> ranked = recurrent_search_space(device.arch, problem);
  std::stable_sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
  return ranked;
}

RecurrentSpec default_spec(const DeviceFacts& device, const RecurrentProblem& problem, int batch,
                           const RecurrentTunables* like) {
  const std::vector<RecurrentTunables> ranked = ranked_tunables(device, problem, batch, like);
  return {.arch = device.arch, .problem = problem, .tunables = ranked.empty() ? RecurrentTunables{} : ranked.front()};
}

std::vector<RecurrentChoice> recurrent_launch_order(const DeviceFacts& device, const RecurrentProblem& problem,
                                                    int batch, std::span<const RecurrentWinner> winners) {
  const auto away = [&](const RecurrentWinner& winner) {
    return static_cast<double>(std::max(batch, winner.batch)) / std::min(batch, winner.batch);
  };
  const auto key = [&](const RecurrentWinner& winner) {
    return std::tuple(away(winner), -winner.batch, winner.policy != L2Policy::cold);
  };
  std::vector<RecurrentChoice> order;
  const auto add = [&](RecurrentChoice choice) {
    const auto same = [&](const RecurrentChoice& before) { return before.spec == choice.spec; };
    if (std::none_of(order.begin(), order.end(), same)) order.push_back(std::move(choice));
  };
  const auto nearest =
      std::min_element(winners.begin(), winners.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  if (nearest != winners.end() && nearest->batch == batch) {
    add({nearest->spec, Provenance::exact, *nearest});
    if (nearest->next) add({*nearest->next, Provenance::nearest, *nearest});
  } else if (nearest != winners.end() && away(*nearest) <= kFarthest) {
    add({default_spec(device, problem, batch, &nearest->spec.tunables), Provenance::nearest, *nearest});
  }
  add({.spec = default_spec(device, problem, batch)});
  return order;
}

}  // namespace v1
}  // namespace leanattn
