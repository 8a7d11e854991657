// mixed_line.hpp -- MixedLine: the output tiles and LeanTiles that a mixed step has on the line, decodes and chunks
// apart. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// Those of all KV heads. The mix says less than the requests do, so chunks count as equal ones whose row blocks end at
/// the average query token's context.
struct MixedLine {
  struct Part {
    std::int64_t output_tiles = 0, lean_tiles = 0;
    int rows = 0;  ///< query rows of an output tile that exist
  };
  Part decodes, chunks;
  /// All output tiles, where they read about as many tokens and have all their rows; 0 where that is not known.
  std::int64_t alike = 0;

  std::int64_t output_tiles() const { return saturating_sum(decodes.output_tiles, chunks.output_tiles); }
  std::int64_t lean_tiles() const { return saturating_sum(decodes.lean_tiles, chunks.lean_tiles); }
};

/// The step must have a mix.
MixedLine mixed_line(const DecodeStep& step, const KernelSpec& spec, const KernelLayout& layout);

}  // namespace v1
}  // namespace leanattn
