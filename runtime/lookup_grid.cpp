// lookup_grid.cpp -- arithmetic of grids: counts of tiles, useful grids, the safe default, what carries over.
#include "runtime/lookup_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/kernel.hpp"
#include "runtime/lookup.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Measured on an H200 by the cost that balances 64 requests of 128 to 32768 tokens best.
constexpr double kSegmentUs = 3.6, kTensorSegmentUs = 1.8;

// Every LeanTile of a batch-invariant kernel is a segment and a partial: long ones keep those few, short ones keep the
// SMs busy at small batches.
constexpr int kInvariantTile = 2048;

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return value / by + (value % by != 0); }

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// Pieces that a lane reads of a row, templates/attend_vector.cuh. Rows in one piece stream at the memory's rate; those
/// of 96 dims come in three, and took 1.3 to 1.4 times the read limit where rows of 64 and 128 take 1.01 to 1.05.
int vector_lane_chunks(int head_dim) {
  const int lanes = head_dim % 256 == 0 ? 32 : head_dim % 128 == 0 ? 16 : head_dim % 64 == 0 ? 8 : 4;
  return head_dim / 8 / lanes;
}

/// More CTAs than LeanTiles only adds CTAs that return at once.
std::int64_t largest_grid(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                          const KernelSpec& spec) {
  const std::int64_t most = std::min(lean_tiles(problem, shape, spec), kMostCtas);
  // CTAs that wait for each other must all be resident.
  return spec.fixup == FixUp::wait ? std::min(most, detail::resident_grid(device, spec)) : most;
}

/// Every output tile gets the same number of CTAs where that leaves few SMs idle, else all of `slots`.
std::int64_t even_grid(std::int64_t slots, std::int64_t outputs) {
  constexpr double kWorthwhileShare = 0.85;
  if (outputs > slots) return slots;
  const std::int64_t even = slots / outputs * outputs;
  return static_cast<double>(even) >= kWorthwhileShare * static_cast<double>(slots) ? even : slots;
}

/// Equal but for programmatic dependent launch, which changes when a kernel starts and not what its grid does.
bool same_but_for_pdl(KernelSpec a, const KernelSpec& b) {
  a.pdl = b.pdl;
  return a == b;
}

/// The deepest ring of this family that fits, in a kernel that always ends: tickets never wait for a CTA that has not
/// started. nullopt where the family has no kernel for what `base` asks.
std::optional<KernelSpec> safe_spec(const KernelSpec& base, LoadPath load) {
  // Sixteen tokens a warp leave the accumulators room, and two CTAs an SM hide each other's fix-ups. Where query rows
  // lead, two warpgroups compute while the other one waits.
  struct Depth {
    int warps, ctas_per_sm, stages;
  };
  constexpr Depth kDepths[] = {{8, 1, 4}, {8, 1, 3}, {8, 1, 2}, {4, 2, 3}, {4, 2, 2}, {4, 1, 3},
                               {4, 1, 2}, {4, 1, 1}, {2, 1, 2}, {2, 1, 1}, {1, 1, 1}};
  KernelSpec spec = base;
  spec.load = load;
  spec.fixup = FixUp::ticket;
  spec.warp_tokens = 16;
  for (const Depth& depth : kDepths) {
    spec.warps = depth.warps;
    if (depth.warps == 8 && !query_rows_lead(spec)) continue;
    // One producer warp serves a warpgroup, and with one stage it would only wait for it.
    if (load == LoadPath::tensor && (depth.warps < 4 || depth.stages < 2)) continue;
    spec.ctas_per_sm = depth.ctas_per_sm;
    spec.stages = depth.stages;
    for (const int tile : {64, 32, 16}) {
      spec.tile = base.features.batch_invariant ? kInvariantTile : tile;
      if (validate(spec)) return spec;
    }
  }
  return std::nullopt;
}

std::int64_t nearest_of(const std::vector<std::int64_t>& grids, double wanted) {
  const auto distance = [&](std::int64_t grid) { return std::abs(std::log(static_cast<double>(grid) / wanted)); };
  return *std::min_element(grids.begin(), grids.end(),
                           [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
}

}  // namespace

bool is_ragged(const Shape& shape) {
  const double average = static_cast<double>(total_tokens(shape)) / shape.batch;
  return std::log2(static_cast<double>(shape.longest_context) / average) > detail::kRaggedOctaves;
}

std::int64_t output_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec) {
  return saturating_product(saturating_product(shape.batch, problem.kv_heads), row_blocks(spec));
}

std::int64_t lean_tiles(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec) {
  // Lengths are rounded up to whole tiles request by request; a ragged batch is counted as its average.
  const std::int64_t average = divide_up(visible_tokens(problem, shape), shape.batch);
  return saturating_product(output_tiles(problem, shape, spec),
                            std::max<std::int64_t>(1, divide_up(average, spec.tile)));
}

KernelSpec base_spec(Arch arch, const DecodeProblem& problem) {
  KernelSpec spec;
  spec.arch = arch;
  spec.head_dim = problem.head_dim;
  spec.group = problem.q_heads / problem.kv_heads;
  spec.dtype = problem.dtype;
  spec.layout = problem.layout;
  spec.lse = problem.lse;
  spec.pdl = problem.pdl && has_dependent_launch(arch);
  spec.features = canonical(problem).features;
  return spec;
}

bool has_dependent_launch(Arch arch) { return arch.major >= 9; }

std::vector<Config> default_configs(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape) {
  // The tensor family reads a cache once where mma's registers would need a second pass for the rows of a large group,
  // and streams fastest. Bulk copies need no address registers per thread: with many query rows those decide whether
  // the kernel spills. With few, cp_async copies the short rows of a strided cache better. Not every family has every
  // feature; cp_async has.
  constexpr int kManyRows = 16;
  const KernelSpec base = base_spec(device.arch, problem);
  const bool many_rows = rows_per_block(base) > kManyRows;
  std::vector<Config> configs;
  for (const LoadPath load : {LoadPath::tensor, many_rows ? LoadPath::bulk : LoadPath::cp_async,
                              many_rows ? LoadPath::cp_async : LoadPath::bulk}) {
    const auto spec = safe_spec(base, load);
    if (!spec) continue;
    const std::int64_t outputs = output_tiles(problem, shape, *spec);
    const std::int64_t most = std::min(lean_tiles(problem, shape, *spec), kMostCtas);
    const std::int64_t slots = std::min(most, detail::resident_grid(device, *spec));
    configs.push_back({*spec, even_grid(slots, std::min(outputs, kMostCtas)),
                       is_ragged(visible_shape(problem, shape)) ? detail::segment_cost(device, *spec) : 0});
  }
  // Reached by invalid problems only: what is asked of the kernel then says what is wrong.
  if (configs.empty()) configs.push_back({base, 1, 0});
  return configs;
}

Config default_config(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape) {
  return default_configs(device, problem, shape).front();
}

std::vector<std::int64_t> useful_grids(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                                       const KernelSpec& spec, int resident_ctas_per_sm) {
  const std::int64_t sms = std::max(1, device.sm_count);
  const std::int64_t resident = sms * std::max(1, resident_ctas_per_sm);
  const std::int64_t outputs = output_tiles(problem, shape, spec);
  const std::int64_t most = spec.fixup == FixUp::wait ? std::min(lean_tiles(problem, shape, spec), resident)
                                                      : std::min(lean_tiles(problem, shape, spec), kMostCtas);
  // Two waves are the most that can pay: beyond, every CTA only adds a segment and a partial.
  const std::int64_t two_waves = 2 * resident;
  std::vector<std::int64_t> grids{outputs, std::max<std::int64_t>(1, sms / outputs) * outputs, resident, most};
  for (std::int64_t waves = 1; waves * sms <= two_waves; ++waves) grids.push_back(waves * sms);
  for (std::int64_t share = 2; share <= 8; share *= 2) grids.push_back(divide_up(sms, share));
  for (std::int64_t power = 1; power <= two_waves; power *= 2) grids.push_back(power);
  // Equal numbers of CTAs per output tile, and equal numbers of output tiles per CTA.
  for (std::int64_t splits = 1; splits <= two_waves / outputs; splits += std::max<std::int64_t>(1, splits / 16)) {
    grids.push_back(splits * outputs);
  }
  for (std::int64_t share = 2; share <= 16 && outputs / share >= sms / 2; ++share) {
    if (outputs % share == 0 && outputs / share <= two_waves) grids.push_back(outputs / share);
  }
  for (auto& grid : grids) grid = std::clamp<std::int64_t>(grid, 1, most);
  std::sort(grids.begin(), grids.end());
  grids.erase(std::unique(grids.begin(), grids.end()), grids.end());
  return grids;
}

namespace detail {

std::int64_t resident_grid(const DeviceFacts& device, const KernelSpec& spec) {
  return std::int64_t{std::max(1, device.sm_count)} * std::max(1, spec.ctas_per_sm);
}

std::int64_t ragged_grid(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                         const KernelSpec& spec) {
  return std::min(resident_grid(device, spec), largest_grid(device, problem, shape, spec));
}

int segment_cost(const DeviceFacts& device, const KernelSpec& spec) {
  if (spec.features.batch_invariant) return 0;  // all segments are as long
  // Microseconds between the last byte of one segment and a stream at full rate in the next. A producer warp runs ahead
  // into the next segment, so there only the fix-up is left of it.
  const double segment_us = spec.load == LoadPath::tensor ? kTensorSegmentUs : kSegmentUs;
  const double token_bytes = static_cast<double>(kv_element_bytes(spec.features)) * (spec.head_dim + value_dim(spec));
  const double tile_us = spec.tile * token_bytes * spec.ctas_per_sm / memory_rate_per_sm(device);
  return static_cast<int>(std::lround(std::clamp(segment_us / tile_us, 0.0, 64.0)));
}

std::int64_t carry_grid_over(const DeviceFacts& device, const DecodeProblem& tuned_problem, const Shape& tuned_shape,
                             const Config& tuned, const DecodeProblem& problem, const Shape& shape,
                             const KernelSpec& spec) {
  const std::int64_t most = largest_grid(device, problem, shape, spec);
  const std::int64_t outputs = output_tiles(problem, shape, spec);
  const std::int64_t tuned_outputs = output_tiles(tuned_problem, tuned_shape, tuned.spec);
  const std::int64_t tuned_tiles = lean_tiles(tuned_problem, tuned_shape, tuned.spec);
  const std::int64_t tuned_resident = resident_grid(device, tuned.spec);
  const std::int64_t resident = resident_grid(device, spec);
  if (outputs == tuned_outputs && same_but_for_pdl(spec, tuned.spec) && tuned.grid <= most) {
    // Another context length at most. A full GPU stays full; a grid that left SMs idle did so to spare fix-ups, which
    // longer contexts repay, so there the LeanTiles per CTA are kept instead.
    const std::int64_t tiles = lean_tiles(problem, shape, spec);
    if (tuned.grid >= tuned_resident / 2 || tiles <= tuned_tiles) return tuned.grid;
  }
  // FlashAttention-2's grid, more CTAs than fit at once: each output tile keeps its one CTA.
  if (tuned.grid == tuned_outputs && tuned_outputs > tuned_resident && outputs > resident) {
    return std::min(outputs, most);
  }
  double wanted = static_cast<double>(tuned.grid) * static_cast<double>(resident) / static_cast<double>(tuned_resident);
  if (tuned.grid < tuned_resident / 2) {
    const double tiles_per_cta = static_cast<double>(tuned_tiles) / static_cast<double>(tuned.grid);
    wanted = static_cast<double>(lean_tiles(problem, shape, spec)) / tiles_per_cta;
    wanted = std::min(wanted, static_cast<double>(resident));
  }
  wanted = std::clamp(wanted, 1.0, static_cast<double>(most));
  // Even splits stay even.
  if (tuned.grid % tuned_outputs == 0 && static_cast<double>(outputs) <= wanted) {
    return static_cast<std::int64_t>(wanted / static_cast<double>(outputs)) * outputs;
  }
  return nearest_of(useful_grids(device, problem, shape, spec, spec.ctas_per_sm), wanted);
}

double schedule_cost(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                     const Config& config) {
  // In times of one 64-token tile on one SM. Published cost models of split decode kernels put a segment's start and
  // end at five to ten of those and a merged partial at 0.22; both only have to rank, not to predict.
  constexpr double kSegment = 6.0, kMergedPartial = 0.22, kTileTokens = 64.0;
  const double tiles = static_cast<double>(lean_tiles(problem, shape, config.spec));
  const double outputs = static_cast<double>(output_tiles(problem, shape, config.spec));
  const double grid = static_cast<double>(config.grid);
  const double sms = std::max(1, device.sm_count);
  const double resident = static_cast<double>(resident_grid(device, config.spec));
  const double cta_tiles = std::ceil(tiles / grid) * config.spec.tile / kTileTokens;
  const double waves = std::ceil(grid / resident);
  // CTAs that share an SM share its bandwidth.
  const double streamed = std::ceil(grid / sms) * cta_tiles;
  const bool even = config.grid % std::max<std::int64_t>(1, static_cast<std::int64_t>(outputs)) == 0;
  const double segments = std::ceil(outputs / grid) + (even || outputs > grid ? 0.0 : 1.0);
  const double contributors = std::ceil(grid / outputs);
  // Beyond sixteen contributors they merge as a tree, in groups of about the square root.
  const double merged = contributors <= 1    ? (even ? 0.0 : 2.0)
                        : contributors <= 16 ? contributors
                                             : 2.0 * std::sqrt(contributors) + 8.0;
  return streamed + waves * segments * kSegment + merged * kMergedPartial;
}

std::int64_t cheapest_grid(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                           const KernelSpec& spec) {
  const auto grids = useful_grids(device, problem, shape, spec, spec.ctas_per_sm);
  std::int64_t best = grids.front();
  double best_cost = std::numeric_limits<double>::infinity();
  for (const std::int64_t grid : grids) {
    const double cost = schedule_cost(device, problem, shape, {.spec = spec, .grid = grid});
    if (cost >= best_cost) continue;
    best_cost = cost;
    best = grid;
  }
  return best;
}

Result<KernelSpec> with_tunables_of(const KernelSpec& base, const KernelSpec& from) {
  if (from.load == LoadPath::vector && vector_lane_chunks(base.head_dim) != vector_lane_chunks(from.head_dim)) {
    return fail(ErrorCode::unsupported,
                fmt::format("load path vector as it was tuned for head_dim {}, with {}", from.head_dim, base.head_dim),
                "its lanes share rows in another way there: tune this head_dim");
  }
  KernelSpec spec = from;
  spec.arch = base.arch;
  spec.head_dim = base.head_dim;
  spec.group = base.group;
  spec.dtype = base.dtype;
  spec.layout = base.layout;
  spec.lse = base.lse;
  spec.pdl = base.pdl;
  spec.features = base.features;
  if (spec.features.batch_invariant) spec.fixup = FixUp::ticket;
  if (producer_warps(spec) > 1) spec.ctas_per_sm = 1;  // rather than fewer stages: see validate()
  for (;;) {
    const auto valid = validate(spec);
    if (valid) return spec;
    if (valid.error().code != ErrorCode::unsupported) return tl::unexpected(valid.error());
    // A ring that several warpgroups share has a multiple of their number of stages.
    const int step = spec.load == LoadPath::tensor ? std::max(1, spec.warps / 4) : 1;
    if (spec.stages > step) {
      spec.stages -= step;
    } else if (spec.ctas_per_sm > 1) {
      --spec.ctas_per_sm;
    } else {
      return tl::unexpected(valid.error());
    }
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
