#include "tuner/measure.hpp"

#include <algorithm>
#include <cmath>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kColdFactor = 3;  // bytes rotated through, over the L2
constexpr std::int64_t kMostCopies = 512;
constexpr double kMostLaunches = 2048;  // of one graph

}  // namespace

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

Result<std::vector<double>> GraphTimer::time(const TimedGraph& lead, std::span<const TimedGraph* const> graphs,
                                             const Stream& stream) {
  while (events_.size() < graphs.size() + 1) {
    Result<Event> event = Event::create();
    if (!event) return tl::unexpected(event.error());
    events_.push_back(std::move(*event));
  }
  if (auto ok = lead.replay(stream.get()); !ok) return tl::unexpected(ok.error());
  if (auto ok = events_[0].record(stream.get()); !ok) return tl::unexpected(ok.error());
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    if (auto ok = graphs[i]->replay(stream.get()); !ok) return tl::unexpected(ok.error());
    if (auto ok = events_[i + 1].record(stream.get()); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = stream.synchronize(); !ok) return tl::unexpected(ok.error());
  std::vector<double> us;
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    const Result<double> elapsed = elapsed_us(events_[i], events_[i + 1]);
    if (!elapsed) return tl::unexpected(elapsed.error());
    us.push_back(*elapsed / graphs[i]->launches());
  }
  return us;
}

KvFootprint kv_footprint(const DecodeProblem& problem, std::span<const int> context_lengths) {
  DecodeProblem whole = problem;
  whole.features.window = 0;
  const auto bytes = [](const DecodeProblem& of, std::int64_t length) {
    return kv_bytes(of, {.batch = 1, .max_batch = 0, .longest_context = length});
  };
  std::int64_t read = 0, longest = 0;
  for (const std::int64_t length : context_lengths) {
    if (length > 0) read += bytes(problem, length);
    longest = std::max(longest, length);
  }
  const auto requests = static_cast<std::int64_t>(context_lengths.size());
  return {.read = std::max<std::int64_t>(read, 1),
          .allocated = std::max<std::int64_t>(longest > 0 ? requests * bytes(whole, longest) : 0, 1)};
}

Rotation rotation_for(std::int64_t kv_bytes, std::int64_t l2_bytes, std::int64_t memory_bytes, double launch_us,
                      bool cold) {
  Rotation rotation;
  kv_bytes = std::max<std::int64_t>(kv_bytes, 1);
  if (cold) {
    const std::int64_t wanted = (kColdFactor * l2_bytes + kv_bytes - 1) / kv_bytes;
    const std::int64_t fitting = std::max<std::int64_t>(memory_bytes / kv_bytes, 1);
    rotation.copies = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, fitting), 1, kMostCopies));
  }
  // Two launches at least: the second one runs behind a kernel of its own kind, as in a model.
  const double wanted = std::clamp(kGraphMicroseconds / std::max(launch_us, 0.1), 2.0, kMostLaunches);
  const int turns = std::max(1, static_cast<int>(std::ceil(wanted / rotation.copies)));
  rotation.launches = turns * rotation.copies;
  return rotation;
}

}  // namespace v1
}  // namespace leanattn
