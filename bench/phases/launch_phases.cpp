#include "bench/phases/launch_phases.hpp"

#include <string>
#include <vector>

#include "bench/phases/cta_moments.hpp"
#include "bench/phases/subject.hpp"
#include "bench/phases/summary_json.hpp"
#include "tuner/evaluate/bench.hpp"

namespace leanattn {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStampedLaunches = 64;  // over which moments are taken, at least

/// Device memory for LeanStamp[launches][grid][kMoments], zeroed.
Result<DeviceBuffer> stamp_buffer(const GpuBackend& backend, std::int64_t grid) {
  auto stamps = DeviceBuffer::allocate(backend.rotation().launches * grid * kMoments *
                                       static_cast<std::int64_t>(sizeof(LeanStamp)));
  if (!stamps) return stamps;
  if (auto ok = fill_bytes_async(stamps->data(), 0, stamps->bytes(), backend.stream().get()); !ok)
    return tl::unexpected(ok.error());
  return stamps;
}

/// Replays the graph of the stamped kernel and reads what it wrote.
Result<CtaMoments> read_moments(const GpuBackend& backend, const TimedGraph& graph, const DeviceBuffer& stamps) {
  std::vector<LeanStamp> host(static_cast<std::size_t>(stamps.bytes()) / sizeof(LeanStamp));
  CtaMoments moments;
  for (int seen = 0; seen < kStampedLaunches; seen += graph.launches()) {
    // The stamps are those of the second replay, whose first launch follows another one, as all the others do.
    for (int replay = 0; replay < 2; ++replay) {
      if (auto ok = graph.replay(backend.stream().get()); !ok) return tl::unexpected(ok.error());
    }
    if (auto ok = copy_to_host(host.data(), stamps.data(), stamps.bytes(), backend.stream()); !ok)
      return tl::unexpected(ok.error());
    moments.add(host, static_cast<std::size_t>(graph.launches()));
  }
  return moments;
}

}  // namespace

Result<Json> launch_phases(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                           const LayeredWinners& winners, CubinCache* cubins) {
  const Choice choice = look_up({device, problem, shape}, L2Policy::cold, winners);
  const Config& config = choice.config;
  const auto emitted = emit(config.spec);
  if (!emitted) return tl::unexpected(emitted.error());
  const auto made = GpuBackend::create(device, problem, L2Policy::cold, cubins);
  if (!made) return tl::unexpected(made.error());
  GpuBackend& backend = **made;
  if (const auto begun = backend.begin_shape(shape); !begun) return tl::unexpected(begun.error());

  auto whole = Subject::make(backend, config, emitted, cubins);
  if (!whole) return tl::unexpected(whole.error());
  if (auto ok = whole->require_correct(); !ok) return tl::unexpected(ok.error());
  const auto stopped = Subject::make(backend, config, emit(config.spec, KernelVariant::unmerged), cubins);
  if (!stopped) return tl::unexpected(stopped.error());
  const auto stamped = Subject::make(backend, config, emit(config.spec, KernelVariant::stamped), cubins);
  if (!stamped) return tl::unexpected(stamped.error());

  const auto stamps = stamp_buffer(backend, config.grid);
  if (!stamps) return tl::unexpected(stamps.error());
  const auto of_whole = whole->graph(), of_stopped = stopped->graph();
  const auto of_stamped = stamped->graph([&](int launch, LeanDecodeArgs& args) {
    args.lse = static_cast<float*>(stamps->at(launch * config.grid * kMoments * static_cast<int>(sizeof(LeanStamp))));
  });
  for (const auto* graph : {&of_whole, &of_stopped, &of_stamped}) {
    if (!*graph) return tl::unexpected(graph->error());
  }
  const auto samples = race(backend, {&*of_whole, &*of_stopped, &*of_stamped});
  if (!samples) return tl::unexpected(samples.error());
  const auto moments = read_moments(backend, *of_stamped, *stamps);
  if (!moments) return tl::unexpected(moments.error());

  Json json{{"problem", Json::parse(to_json(problem))},
            {"shape", Json::parse(to_json(shape))},
            {"kv_bytes", backend.decode_case().kv_bytes()},
            {"kernel", kernel_name(config.spec)},
            {"config", Json::parse(to_json(config))},
            {"provenance", to_string(choice.provenance)},
            {"copies", backend.rotation().copies},
            {"read_variant", backend.read_variant().name},
            {"read_limit_us", median(samples->read_us)},
            {"us", summary_json(samples->us[0])},
            {"stopped_us", summary_json(samples->us[1])},
            {"stamped_us", summary_json(samples->us[2])},
            {"samples_us", samples->us},
            {"noise", samples->noise},
            {"moments", moments->json()}};
  if (const auto spread = moments->gathered_spread())
    json["gathered_spread_ns"] = {{"always", spread->always_ns}, {"now", spread->now_ns}};
  return json;
}

}  // namespace leanattn
