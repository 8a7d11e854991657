// line_part.cpp -- the modules with which a CTA walks its range of the line, and those that features put in front of
// the family's.
#include "generator/kernel_source.hpp"
#include "generator/kv_encoding.hpp"

namespace leanattn {
inline namespace v1 {

void add_arguments(KernelSource& source) { source.add({"kernel_args.cuh", "line/schedule.cuh", "shared_layout.cuh"}); }

void add_line(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  const Features& features = spec.features;
  const bool scaled = has_scales(features), selects = has_selection(features);
  if (!source.is_half) add_arguments(source);
  source.add({"prelude.cuh"});
  if (spec.dtype == DType::bf16) source.add({"attend/bf16.cuh"});
  if (spec.dtype == DType::fp16 || scaled) source.add({"attend/fp16.cuh"});
  source.add({"line/rows.cuh"});
  if (needs_positions(features)) source.add({"line/part_of_context.cuh"});
  source.add({"line/work.cuh"});
  if (features.spans) source.add({"line/spans.cuh"});
  source.add({"line/find_start.cuh", "line/walk.cuh", "line/steps.cuh",
              selects               ? "kv/selection.cuh"
              : layout.gathers_rows ? "kv/row_pages.cuh"
                                    : "kv/page_table.cuh",
              "attend/score.cuh",
              has_block_scales(features) ? "kv/elements_fp4.cuh"
              : has_nibbles(features)    ? "kv/elements_4bit.cuh"
              : scaled                   ? "kv/elements_8bit.cuh"
                                         : "kv/elements_16bit.cuh",
              features.rope != Rope::none ? "attend/rope.cuh" : "attend/no_rope.cuh"});
  if (has_nibbles(features)) source.add({"kv/query_pairs.cuh"});
  if (layout.gathers_rows) source.add({"kv/token_holes.cuh"});
  if (selects && !layout.gathers_rows) source.add({"kv/run_holes.cuh"});
  if (features.append) source.add({"kv/append.cuh"});
  if (features.append && !layout.appends_to_stage && row_format(features) == nullptr) {
    if (has_block_scales(features))
      source.add({"kv/append_blocks.cuh"});
    else if (stages_scales(features))
      source.add({has_nibbles(features) ? "kv/quantise_4bit.cuh" : "kv/quantise_8bit.cuh", "kv/append_scaled.cuh"});
    else
      source.add({"kv/append_elements.cuh"});
    source.add({"kv/append_to_cache.cuh"});
  }
  if (scaled) source.add({"attend/value_unit.cuh"});
  if (source.variant == KernelVariant::stamped) source.add({"stamps.cuh"});
  source.add({"bounded_wait.cuh"});
}

}  // namespace v1
}  // namespace leanattn
