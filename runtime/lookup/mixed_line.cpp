#include "runtime/lookup/mixed_line.hpp"

#include <algorithm>
#include <cmath>

namespace leanattn {
inline namespace v1 {

MixedLine mixed_line(const DecodeStep& step, const KernelSpec& spec, const KernelLayout& layout) {
  const Shape& shape = step.visible;
  const QueryMix& mix = shape.mix;
  const std::int64_t kv_heads = step.problem.kv_heads, decodes = shape.batch - mix.chunks;
  const auto blocks_of = [&](std::int64_t rows) { return divide_up(rows, layout.rows); };
  MixedLine line;
  if (decodes > 0) {
    const std::int64_t context = divide_up(std::max<std::int64_t>(total_tokens(shape) - mix.chunk_context, 1), decodes);
    line.decodes.rows = std::min(spec.group, layout.rows);
    line.decodes.output_tiles = saturating_product(decodes * kv_heads, blocks_of(spec.group));
    line.decodes.lean_tiles =
        saturating_product(line.decodes.output_tiles, std::max<std::int64_t>(1, divide_up(context, spec.tile)));
  }
  // Of several chunks, each fills its last row block to a half, unless equal ones would fill theirs.
  const std::int64_t tokens = chunk_tokens(shape), rows = saturating_product(tokens, spec.group);
  const bool full = rows % saturating_product(mix.chunks, layout.rows) == 0;
  const std::int64_t blocks = std::max<std::int64_t>(mix.chunks, blocks_of(rows) + (full ? 0 : (mix.chunks - 1) / 2));
  line.chunks.rows = static_cast<int>(std::min<std::int64_t>(divide_up(rows, mix.chunks), layout.rows));
  line.chunks.output_tiles = saturating_product(blocks, kv_heads);
  if (decodes == 0 && full && tokens <= saturating_product(mix.chunks, spec.tile))
    line.alike = line.chunks.output_tiles;
  // A row block reads up to its last query token, and its last LeanTile is half full.
  const double average = static_cast<double>(mix.chunk_pairs) / static_cast<double>(tokens),
               end = average + (static_cast<double>(line.chunks.rows) / spec.group - 1) / 2;
  const double tiles = static_cast<double>(line.chunks.output_tiles) * (std::max(end, 0.0) / spec.tile + 0.5);
  line.chunks.lean_tiles =
      std::max(line.chunks.output_tiles, static_cast<std::int64_t>(std::round(std::min(tiles, 0x1p62))));
  return line;
}

}  // namespace v1
}  // namespace leanattn
