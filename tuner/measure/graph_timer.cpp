#include "tuner/measure/graph_timer.hpp"

namespace leanattn {
inline namespace v1 {

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

}  // namespace v1
}  // namespace leanattn
