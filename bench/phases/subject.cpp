#include "bench/phases/subject.hpp"

#include "tuner/measure/race.hpp"

namespace leanattn {
namespace {

constexpr int kRounds = 41;
constexpr int kMostRounds = 4 * kRounds;  // with those that do not count

}  // namespace

Result<Subject> Subject::make(GpuBackend& backend, const Config& config, const Result<EmittedKernel>& emitted,
                              CubinCache* cubins) {
  if (!emitted) return tl::unexpected(emitted.error());
  auto kernel = LoadedKernel::prepare(*emitted, cubins);
  if (!kernel) return tl::unexpected(kernel.error());
  Subject subject(backend, config, std::move(*kernel));
  const auto bound = backend.decode_case().bind(config.spec, config, *subject.workspace_, backend.stream().get());
  if (!bound) return tl::unexpected(bound.error());
  return subject;
}

Result<void> Subject::require_correct() {
  const auto report = backend_->decode_case().check(kernel_, config_, *workspace_, backend_->stream().get(), 2);
  if (!report) return tl::unexpected(report.error());
  if (report->passed()) return {};
  return fail(ErrorCode::wrong_result, kernel_name(config_.spec) + ": " + report->first_failure);
}

Result<TimedGraph> Subject::graph(const std::function<void(int launch, LeanDecodeArgs& args)>& adjust) const {
  return backend_->graph(kernel_, config_, workspace_->buffer().data(), adjust);
}

Result<Samples> race(GpuBackend& backend, const std::vector<const TimedGraph*>& graphs) {
  Race race(graphs.size());
  Samples samples;
  for (int round = 0; round < kMostRounds && race.rounds() < kRounds; ++round) {
    const std::vector<std::size_t> order = race.order();
    std::vector<const TimedGraph*> queue;
    for (const std::size_t i : order) queue.push_back(graphs[i]);
    const Result<RoundTimes> times = backend.time_graphs(queue);
    if (!times) return tl::unexpected(times.error());
    if (race.add(order, *times)) samples.read_us.push_back(times->sentinel_us);
  }
  if (race.rounds() == 0) return fail(ErrorCode::internal, "no round was quiet enough to count");
  for (std::size_t i = 0; i < graphs.size(); ++i)
    samples.us.emplace_back(race.samples(i).begin(), race.samples(i).end());
  samples.noise = race.noise();
  return samples;
}

}  // namespace leanattn
