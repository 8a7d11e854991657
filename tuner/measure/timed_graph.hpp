// timed_graph.hpp -- TimedGraph: a CUDA graph of launches, one node each, as an application replays them. One thread at
// a time, with the owning context current.
#pragma once

#include <functional>

#include "runtime/cuda/gpu.hpp"

namespace leanattn {
inline namespace v1 {

/// A graph of `launches` launches, one after the other.
class TimedGraph {
 public:
  /// enqueue(i, stream) enqueues launch i. The graph is replayed once without being timed, because its first replay
  /// uploads it. Errors: enqueue's, launch_failed, context_lost.
  static Result<TimedGraph> make(int launches, const Stream& stream,
                                 const std::function<Result<void>(int launch, CUstream_st* stream)>& enqueue);

  int launches() const { return launches_; }
  Result<void> replay(CUstream_st* stream) const { return graph_.launch(stream); }

 private:
  TimedGraph(Graph graph, int launches) : graph_(std::move(graph)), launches_(launches) {}
  Graph graph_;
  int launches_;
};

}  // namespace v1
}  // namespace leanattn
