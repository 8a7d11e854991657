// time_parts.cpp -- evaluates the terms of the cost model one by one.
#include "tuner/report/time_parts.hpp"

#include <algorithm>
#include <array>

#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/grids.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr double kAtTheLimit = 0.95;  // the share of the read limit from which a winner counts as being at the limit

double kib_in_flight(const Config& config, int sms, int resident) {
  const KernelSpec& spec = config.spec;
  const double ctas = std::min<double>(resident, std::max<double>(1, static_cast<double>(config.grid) / sms));
  const KernelLayout layout = layout_of(spec);
  const double ring = layout.producer_warps > 0 ? spec.stages : spec.warps * spec.stages;
  return ctas * ring * layout.step_tokens * cache_token_bytes(spec) / 1024;
}

/// The LeanTiles of an average SM over those of the busiest SM, if CTAs go to the SMs in turn.
double balance(std::int64_t tiles, std::int64_t grid, int sms) {
  const double busiest_cta = static_cast<double>(divide_up(tiles, grid));
  const double busiest = std::min(static_cast<double>(divide_up(grid, sms)) * busiest_cta, static_cast<double>(tiles));
  return static_cast<double>(tiles) / sms / busiest;
}

}  // namespace

Result<DeviceFacts> facts_of(const DeviceModel& model) {
  const Result<Arch> arch = parse_arch(model.arch);
  if (!arch) return tl::unexpected(arch.error());
  if (model.sm_count < 1) return fail(ErrorCode::invalid_argument, "the database has a GPU without SMs");
  Result<DeviceFacts> facts = facts_for_arch(*arch, model.sm_count);
  if (!facts) return facts;
  facts->name = model.name, facts->l2_bytes = model.l2_bytes, facts->memory_bytes = model.memory_bytes;
  return facts;
}

int resident_ctas(const DeviceFacts& device, const KernelSpec& spec, int registers) {
  if (registers <= 0) return guess_resident(device, spec);
  return std::max(resident_ctas_per_sm(device, registers, layout_of(spec).threads, layout_of(spec).shared_bytes), 1);
}

TimeParts time_parts(const ModelParameters& parameters, const DeviceFacts& device, const ReportedWinner& winner,
                     int resident) {
  const DecodeStep step(device, winner.problem, winner.shape);
  const ModelledTime modelled = modelled_time(parameters, step, winner.config, resident);
  TimeParts parts;
  parts.start_us = modelled.start;
  parts.stream_us = modelled.stream;
  parts.segments_us = modelled.segments;
  parts.fix_up_us = modelled.merge;
  parts.unexplained_us = winner.median_us - modelled.us();

  const std::int64_t outputs = output_tiles(step, winner.config.spec);
  const std::int64_t tiles = std::max<std::int64_t>(lean_tiles(step, winner.config.spec), 1);
  const std::int64_t grid = std::clamp<std::int64_t>(winner.config.grid, 1, tiles);
  parts.busy_sms = static_cast<int>(std::min<std::int64_t>(grid, device.sm_count));
  parts.contributors = static_cast<double>(grid) / static_cast<double>(std::max<std::int64_t>(outputs, 1));
  parts.balance = balance(tiles, grid, device.sm_count);
  parts.kib_in_flight = kib_in_flight(winner.config, device.sm_count, resident);

  // The largest part, not counting the bytes that every kernel must read, is what keeps the winner from the limit.
  const double least_stream = static_cast<double>(winner.kv_bytes) / parameters.memory_rate;
  const std::array<std::pair<double, const char*>, 5> losses = {{{parts.start_us, "start-up"},
                                                                 {parts.stream_us - least_stream, "stream"},
                                                                 {parts.segments_us, "segments"},
                                                                 {parts.fix_up_us, "fix-up"},
                                                                 {parts.unexplained_us, "unexplained"}}};
  const auto largest =
      std::max_element(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  parts.limited_by = winner.read_limit_share >= kAtTheLimit ? "read limit" : largest->second;
  return parts;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
