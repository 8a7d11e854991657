// default_config.cpp -- which load paths are tried in which order, and the tunables with which each is safe.
#include "runtime/lookup/default_config.hpp"

#include <algorithm>
#include <optional>

#include "generator/families/family.hpp"
#include "generator/kv_encoding.hpp"
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

/// The first spec of this load path, of up to `most_warps` warps, that is valid with a depth that its family names. Its
/// fix-up is by tickets, because they never wait for a CTA that has not started. nullopt where the load path has no
/// kernel for what `base` asks.
std::optional<KernelSpec> safe_spec(const KernelSpec& base, LoadPath load, int most_warps) {
  KernelSpec spec = base;
  spec.load = load;
  spec.fixup = FixUp::ticket;
  for (const KernelFamily* const family : families()) {
    if (!has_load(*family, load)) continue;
    for (const DefaultDepth& depth : family->default_depths(spec)) {
      spec.warps = depth.warps, spec.ctas_per_sm = depth.ctas_per_sm, spec.stages = depth.stages;
      spec.warp_tokens = depth.warp_tokens;
      if (depth.warps > most_warps || &family_of(spec) != family) continue;
      for (const int tile : {64, 32, 16}) {
        spec.tile = base.features.batch_invariant ? kInvariantTile : std::max(tile, layout_of(spec).step_tokens);
        if (validate(spec)) return spec;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<Config> default_configs(const DecodeStep& step) {
  // `tensor` comes first: it streams fastest, and it reads the cache once even for a large group, whose rows do not fit
  // the registers of mma in one pass. Where its producer converts rows of bytes, kernels of eight warps spill with some
  // features, and those of four come next. With many query rows `bulk` comes next, because it needs no address
  // registers in each thread, without which the kernel would spill. With few rows `cp_async` comes next, because it
  // copies the short rows of a strided cache faster, and so it does where its warps have query rows of their own and
  // read the cache once for all of them. `cp_async` is always tried, for it alone has every feature but
  // rows with a format of their own.
  constexpr int kManyRows = 16, kMostWarps = 8, kFewWarps = 4;
  const KernelSpec& base = step.base;
  const KernelLayout layout = layout_of(base);
  const bool many_rows = layout.rows > kManyRows && !layout.family->rows_are_split,
             bytes = kv_element_bytes(base.features) == 1;
  std::vector<Config> configs;
  struct Attempt {
    LoadPath load;
    int most_warps;
  };
  const Attempt attempts[] = {{LoadPath::tensor, kMostWarps},
                              {LoadPath::tensor, bytes ? kFewWarps : kMostWarps},
                              {many_rows ? LoadPath::bulk : LoadPath::cp_async, kMostWarps},
                              {many_rows ? LoadPath::cp_async : LoadPath::bulk, kMostWarps}};
  for (const Attempt& attempt : attempts) {
    const auto spec = safe_spec(base, attempt.load, attempt.most_warps);
    if (!spec ||
        (!configs.empty() && configs.back().spec.warps == spec->warps && configs.back().spec.load == spec->load))
      continue;
    const std::int64_t outputs = output_tiles(step, *spec);
    const std::int64_t most = std::min(lean_tiles(step, *spec), kMostCtas);
    const std::int64_t resident = std::min(most, resident_grid(step.device, *spec));
    // Nobody knows how many output tiles a launch with prefill has.
    const std::int64_t grid =
        has_prefill(spec->features) ? resident : even_grid(resident, std::min(outputs, kMostCtas));
    const Config config{*spec, grid, segment_cost(step, *spec), l2_promotion(step, *spec)};
    configs.push_back(with_fitting_fix_up(step, config));
    // The next best, if the kernel that waits spills.
    if (configs.back() != config) configs.push_back(config);
  }
  // Only an invalid problem gets here. Generating this kernel then fails with an error that says what is wrong.
  if (configs.empty()) configs.push_back({base, 1, 0});
  return configs;
}

Result<void> validate_on(const DeviceFacts& device, const DecodeProblem& problem) {
  return validate(default_config({device, problem, {}}).spec);
}

Config with_fitting_fix_up(const DecodeStep& step, Config config) {
  if (config.spec.features.batch_invariant || !layout_of(config.spec).has_large_partials) return config;
  KernelSpec waiting = config.spec;
  waiting.fixup = FixUp::wait;
  // A range that ends at the end of an output tile, as all do of equally long ones if the grid divides their number,
  // leaves nothing to merge.
  const bool shared = step.ragged() || output_tiles(step, config.spec) % config.grid != 0;
  if (shared && config.grid <= resident_grid(step.device, waiting) && validate(waiting)) config.spec = waiting;
  return config;
}

std::optional<int> order_of_group(const DeviceFacts& device, const DecodeProblem& problem) {
  if (!in_group(problem.features)) return std::nullopt;
  return family_of(default_config({device, problem, {}}).spec).exchange_order;
}

Config default_config(const DecodeStep& step) { return default_configs(step).front(); }

}  // namespace v1
}  // namespace leanattn
