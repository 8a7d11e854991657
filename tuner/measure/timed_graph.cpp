#include "tuner/measure/timed_graph.hpp"

namespace leanattn {
inline namespace v1 {

Result<TimedGraph> TimedGraph::make(int launches, const Stream& stream,
                                    const std::function<Result<void>(int launch, CUstream_st* stream)>& enqueue) {
  Result<Graph> graph = Graph::capture(stream, [&](CUstream_st* capturing) -> Result<void> {
    for (int i = 0; i < launches; ++i) {
      if (auto ok = enqueue(i, capturing); !ok) return ok;
    }
    return {};
  });
  if (!graph) return tl::unexpected(graph.error());
  if (auto ok = graph->launch(stream.get()); !ok) return tl::unexpected(ok.error());
  return TimedGraph(std::move(*graph), launches);
}

}  // namespace v1
}  // namespace leanattn
