#include "tuner/measure/rotation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kLeastFactor = 2;  // below this, copies are still in L2 when their turn comes again
constexpr int kMostLaunches = 2048;       // of one graph, and so of copies

}  // namespace

KvFootprint kv_footprint(const DecodeProblem& problem, std::span<const int> context_lengths) {
  DecodeProblem whole = problem;
  whole.features.window = 0;
  whole.features.selection_block = 0, whole.features.selection_in_pool = false;
  const int longest = context_lengths.empty() ? 0 : *std::max_element(context_lengths.begin(), context_lengths.end());
  // In 64 bits, because the contexts are longer than what is selected of them.
  const int spread = has_selection(problem.features) ? kMeasuredSpread : 1;
  const std::vector<int> capacities(
      context_lengths.size(),
      static_cast<int>(std::min<std::int64_t>(std::int64_t{longest} * spread, std::numeric_limits<int>::max())));
  return {.read = std::max<std::int64_t>(kv_bytes(problem, RequestLengths{.context_lengths = context_lengths}), 1),
          .allocated = std::max<std::int64_t>(kv_bytes(whole, RequestLengths{.context_lengths = capacities}), 1)};
}

Rotation rotation_for(std::int64_t kv_bytes, std::int64_t l2_bytes, std::int64_t memory_bytes, double launch_us,
                      bool cold, std::int64_t cold_factor) {
  Rotation rotation;
  kv_bytes = std::max<std::int64_t>(kv_bytes, 1);
  if (cold) {
    const std::int64_t wanted = (cold_factor * l2_bytes + kv_bytes - 1) / kv_bytes;
    const std::int64_t fitting = std::max<std::int64_t>(memory_bytes / kv_bytes, 1);
    rotation.copies = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, fitting), 1, kMostLaunches));
    rotation.stays_in_l2 = rotation.copies * kv_bytes < kLeastFactor * l2_bytes;
  }
  // There are two launches at least: the second one runs behind a kernel of its own kind, as in a model.
  const double wanted = std::clamp(kGraphMicroseconds / std::max(launch_us, 0.1), 2.0, double{kMostLaunches});
  const int turns = std::max(1, static_cast<int>(std::ceil(wanted / rotation.copies)));
  rotation.launches = turns * rotation.copies;
  return rotation;
}

}  // namespace v1
}  // namespace leanattn
