// wgmma_tokens.cpp -- the family with 64 tokens on the rows of wgmma, and up to 32 query rows on its columns
// (templates/attend/wgmma_tokens.cuh). Warpgroups take steps in turn. Over a latent cache, two of them may hold half of
// O's columns each and both compute all scores.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/families/wgmma.hpp"
#include "generator/kernel_source.hpp"

namespace leanattn {
inline namespace v1 {
namespace {
namespace wgmma_tokens {

bool splits_columns(const KernelSpec& spec) { return spec.features.latent && spec.warps == 8; }

Result<void> supports(const KernelSpec& spec) {
  if (auto ok = supports_wgmma(spec); !ok) return ok;
  if (splits_columns(spec) && value_dim(spec) % 128 != 0)
    return unsupported_spec(fmt::format("8 warps over a latent cache with {} columns of V", value_dim(spec)),
                            "each half has a multiple of 64; choose 4 warps");
  return {};
}

Result<void> fits(const KernelSpec& spec, const KernelLayout& layout) {
  if (auto ok = fits_wgmma(spec, layout); !ok) return ok;
  // If two warpgroups took a stage in turn, one of them could wait for it a round too early.
  if (!splits_columns(spec) && spec.stages % (spec.warps / 4) != 0)
    return invalid_spec(fmt::format("stages is {} with {} warpgroups", spec.stages, spec.warps / 4),
                        "choose a multiple of the warpgroups");
  return {};
}

/// The queries stay in shared memory, and the warpgroup's threads share the accumulators.
int most_rows(const KernelSpec& spec) {
  return splits_columns(spec) || value_dim(spec) > 256 ? kFewRows : 2 * kFewRows;
}

void lay_out(const KernelSpec& spec, KernelLayout& layout) {
  const bool splits = splits_columns(spec);
  lay_out_producer(spec, layout, /*buffers=*/true, /*warpgroup=*/splits);
  layout.holds_results = spec.warps == 4 || splits;
  const int warpgroups = spec.warps / 4;
  const int operands =
      lean_token_operand_bytes(layout.rows, spec.head_dim, layout.step_tokens, /*sharers=*/splits ? 2 : 1);
  const int merge = layout.holds_results ? 0 : lean_merge_bytes(warpgroups, layout.rows, value_dim(spec));
  layout.shared_bytes =
      lean_warpgroup_shared_bytes(merge, splits ? 1 : warpgroups, operands, spec.stages,
                                  lean_warpgroup_stage_bytes(layout.step_tokens, cache_columns(spec))) +
      layout.row_buffer_bytes;
}

void add_modules(KernelSource& source) {
  add_producer(source, matrix_instruction(source, "wgmma_shared", (source.layout.rows + 7) / 8 * 8, false));
  source.add({"attend/wgmma_tokens.cuh", "attend/steps_in_turn.cuh"});
}

std::span<const DefaultDepth> default_depths(const KernelSpec& base) {
  return base.features.latent ? std::span<const DefaultDepth>(kEightOrFourWarps) : kFourWarps;
}

int typical_registers(const KernelSpec& spec, const KernelLayout& layout) {
  if (spec.features.latent) return 168;
  const int rows = layout.rows;
  int registers = rows <= 4 ? 120 : rows <= 8 ? 132 : 142;
  registers += std::max(value_dim(spec) / 64 - 1, 0) * 6 + (layout.gathers_rows ? 6 : 0);
  if (value_dim(spec) > 128 && rows > 16) registers += rows > 24 ? 44 : 10;
  return registers;
}

/// The scores of a step and the accumulators are in registers; operands stay in shared memory.
int least_registers(const KernelSpec& spec, const KernelLayout& layout) {
  return 40 + (layout.rows + 7) / 8 * 4 * (layout.step_tokens / 64 + value_dim(spec) / 64) +
         (layout.gathers_rows ? 32 : 0);  // the addresses of rows
}

}  // namespace wgmma_tokens
}  // namespace

constinit const KernelFamily kWgmmaTokens{
    .name = "wgmma_tokens",
    .description = "a producer fills one ring; wgmma with tokens on the matrix rows",
    .loads = kTensorLoads,
    .supports = wgmma_tokens::supports,
    .fits = wgmma_tokens::fits,
    .most_rows = wgmma_tokens::most_rows,
    .lay_out = wgmma_tokens::lay_out,
    .exchange_order = 1,
    .add_modules = wgmma_tokens::add_modules,
    .add_constants = add_constants_of_warpgroups,
    .result_columns = "merge/token_columns.cuh",
    .cta = "cta_wgmma.cuh",
    .entry = "decode_wgmma.cuh",
    .default_depths = wgmma_tokens::default_depths,
    .typical_registers = wgmma_tokens::typical_registers,
    .least_registers = wgmma_tokens::least_registers,
};

}  // namespace v1
}  // namespace leanattn
