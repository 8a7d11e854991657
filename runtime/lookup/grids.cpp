// grids.cpp -- counts of tiles, useful grids, and grids carried over from one shape to another.
#include "runtime/lookup/grids.hpp"

#include <algorithm>
#include <cmath>

#include "generator/families/family.hpp"
#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/lookup/mixed_line.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// What a segment takes beside its bytes, in microseconds: the values that best balance 64 requests of 128 to 32768
// tokens on an H200.
constexpr double kSegmentUs = 3.6, kTensorSegmentUs = 1.8;

/// Whether a grid has no more CTAs than are resident at once: because they wait for each other, or because nobody knows
/// how many output tiles a launch has.
bool stays_resident(const KernelSpec& spec) { return waits(spec) || has_prefill(spec.features); }

/// The most CTAs that can have work: one for each LeanTile.
std::int64_t largest_grid(const DecodeStep& step, const KernelSpec& spec) {
  const std::int64_t most = std::min(lean_tiles(step, spec), kMostCtas);
  return stays_resident(spec) ? std::min(most, resident_grid(step.device, spec)) : most;
}

/// Whether two specs are equal except for programmatic dependent launch, which changes when a kernel starts but not
/// what its grid does.
bool same_but_for_pdl(KernelSpec a, const KernelSpec& b) {
  a.pdl = b.pdl;
  return a == b;
}

/// The grid whose ratio to `wanted` is closest to 1.
std::int64_t nearest_of(const std::vector<std::int64_t>& grids, double wanted) {
  const auto distance = [&](std::int64_t grid) { return std::abs(std::log(static_cast<double>(grid) / wanted)); };
  return *std::min_element(grids.begin(), grids.end(),
                           [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
}

}  // namespace

std::int64_t output_tiles(const DecodeProblem& problem, int batch, const KernelSpec& spec) {
  const int lists = has_selection(problem.features) ? problem.features.q_len : 1;
  return saturating_product(saturating_product(batch, std::int64_t{problem.kv_heads} * lists),
                            layout_of(spec).row_blocks);
}

std::int64_t output_tiles(const DecodeStep& step, const KernelSpec& spec) {
  if (step.is_mixed()) return mixed_line(step, spec, layout_of(spec)).output_tiles();
  const std::int64_t most = output_tiles(step.problem, step.shape.batch, spec);
  if (!has_prefill(spec.features)) return most;
  const std::int64_t blocks = divide_up(step.shape.longest_context * spec.group, layout_of(spec).rows);
  return std::min(most, saturating_product(saturating_product(step.shape.batch, step.problem.kv_heads), blocks));
}

std::int64_t lean_tiles(const DecodeStep& step, const KernelSpec& spec) {
  if (step.is_mixed()) return mixed_line(step, spec, layout_of(spec)).lean_tiles();
  // Each request has whole LeanTiles. The lengths of a ragged batch are not known, so its average stands for them.
  const std::int64_t average = divide_up(total_tokens(step.visible), step.shape.batch);
  return saturating_product(output_tiles(step, spec), std::max<std::int64_t>(1, divide_up(average, spec.tile)));
}

std::vector<std::int64_t> useful_grids(const DecodeStep& step, const KernelSpec& spec, int resident_ctas_per_sm) {
  const std::int64_t sms = std::max(1, step.device.sm_count);
  const std::int64_t resident = sms * std::max(1, resident_ctas_per_sm);
  const std::int64_t outputs = output_tiles(step, spec);
  const std::int64_t most = std::min(lean_tiles(step, spec), stays_resident(spec) ? resident : kMostCtas);
  // More than two waves never pay, because each further CTA only adds a segment and a partial.
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

std::int64_t resident_grid(const DeviceFacts& device, const KernelSpec& spec) {
  return std::int64_t{std::max(1, device.sm_count)} * std::max(1, spec.ctas_per_sm);
}

std::int64_t ragged_grid(const DecodeStep& step, const KernelSpec& spec) {
  return std::min(resident_grid(step.device, spec), largest_grid(step, spec));
}

int segment_cost(const DecodeStep& step, const KernelSpec& spec) {
  const KernelLayout layout = layout_of(spec);
  const KernelFamily& family = *layout.family;
  if (family.prefill_us > 0 && has_prefill(spec.features)) {
    constexpr double kPrefillSegmentUs = 5;  // a segment more, on an H200
    const double element_us = family.prefill_us / (128 * 128 * 256) * family.most_rows(spec);
    return static_cast<int>(
        std::lround(kPrefillSegmentUs / (element_us * spec.tile * (spec.head_dim + value_dim(spec)))));
  }
  if (!step.ragged() || spec.features.batch_invariant) return 0;  // all of its segments are equally long
  if (&family == &kWgmmaRoles) {
    // Attending takes longer than memory does. On an H100, 64 tokens take 1.9 us, and a segment more takes 5.8 us.
    constexpr double kTokenUs = 1.9 / 64, kRolesSegmentUs = 5.8;
    return static_cast<int>(std::lround(kRolesSegmentUs / (kTokenUs * spec.tile)));
  }
  // The time from the last byte of one segment until the next one streams at full rate. A producer warp already
  // requests the next segment meanwhile, so that only the fix-up remains of this time.
  const double segment_us = layout.producer_warps > 0 ? kTensorSegmentUs : kSegmentUs;
  const double tile_bytes = static_cast<double>(spec.tile) * cache_token_bytes(spec);
  const double tile_us = tile_bytes * spec.ctas_per_sm / memory_rate_per_sm(step.device);
  return static_cast<int>(std::lround(std::clamp(segment_us / tile_us, 0.0, 64.0)));
}

int l2_promotion(const DecodeStep& step, const KernelSpec& spec) {
  // On an H200, 16 MB of KV take 7.9 us with 256 and 8.3 us with 128, and 1 GB takes 261 us with 256 and 238 us with
  // 128.
  constexpr std::int64_t kFewBytes = 24 << 20;
  return spec.load == LoadPath::tensor && step.bytes <= kFewBytes ? 256 : 128;
}

int carry_l2_promotion_over(const DecodeStep& tuned_step, const Config& tuned, const DecodeStep& step,
                            const KernelSpec& spec) {
  const int here = l2_promotion(step, spec);
  const bool alike = spec.load == LoadPath::tensor && tuned.spec.load == LoadPath::tensor &&
                     here == l2_promotion(tuned_step, tuned.spec);
  return alike ? tuned.l2_promotion : here;
}

std::int64_t carry_grid_over(const DecodeStep& tuned_step, const Config& tuned, const DecodeStep& step,
                             const KernelSpec& spec) {
  const std::int64_t most = largest_grid(step, spec);
  const std::int64_t outputs = output_tiles(step, spec);
  const std::int64_t tuned_outputs = output_tiles(tuned_step, tuned.spec);
  const std::int64_t tuned_tiles = lean_tiles(tuned_step, tuned.spec);
  const std::int64_t tuned_resident = resident_grid(tuned_step.device, tuned.spec);
  const std::int64_t resident = resident_grid(step.device, spec);
  if (outputs == tuned_outputs && same_but_for_pdl(spec, tuned.spec) && tuned.grid <= most) {
    // Only the context length may differ. A grid that fills the GPU is kept. One that leaves SMs idle saves fix-ups,
    // which cost less than idle SMs once contexts are longer; there the number of LeanTiles per CTA is kept instead
    // (below).
    const std::int64_t tiles = lean_tiles(step, spec);
    if (tuned.grid >= tuned_resident / 2 || tiles <= tuned_tiles) return tuned.grid;
  }
  // FlashAttention-2's grid of more CTAs than are resident at once: each output tile keeps its one CTA.
  if (tuned.grid == tuned_outputs && tuned_outputs > tuned_resident && outputs > resident) {
    return std::min(outputs, most);
  }
  double wanted = static_cast<double>(tuned.grid) * static_cast<double>(resident) / static_cast<double>(tuned_resident);
  if (tuned.grid < tuned_resident / 2) {
    const double tiles_per_cta = static_cast<double>(tuned_tiles) / static_cast<double>(tuned.grid);
    wanted = static_cast<double>(lean_tiles(step, spec)) / tiles_per_cta;
    wanted = std::min(wanted, static_cast<double>(resident));
  }
  wanted = std::clamp(wanted, 1.0, static_cast<double>(most));
  // Where every output tile had the same number of CTAs, it stays so.
  if (tuned.grid % tuned_outputs == 0 && static_cast<double>(outputs) <= wanted) {
    return static_cast<std::int64_t>(wanted / static_cast<double>(outputs)) * outputs;
  }
  return nearest_of(useful_grids(step, spec, spec.ctas_per_sm), wanted);
}

}  // namespace v1
}  // namespace leanattn
