#include "generator/families/warps.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/families/shared.hpp"
#include "generator/families/shared_layout.hpp"
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {

int most_rows_of_warps(const KernelSpec& spec) {
  return 8 * std::clamp(256 / std::max(spec.head_dim, value_dim(spec)), 1, 4);
}

void lay_out_warps(const KernelSpec& spec, KernelLayout& layout, int query_bytes) {
  layout.step_tokens = spec.warp_tokens;
  layout.page_run = adjacent_tokens(spec.features, layout.step_tokens);
  layout.copies_boxes = spec.load == LoadPath::tensor;
  // A slot of a batch-invariant kernel is a place on the line.
  layout.heads_in_step = layout.copies_boxes && spec.layout == KvLayout::strided && !spec.features.batch_invariant;
  const KvEncoding& encoding = kv_encoding(spec.features);
  const int k_row = encoding.row_bytes(spec.head_dim), v_row = encoding.row_bytes(value_dim(spec)),
            of_blocks = encoding.block_scale_bytes(spec.head_dim);
  int stage = 0;
  if (layout.copies_boxes && of_blocks > 0) {
    stage = spec.warp_tokens / 16 * lean_block_boxes(k_row, v_row, of_blocks).bytes;
  } else if (layout.copies_boxes) {
    stage = spec.warp_tokens * lean_round_up(lean_shared_row_bytes(k_row, v_row), 16);
  } else if (!loads_to_registers(spec.load)) {
    stage = lean_warp_stage(spec.warp_tokens, k_row, v_row).bytes;
    if (of_blocks > 0)
      stage += lean_block_scale_bytes(spec.warp_tokens, of_blocks);
    else if (stages_scales(spec.features))
      stage += lean_stage_scale_bytes(spec.warp_tokens);
  }
  layout.shared_bytes = lean_warp_shared_bytes(lean_merge_bytes(spec.warps, layout.rows, value_dim(spec)), spec.warps,
                                               spec.stages, stage, query_bytes);
}

Result<void> refuse_row_format(const KernelSpec& spec) {
  if (row_format(spec.features) == nullptr) return refuse_staged_scales(spec);
  return unsupported_spec(
      fmt::format("load path {} with KV format {}", to_string(spec.load), to_string(spec.features.kv_format)),
      "use tensor, whose producer converts rows with a format of their own");
}

void add_modules_of_warps(KernelSource& source) {
  const Features& features = source.spec.features;
  source.add({"kv/tokens.cuh", has_selection(features)  ? "kv/selected.cuh"
                               : features.page_size > 0 ? "kv/paged.cuh"
                                                        : "kv/dense.cuh"});
}

void add_constants_of_warps(KernelSource& source, ConstantGroup group) {
  const KernelSpec& spec = source.spec;
  const bool ring = !loads_to_registers(spec.load);
  switch (group) {
    case ConstantGroup::rows:
      source.flag("kContiguous", spec.layout == KvLayout::contiguous && !has_scales_in_rows(spec.features),
                  "rows of consecutive tokens are adjacent in memory");
      break;
    case ConstantGroup::warps: source.number("kWarps", spec.warps, "per CTA"); break;
    case ConstantGroup::steps:
      source.number("kStepTokens", source.layout.step_tokens, "tokens one warp takes per step");
      if (ring) source.number("kStages", spec.stages, "ring depth per warp");
      source.number("kCtasPerSm", spec.ctas_per_sm, "occupancy the register allocation must allow");
      source.flag("kPrefetchSegments", ring, "request a segment's KV before the fix-up of the one before it");
      break;
    case ConstantGroup::copies: break;
  }
}

std::span<const DefaultDepth> default_depths_of_warps(const KernelSpec& spec) {
  // With two CTAs an SM, one streams while the other fixes up.
  static constexpr DefaultDepth kDepths[] = {{4, 2, 3}, {4, 2, 2}, {4, 1, 3}, {4, 1, 2},
                                             {4, 1, 1}, {2, 1, 2}, {2, 1, 1}, {1, 1, 1}};
  // Rows with their scales are few bytes. Long steps have fewer instructions for a token
  // (docs/lab-notes/load-paths.md).
  static constexpr DefaultDepth kDepthsOfRows[] = {{8, 1, 2, 32}, {8, 1, 2}, {4, 2, 3},
                                                   {4, 2, 2},     {4, 1, 2}, {2, 1, 2}};
  if (spec.load == LoadPath::tensor) return kDepthsOfRows;
  return kDepths;
}

}  // namespace v1
}  // namespace leanattn
