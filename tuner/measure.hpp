// measure.hpp -- timing as a kernel will be used: replays of CUDA graphs, one node a launch, queued so that the GPU
// never waits for the host. One thread at a time, with the owning context current.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/gpu.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// A graph of `launches` launches, one after the other.
class TimedGraph {
 public:
  /// enqueue(i, stream) enqueues launch i. The graph is replayed once, untimed: its first replay uploads it. Errors:
  /// enqueue's, launch_failed, context_lost.
  static Result<TimedGraph> make(int launches, const Stream& stream,
                                 const std::function<Result<void>(int launch, CUstream_st* stream)>& enqueue);

  int launches() const { return launches_; }
  Result<void> replay(CUstream_st* stream) const { return graph_.launch(stream); }

 private:
  TimedGraph(Graph graph, int launches) : graph_(std::move(graph)), launches_(launches) {}
  Graph graph_;
  int launches_;
};

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

/// Bytes of K and V of requests of these lengths: what one launch reads (a window leaves the rest alone), and what one
/// copy of them takes, every request having room for the longest. Both at least 1.
struct KvFootprint {
  std::int64_t read = 1, allocated = 1;
};
KvFootprint kv_footprint(const DecodeProblem& problem, std::span<const int> context_lengths);

/// How KV is rotated so that L2 is cold: copies of it laid one after the other, and launches a graph has (a multiple of
/// the copies).
struct Rotation {
  int copies = 1;
  int launches = 1;
};

/// copies x kv_bytes, those that a launch reads, is at least three times the L2: twice would do if it evicted the
/// oldest line, which GPUs do not promise. At most memory_bytes in all. A graph lasts about kGraphMicroseconds, at
/// launch_us (an estimate) a launch. warm: one copy.
Rotation rotation_for(std::int64_t kv_bytes, std::int64_t l2_bytes, std::int64_t memory_bytes, double launch_us,
                      bool cold);

inline constexpr double kGraphMicroseconds = 300;

}  // namespace v1
}  // namespace leanattn
