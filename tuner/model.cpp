#include "tuner/model.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kBytesPerElement = 2;  // bf16 and fp16
constexpr double kTreeWidth = 16;       // templates/fixup_ticket.cuh

double divide_up(double a, double b) { return std::ceil(a / b); }

}  // namespace

ModelParameters default_parameters(const DeviceFacts& device) {
  ModelParameters parameters;
  const double per_sm = memory_rate_per_sm(device);
  parameters.memory_rate = per_sm * std::max(device.sm_count, 1);
  // One SM alone pulls more than its share, but not much more once all of them pull.
  parameters.sm_rate = 1.15 * per_sm;
  return parameters;
}

ModelFeatures model_features(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                             const Shape& shape, const Config& config, int resident) {
  const KernelSpec& spec = config.spec;
  const double sms = std::max(device.sm_count, 1);
  const double outputs = static_cast<double>(output_tiles(problem, shape, spec));
  const double tiles = static_cast<double>(std::max<std::int64_t>(lean_tiles(problem, shape, spec), 1));
  const double grid = std::min(static_cast<double>(std::max<std::int64_t>(config.grid, 1)), tiles);
  const double held = std::max(resident, 1);

  const double token_bytes = 2 * kBytesPerElement * spec.head_dim;  // K and V of one KV head
  const double tiles_per_cta = divide_up(tiles, grid);
  const double tokens_per_output = static_cast<double>(total_tokens(shape)) / std::max(shape.batch, 1);
  const double tiles_per_output = std::max(tiles / outputs, 1.0);

  // CTAs that share the busiest SM, in how many waves they come, and how many bytes they keep in flight meanwhile.
  const double ctas_on_sm = divide_up(grid, sms);
  const double at_once = std::min(ctas_on_sm, held);
  // A warp without a step of its own keeps nothing in flight: short segments leave warps idle, except where a producer
  // warp runs ahead into the next segment.
  const bool tensor = spec.load == LoadPath::tensor;
  const double cta_tokens = tiles_per_cta * spec.tile;
  const double segment_tokens = tensor ? cta_tokens : std::min(cta_tokens, std::max(tokens_per_output, 1.0));
  const double steps = divide_up(segment_tokens, step_tokens(spec));
  const double ring = tensor ? spec.stages
                             : spec.warps * (loads_to_registers(spec.load) ? 1.5  // K of one step, asking for the next
                                                                           : spec.stages);
  const double in_flight = at_once * std::min(ring, steps) * step_tokens(spec) * token_bytes;
  const double sm_rate = std::min(parameters.sm_rate, in_flight / parameters.latency);

  // The last tile of an output tile may be partly empty, and a step of all warps may be: neither reads bytes.
  const double bytes = static_cast<double>(kv_bytes(problem, shape)) * row_blocks(spec);
  const double bytes_on_sm = bytes * std::min(ctas_on_sm * tiles_per_cta / tiles, 1.0);

  ModelFeatures features;
  features.stream = std::max(bytes_on_sm / sm_rate, bytes / parameters.memory_rate);
  // Waves beyond the first start cold, like a new segment.
  const double waves = divide_up(ctas_on_sm, held);
  const bool aligned = std::fmod(grid, outputs) == 0 || std::fmod(outputs, grid) == 0;
  features.segments =
      (aligned ? std::max(outputs / grid, 1.0) : divide_up(tiles_per_cta, tiles_per_output) + 1) * waves - 1;
  const double contributors = aligned ? std::max(grid / outputs, 1.0) : tiles_per_output / tiles_per_cta + 1;
  if (contributors > 1) {
    features.shared = 1;
    const bool two_levels = spec.fixup == FixUp::ticket && contributors > kTreeWidth;
    features.tree = two_levels ? 1 : 0;
    features.partials = two_levels ? kTreeWidth + divide_up(contributors, kTreeWidth) : contributors;
  }
  return features;
}

double predict_us(const ModelParameters& p, const ModelFeatures& f) {
  return p.start + p.stretch * f.stream + p.segment * f.segments + p.fix_up * f.shared + p.partial * f.partials +
         p.tree_level * f.tree;
}

double predict_us(const ModelParameters& parameters, const DeviceFacts& device, const DecodeProblem& problem,
                  const Shape& shape, const Config& config, int resident) {
  return predict_us(parameters, model_features(parameters, device, problem, shape, config, resident));
}

}  // namespace v1
}  // namespace leanattn
