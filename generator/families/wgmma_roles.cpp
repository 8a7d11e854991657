// wgmma_roles.cpp -- the family in which two warpgroups hold half of O's columns each, and one of them makes the
// weights of a step for both: query rows on the rows of wgmma, over a latent cache (templates/attend/wgmma_roles.cuh).
#include <fmt/format.h>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace wgmma_roles {

bool takes(const KernelSpec& spec) {
  return spec.features.latent && spec.warps == 8 && query_rows(spec.features, spec.group) > kFewRows;
}

Result<void> supports(const KernelSpec& spec) {
  if (auto ok = supports_wgmma(spec); !ok) return ok;
  // Each half of V is a whole number of panels, and a matrix instruction takes no more than 256 columns.
  if (value_dim(spec) % 256 != 0)
    return unsupported_spec(
        fmt::format("8 warps over a latent cache of {} columns, {} of them V", spec.head_dim, value_dim(spec)),
        "V takes a multiple of 256; choose 4 warps");
  // O fills the registers of both warpgroups, and the addresses of other ranks' memory would be spilled.
  if (in_group(spec.features))
    return unsupported_spec("context_parallel over a latent cache with 8 warps and more than 16 query rows",
                            "choose 4 warps");
  return {};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (layout.step_tokens != 64)
    return unsupported_spec(fmt::format("steps of {} tokens over a latent cache with 8 warps", layout.step_tokens),
                            "choose warp_tokens 16");
  return fits_wgmma(spec, layout);
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  constexpr int kMostInStep = 8;
  // Every row block needs a CTA of its own. In a batch-invariant kernel a slot of the workspace is a tile position.
  // Where requests have their own numbers of query tokens, the row blocks of one token go in step, or as many more as
  // make all row blocks a whole number of such steps.
  int together = spec.features.ragged_q ? (spec.group + layout.rows - 1) / layout.rows : layout.row_blocks;
  while (layout.row_blocks % together != 0) ++together;
  if (!spec.features.batch_invariant && together <= kMostInStep) layout.row_blocks_in_step = together;
  // Beside q and two stages there is no room for a buffer.
  lay_out_producer(spec, layout, /*buffers=*/false, /*warpgroup=*/true);
  // With elements of one byte and one scale, the exchange takes as long as the conversion that it saves.
  const RowFormat* const row = row_format(spec.features);
  const bool worth_it = row != nullptr && row->latent_columns == row->value_columns;
  const bool whole_pairs = value_dim(spec) % 256 == 0;  // of panels in either part of a stage
  if (worth_it && whole_pairs && layout.row_blocks_in_step % 2 == 0) layout.converting_ctas = 2;
  // A producer of one warp needs fewer registers than one that gathers.
  layout.consumer_registers = layout.gathers_rows ? 208 : 232,
  layout.producer_registers = layout.gathers_rows ? 88 : 40;
  layout.stage_parts = 2;
  layout.holds_results = true;
  // The weights take the place of 64 columns behind V, or of as many behind all columns.
  layout.weights_beside = spec.head_dim == value_dim(spec);
  const int beside = layout.weights_beside ? 64 : 0;
  layout.writes_rows = writes_rows_whole(spec, layout, 2);
  layout.shared_bytes =
      lean_warpgroup_shared_bytes(0, 1, lean_role_operand_bytes(spec.head_dim, spec.stages), spec.stages,
                                  lean_warpgroup_stage_bytes(layout.step_tokens, cache_columns(spec) + beside));
}

void add_modules(KernelSource& source) {
  const int half = value_dim(source.spec) / 2;
  add_producer(source, matrix_instruction(source, "wgmma_shared", source.layout.step_tokens, false) +
                           matrix_instruction(source, "wgmma_registers", half, true) +
                           matrix_instruction(source, "wgmma_values", half, false));
  source.add({"attend/query_rows.cuh", "attend/row_scores.cuh", "attend/store_matrices.cuh", "attend/wgmma_roles.cuh"});
}

}  // namespace wgmma_roles
}  // namespace

constinit const KernelFamily kWgmmaRoles{
    .name = "wgmma_roles",
    .description = "a producer fills one ring; two warpgroups with half of O each, one of which makes the weights",
    .loads = kTensorLoads,
    .takes = wgmma_roles::takes,
    .supports = wgmma_roles::supports,
    .fits = wgmma_roles::fits,
    .most_rows = [](const KernelSpec&) { return kMatrixRows; },
    .lay_out = wgmma_roles::lay_out,
    .query_rows_lead = true,
    .counts_partials = true,
    .exchange_order = 1,
    .add_modules = wgmma_roles::add_modules,
    .add_constants = add_constants_of_warpgroups,
    .result_columns = "merge/role_columns.cuh",
    .entry = "decode_roles.cuh",
    .default_depths = [](const KernelSpec&) -> std::span<const DefaultDepth> { return kEightWarps; },
    .typical_registers = [](const KernelSpec&, const KernelLayout&) { return 168; },
    .least_registers = [](const KernelSpec&, const KernelLayout&) { return 0; },
};

}  // namespace v1
}  // namespace leanattn
