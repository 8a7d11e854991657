// wgmma_prefill.cpp -- the family for many query rows: two or three warpgroups have 64 rows each, on the rows of wgmma,
// and all take every step (templates/attend/wgmma_prefill.cuh).
#include <fmt/format.h>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace wgmma_prefill {

// The wider a step, the fewer bytes of shared memory a matrix instruction reads for its work. Heads of 256 columns have
// registers for steps of 80 tokens.
constexpr int kEightWarps[] = {8}, kTwelveWarps[] = {12}, kWarpTokens[] = {16, 20, 32},
              kTokensOfTwelve[] = {20, 24, 28}, kOnePerSm[] = {1};
constexpr SearchedLoad kLoads[] = {{LoadPath::tensor, kEightWarps, kWarpTokens, kTensorStages, kOnePerSm},
                                   {LoadPath::tensor, kTwelveWarps, kTokensOfTwelve, kTensorStages, kOnePerSm}};
constexpr DefaultDepth kDepths[] = {{8, 1, 3, 32}, {8, 1, 2, 32}, {8, 1, 2, 20}, {8, 1, 3}, {8, 1, 2}},
                       kDepthsOfBytes[] = {{8, 1, 3, 32}, {8, 1, 6}, {8, 1, 4}, {8, 1, 3}, {8, 1, 2}};

bool takes(const KernelSpec& spec) {
  const int rows = query_rows(spec.features, spec.group);
  const bool three = spec.warps == 12 && spec.warp_tokens != kMixedWarpTokens && rows > 2 * kMatrixRows;
  return !spec.features.latent && rows > kMatrixRows && (spec.warps == 8 || three);
}

Result<void> supports(const KernelSpec& spec) {
  if (auto ok = supports_wgmma(spec, ByteRows::all); !ok) return ok;
  if (value_dim(spec) > 256)
    return unsupported_spec(fmt::format("{} columns of V and more than 64 query rows", value_dim(spec)),
                            "a warpgroup's registers hold 256; choose 4 warps");
  return {};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (auto ok = fits_wgmma(spec, layout, /*gathered_step=*/128); !ok) return ok;
  if (spec.warps == 12 && (layout.gathers_rows || spec.features.append))
    return unsupported_spec("three warpgroups of many query rows with append, or whose rows are gathered",
                            "threads that request KV need registers for it; choose 8 warps");
  // Of its rows, a thread holds half of O's columns, half of a step's scores, and the weights in pairs. Beside these it
  // needs others; with fewer, ptxas spills or serialises wgmma.
  constexpr int kOthers = 28;
  const int held = value_dim(spec) / 2 + layout.step_tokens / 2 + layout.step_tokens / 4;
  if (held + kOthers > layout.consumer_registers)
    return unsupported_spec(
        fmt::format("{} columns of V, more than 64 query rows and steps of {} tokens, with {} "
                    "registers a thread",
                    value_dim(spec), layout.step_tokens, layout.consumer_registers),
        "choose shorter steps or 4 warps; a producer that gathers rows, and append, take registers");
  return {};
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  lay_out_producer(spec, layout, /*buffers=*/true, /*warpgroup=*/true);
  if (layout.converts_rows) layout.consumer_registers = 208, layout.producer_registers = 88;
  if (spec.warps == 12) layout.consumer_registers = 152, layout.producer_registers = 56;
  layout.stage_parts = 2;
  // What a LeanTile takes on an SM: with all rows the matrix unit is the limit, with 64 how fast one SM reads.
  if (spec.features.ragged_q && !spec.features.batch_invariant)
    layout.tile_positions = 5, layout.light_tile_positions = 4;
  // Where contributors wait for each other, one range of a CTA is all that they may wait for. And all warps of a
  // producer that gathers have copies to make.
  if (layout.tile_positions > 1 && !layout.gathers_rows && spec.fixup == FixUp::ticket) layout.most_passes = 4;
  layout.holds_results = true;
  layout.writes_rows = writes_rows_whole(spec, layout, 1);
  layout.shared_bytes =
      lean_warpgroup_shared_bytes(0, spec.warps / 4, lean_row_operand_bytes(spec.head_dim), spec.stages,
                                  lean_warpgroup_stage_bytes(layout.step_tokens, cache_columns(spec)));
}

void add_modules(KernelSource& source) {
  add_producer(source, matrix_instruction(source, "wgmma_shared", source.layout.step_tokens, false) +
                           matrix_instruction(source, "wgmma_registers", value_dim(source.spec), true));
  source.add({"attend/query_rows.cuh", "attend/row_scores.cuh", "attend/row_state.cuh"});
  if (source.layout.writes_rows) source.add({"attend/store_matrices.cuh"});
  source.add({"attend/wgmma_prefill.cuh"});
}

/// Steps of bytes have 64 tokens. Some are on their way while others are converted and read.
std::span<const DefaultDepth> default_depths(const KernelSpec& base) {
  return has_one_byte_elements(base.features) ? std::span<const DefaultDepth>(kDepthsOfBytes) : kDepths;
}

}  // namespace wgmma_prefill
}  // namespace

constinit const KernelFamily kWgmmaPrefill{
    .name = "wgmma_prefill",
    .description =
        "a producer fills one ring; two or three warpgroups with 64 query rows each, whose products overlap the "
        "softmax",
    .loads = wgmma_prefill::kLoads,
    .takes = wgmma_prefill::takes,
    .supports = wgmma_prefill::supports,
    .fits = wgmma_prefill::fits,
    .most_rows = [](const KernelSpec& spec) { return spec.warps / 4 * kMatrixRows; },
    .lay_out = wgmma_prefill::lay_out,
    .query_rows_lead = true,
    .rows_are_split = true,
    .prefill_us = 1.7,  // on an H200
    .exchange_order = 1,
    .add_modules = wgmma_prefill::add_modules,
    .add_constants = add_constants_of_warpgroups,
    .result_columns = "merge/row_columns.cuh",
    .cta = "cta_wgmma.cuh",
    .entry = "decode_wgmma.cuh",
    .default_depths = wgmma_prefill::default_depths,
    .typical_registers = [](const KernelSpec&, const KernelLayout&) { return 168; },
    .least_registers = [](const KernelSpec&, const KernelLayout&) { return 0; },
};

}  // namespace v1
}  // namespace leanattn
