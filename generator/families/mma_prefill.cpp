// mma_prefill.cpp -- the family for many query rows on every architecture: warps with query rows on the rows of
// mma.sync share a ring, which they fill by cp.async (templates/attend/mma_prefill.cuh).
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace mma_prefill {

constexpr int kFourOrEight[] = {4, 8}, kSteps[] = {32, 64}, kRings[] = {2, 3, 4}, kOneOrTwo[] = {1, 2};
constexpr SearchedLoad kLoads[] = {{LoadPath::cp_async, kFourOrEight, kSteps, kRings, kOneOrTwo}};

/// More query tokens than decode has, of K and V apart and as the matrix instructions take them. All else is of the
/// family mma, whose warps load rows for themselves.
bool takes(const KernelSpec& spec) {
  const Features& features = spec.features;
  return features.q_len > kMostDecodeTokens && !has_selection(features) && !features.latent && !features.append &&
         !has_part_of_context(features) && features.kv_format == KvFormat::same &&
         std::max(spec.head_dim, value_dim(spec)) <= 256;
}

/// Two tiles of 16 rows share what is read of K and V. Their results leave registers for nothing else where V is wide.
int rows_of_warp(const KernelSpec& spec) { return spec.warps == 4 && value_dim(spec) <= 128 ? 32 : 16; }

int panels(int columns) { return (columns + 63) / 64; }

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.warps != 4 && spec.warps != 8)
    return invalid_spec(fmt::format("{} warps for more than {} query tokens", spec.warps, kMostDecodeTokens),
                        "choose 4 or 8");
  if (layout.step_tokens < 4 * spec.warps)
    return invalid_spec(fmt::format("steps of {} tokens for {} warps", layout.step_tokens, spec.warps),
                        "each warp copies the rows of at least four; choose more warp_tokens");
  if (spec.stages < 2)
    return invalid_spec("1 stage in a ring that warps share", "one is read while others are filled; choose 2 or more");
  // Beside O, the scores of a step, and the weights in pairs.
  constexpr int kOthers = 64, kMost = 255;
  const int tiles = layout.rows_of_warp / 16,
            held = tiles * (value_dim(spec) / 2 + layout.step_tokens / 2 + layout.step_tokens / 4);
  if (held + kOthers > kMost)
    return unsupported_spec(fmt::format("{} columns of V, {} query rows a warp and steps of {} tokens", value_dim(spec),
                                        layout.rows_of_warp, layout.step_tokens),
                            "registers do not hold them; choose shorter steps or 8 warps");
  return {};
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  layout.step_tokens = spec.warp_tokens;
  layout.page_run = 1;
  layout.gathers_rows = true, layout.gathering_warps = spec.warps;
  layout.rows_of_warp = rows_of_warp(spec);
  layout.holds_results = true;
  layout.writes_rows = writes_rows_whole(spec, layout, 1);
  const int key_panels = panels(spec.head_dim), all_panels = key_panels + panels(value_dim(spec));
  layout.shared_bytes = spec.warps * layout.rows_of_warp * 128 * key_panels +
                        spec.stages * lean_warpgroup_stage_bytes(layout.step_tokens, 64 * all_panels);
}

void add_modules(KernelSource& source) {
  source.add({"line/shared_walk.cuh", "opaque_thread.cuh", "kv/row_lanes.cuh",
              source.spec.features.page_size > 0 ? "kv/paged_tokens.cuh" : "kv/dense_tokens.cuh", "kv/shared_ring.cuh",
              "attend/query_rows.cuh", "attend/row_scores.cuh", "attend/row_state.cuh"});
  if (source.layout.writes_rows) source.add({"attend/store_matrices.cuh"});
  source.add({"attend/mma_prefill.cuh"});
}

void add_constants(KernelSource& source, ConstantGroup group) {
  const KernelSpec& spec = source.spec;
  switch (group) {
    case ConstantGroup::rows: break;
    case ConstantGroup::warps: source.number("kWarps", spec.warps, "per CTA"); break;
    case ConstantGroup::steps:
      source.number("kStepTokens", source.layout.step_tokens, "tokens all warps take per step");
      source.number("kStages", spec.stages, "ring depth");
      source.number("kCtasPerSm", spec.ctas_per_sm, "occupancy the register allocation must allow");
      source.flag("kRowsAreSplit", true, "warps take every step, and each has a part of the query rows");
      break;
    case ConstantGroup::copies: break;
  }
}

/// With two CTAs an SM, one multiplies while the other one makes weights. One of eight warps needs less shared memory.
std::span<const DefaultDepth> default_depths(const KernelSpec&) {
  static constexpr DefaultDepth kDepths[] = {{4, 2, 2, 64}, {4, 2, 2, 32}, {8, 1, 2, 64}, {8, 1, 2, 32}, {4, 1, 2, 32}};
  return kDepths;
}

int least_registers(const KernelSpec& spec, const KernelLayout& layout) {
  return 40 + layout.rows_of_warp / 16 * (value_dim(spec) / 2 + layout.step_tokens / 2);
}

}  // namespace mma_prefill
}  // namespace

constinit const KernelFamily kMmaPrefill{
    .name = "mma_prefill",
    .description = "warps with 16 or 32 query rows each fill one ring and take every step; mma.sync",
    .loads = mma_prefill::kLoads,
    .takes = mma_prefill::takes,
    .supports = [](const KernelSpec&) -> Result<void> { return {}; },
    .fits = mma_prefill::fits,
    .most_rows = [](const KernelSpec& spec) { return spec.warps * mma_prefill::rows_of_warp(spec); },
    .lay_out = mma_prefill::lay_out,
    .query_rows_lead = true,
    .rows_are_split = true,
    .prefill_us = 5,  // nobody has measured it
    .add_modules = mma_prefill::add_modules,
    .add_constants = mma_prefill::add_constants,
    .result_columns = "merge/row_columns.cuh",
    .entry = "decode_rows.cuh",
    .default_depths = mma_prefill::default_depths,
    .typical_registers = [](const KernelSpec&, const KernelLayout&) { return 255; },
    .least_registers = mma_prefill::least_registers,
};

}  // namespace v1
}  // namespace leanattn
