// wgmma_rows.cpp -- the family with query rows on the rows of wgmma, and tokens on its columns, for more than 32 query
// rows of heads up to 128 wide (templates/attend/wgmma_rows.cuh). Warpgroups take steps in turn.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace wgmma_rows {

bool takes(const KernelSpec& spec) {
  return std::max(spec.head_dim, value_dim(spec)) <= 128 && query_rows(spec.features, spec.group) > 32;
}

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (auto ok = fits_wgmma(spec, layout); !ok) return ok;
  // If two warpgroups took a stage in turn, one of them could wait for it a round too early.
  if (spec.stages % (spec.warps / 4) != 0)
    return invalid_spec(fmt::format("stages is {} with {} warpgroups", spec.stages, spec.warps / 4),
                        "choose a multiple of the warpgroups");
  return {};
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  lay_out_producer(spec, layout, /*buffers=*/true, /*warpgroup=*/spec.warps == 8);
  layout.holds_results = spec.warps == 4;
  layout.writes_rows = writes_rows_whole(spec, layout, 1);
  const int warpgroups = spec.warps / 4;
  const int merge = layout.holds_results ? 0 : lean_merge_bytes(warpgroups, layout.rows, value_dim(spec));
  layout.shared_bytes =
      lean_warpgroup_shared_bytes(merge, warpgroups, lean_row_operand_bytes(spec.head_dim), spec.stages,
                                  lean_warpgroup_stage_bytes(layout.step_tokens, cache_columns(spec))) +
      layout.row_buffer_bytes;
}

void add_modules(KernelSource& source) {
  add_producer(source, matrix_instruction(source, "wgmma_shared", source.layout.step_tokens, false) +
                           matrix_instruction(source, "wgmma_registers", value_dim(source.spec), true));
  source.add({"attend/row_scores.cuh", "attend/row_state.cuh"});
  if (source.layout.writes_rows) source.add({"attend/store_matrices.cuh"});
  source.add({"attend/wgmma_rows.cuh", "attend/steps_in_turn.cuh"});
}

/// As with tokens on the matrix rows, but the weights are in registers, too. A producer warpgroup hands its registers
/// over.
int least_registers(const KernelSpec& spec, const KernelLayout& layout) {
  return layout.producer_warps > 1 ? 0 : 64 + value_dim(spec) / 2 + layout.step_tokens * 3 / 4;
}

}  // namespace wgmma_rows
}  // namespace

constinit const KernelFamily kWgmmaRows{
    .name = "wgmma_rows",
    .description = "a producer fills one ring; wgmma with query rows on the matrix rows, for more than 32 of them",
    .loads = kTensorLoads,
    .takes = wgmma_rows::takes,
    .supports = [](const KernelSpec& spec) { return supports_wgmma(spec); },
    .fits = wgmma_rows::fits,
    .most_rows = [](const KernelSpec&) { return kMatrixRows; },
    .lay_out = wgmma_rows::lay_out,
    .query_rows_lead = true,
    .exchange_order = 1,
    .add_modules = wgmma_rows::add_modules,
    .add_constants = add_constants_of_warpgroups,
    .result_columns = "merge/row_columns.cuh",
    .cta = "cta_wgmma.cuh",
    .entry = "decode_wgmma.cuh",
    .default_depths = [](const KernelSpec&) -> std::span<const DefaultDepth> { return kEightOrFourWarps; },
    .typical_registers = [](const KernelSpec&, const KernelLayout&) { return 168; },
    .least_registers = wgmma_rows::least_registers,
};

}  // namespace v1
}  // namespace leanattn
