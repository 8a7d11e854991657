// default_config.cpp -- which load paths are tried in which order, and the tunables with which each is safe.
#include "runtime/lookup/default_config.hpp"

#include <algorithm>
#include <optional>

#include "generator/generator.hpp"
#include "generator/row_format.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Every LeanTile of a batch-invariant kernel is a segment with a partial of its own. This length is a compromise:
// longer LeanTiles need fewer partials, shorter ones keep more SMs busy at small batches.
constexpr int kInvariantTile = 2048;

/// The largest grid of at most `most` CTAs that gives every output tile the same number of them, if it leaves few SMs
/// idle; else `most`.
std::int64_t even_grid(std::int64_t most, std::int64_t outputs) {
  constexpr double kWorthwhileShare = 0.85;
  if (outputs > most) return most;
  const std::int64_t even = most / outputs * outputs;
  return static_cast<double>(even) >= kWorthwhileShare * static_cast<double>(most) ? even : most;
}

/// The spec of this load path with the deepest ring that fits, of up to `most_warps` warps. Its fix-up is by tickets,
/// because they never wait for a CTA that has not started. nullopt where the load path has no kernel for what `base`
/// asks.
std::optional<KernelSpec> safe_spec(const KernelSpec& base, LoadPath load, int most_warps) {
  // With sixteen tokens a warp there are registers left for the accumulators. With two CTAs an SM, one streams while
  // the other fixes up. Where query rows lead, two warpgroups share a CTA, so that one computes while the other one
  // waits.
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
    if (depth.warps > most_warps || (depth.warps == 8 && !query_rows_lead(spec) && !splits_columns(spec))) continue;
    // A producer warp serves a whole warpgroup, and with one stage the two would only wait for each other.
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

}  // namespace

std::vector<Config> default_configs(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape) {
  // `tensor` comes first: it streams fastest, and it reads the cache once even for a large group, whose rows do not fit
  // the registers of mma in one pass. With many query rows `bulk` comes next, because it needs no address registers in
  // each thread, without which the kernel would spill. With few rows `cp_async` comes next, because it copies the short
  // rows of a strided cache faster. `cp_async` is always tried, for it alone has every feature. Rows with a format of
  // their own have load path `tensor` only. Where its producer converts rows, kernels of eight warps spill with some
  // features, and those of four come next.
  constexpr int kManyRows = 16, kMostWarps = 8, kFewWarps = 4;
  const KernelSpec base = base_spec(device.arch, problem);
  const bool many_rows = rows_per_block(base) > kManyRows;
  std::vector<Config> configs;
  struct Attempt {
    LoadPath load;
    int most_warps;
  };
  std::vector<Attempt> attempts{{LoadPath::tensor, kMostWarps},
                                {many_rows ? LoadPath::bulk : LoadPath::cp_async, kMostWarps},
                                {many_rows ? LoadPath::cp_async : LoadPath::bulk, kMostWarps}};
  if (base.features.latent && has_one_byte_elements(base.features))
    attempts.insert(attempts.begin() + 1, {LoadPath::tensor, kFewWarps});
  if (row_format(base.features) != nullptr) attempts = {{LoadPath::tensor, kMostWarps}, {LoadPath::tensor, kFewWarps}};
  for (const Attempt& attempt : attempts) {
    const auto spec = safe_spec(base, attempt.load, attempt.most_warps);
    if (!spec ||
        (!configs.empty() && configs.back().spec.warps == spec->warps && configs.back().spec.load == spec->load))
      continue;
    const std::int64_t outputs = output_tiles(problem, shape, *spec);
    const std::int64_t most = std::min(lean_tiles(problem, shape, *spec), kMostCtas);
    const std::int64_t resident = std::min(most, resident_grid(device, *spec));
    const Config config{*spec, even_grid(resident, std::min(outputs, kMostCtas)),
                        is_ragged(visible_shape(problem, shape)) ? segment_cost(device, *spec) : 0,
                        l2_promotion(problem, shape, *spec)};
    configs.push_back(with_fitting_fix_up(device, problem, shape, config));
    // The next best, if the kernel that waits spills.
    if (configs.back() != config) configs.push_back(config);
  }
  // Only an invalid problem gets here. Generating this kernel then fails with an error that says what is wrong.
  if (configs.empty()) configs.push_back({base, 1, 0});
  return configs;
}

Result<void> validate_on(const DeviceFacts& device, const DecodeProblem& problem) {
  return validate(default_config(device, problem, Shape{}).spec);
}

Config with_fitting_fix_up(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape, Config config) {
  if (config.spec.features.batch_invariant || !has_large_partials(config.spec)) return config;
  KernelSpec waiting = config.spec;
  waiting.fixup = FixUp::wait;
  // A range that ends at the end of an output tile, as all do of equally long ones if the grid divides their number,
  // leaves nothing to merge.
  const bool shared =
      is_ragged(visible_shape(problem, shape)) || output_tiles(problem, shape, config.spec) % config.grid != 0;
  if (shared && config.grid <= resident_grid(device, waiting) && validate(waiting)) config.spec = waiting;
  return config;
}

std::optional<int> order_of_group(const DeviceFacts& device, const DecodeProblem& problem) {
  if (!in_group(problem.features)) return std::nullopt;
  return exchange_order(default_config(device, problem, Shape{}).spec);
}

Config default_config(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape) {
  return default_configs(device, problem, shape).front();
}

}  // namespace v1
}  // namespace leanattn
