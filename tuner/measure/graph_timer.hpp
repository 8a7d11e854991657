// graph_timer.hpp -- GraphTimer: times replays of CUDA graphs, queued so that the GPU never waits for the host. One
// thread at a time, with the owning context current.
#pragma once

#include <span>
#include <vector>

#include "tuner/measure/timed_graph.hpp"

namespace leanattn {
inline namespace v1 {

/// Replays graphs back to back with an event between neighbours.
class GraphTimer {
 public:
  /// Microseconds a launch of each graph, in order. `lead` is replayed first and not timed: while it runs the host
  /// enqueues the rest, so that no gap is timed. Waits. Errors: launch_failed, context_lost.
  Result<std::vector<double>> time(const TimedGraph& lead, std::span<const TimedGraph* const> graphs,
                                   const Stream& stream);

 private:
  std::vector<Event> events_;
};

}  // namespace v1
}  // namespace leanattn
