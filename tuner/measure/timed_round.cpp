#include "tuner/measure/timed_round.hpp"

#include <cmath>
#include <vector>

#include "runtime/cuda/nvml.hpp"

namespace leanattn {
inline namespace v1 {

Result<RoundTimes> time_round(GraphTimer& timer, const TimedGraph& sentinel, std::span<const TimedGraph* const> graphs,
                              const Stream& stream, const std::string& uuid) {
  std::vector<const TimedGraph*> queue{&sentinel};
  queue.insert(queue.end(), graphs.begin(), graphs.end());
  queue.push_back(&sentinel);
  const Result<std::vector<double>> us = timer.time(sentinel, queue, stream);
  if (!us) return tl::unexpected(us.error());
  RoundTimes times;
  times.us.assign(us->begin() + 1, us->end() - 1);
  times.sentinel_us = (us->front() + us->back()) / 2;
  times.sentinel_drift = std::abs(us->back() / us->front() - 1);
  const GpuState state = gpu_state(uuid);
  times.sm_clock_mhz = state.sm_clock_mhz;
  times.throttle = throttle_text(state.throttle_reasons);
  return times;
}

}  // namespace v1
}  // namespace leanattn
