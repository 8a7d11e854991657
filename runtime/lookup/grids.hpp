// grids.hpp -- grids of a launch: which ones are worth considering for a shape, and which one suits a shape that nobody
// measured. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// The most output tiles of a launch: batch * kv_heads * row_blocks, and with a selection as many for each query token.
/// Saturates at INT64_MAX. Of a step, requests bring no more prefill than their contexts have, and with a
/// mix what that says.
std::int64_t output_tiles(const DecodeProblem& problem, int batch, const KernelSpec& spec);
std::int64_t output_tiles(const DecodeStep& step, const KernelSpec& spec);
/// LeanTiles on the line, of visible tokens only. Every request counts with the average length, and with a
/// mix every decode and every chunk. Saturates at INT64_MAX.
std::int64_t lean_tiles(const DecodeStep& step, const KernelSpec& spec);

/// CTAs of this spec that are certainly resident at once: as many as its launch bounds promise, on every SM.
std::int64_t resident_grid(const DeviceFacts& device, const KernelSpec& spec);

/// The grids to consider for a shape: powers of two, multiples and shares of the number of SMs, multiples and divisors
/// of the number of output tiles, FlashAttention-2's and FlashDecoding's grids, each of at most two waves; and one CTA
/// for each output tile or LeanTile. A grid never has more CTAs than there are LeanTiles, and that of a spec that waits
/// or takes prefill at most `resident_ctas_per_sm` on each SM. Sorted, without repetitions, never empty.
std::vector<std::int64_t> useful_grids(const DecodeStep& step, const KernelSpec& spec, int resident_ctas_per_sm);

/// The grid for a ragged batch: as many CTAs as are resident at once. segment_cost() makes their ranges take equally
/// long.
std::int64_t ragged_grid(const DecodeStep& step, const KernelSpec& spec);
/// Config::segment_cost where none was measured: for a ragged batch the time that starting and ending a segment takes,
/// in LeanTiles, else 0.
int segment_cost(const DecodeStep& step, const KernelSpec& spec);

/// Config::l2_promotion where none was measured: 256 on load path tensor for a step that reads at most 24 MiB, else
/// 128. The bytes are those of the shape and not of what the cache has room for.
int l2_promotion(const DecodeStep& step, const KernelSpec& spec);
/// Config::l2_promotion of a `tuned` configuration for another step and spec: it stays what was measured, unless
/// l2_promotion() tells the two apart.
int carry_l2_promotion_over(const DecodeStep& tuned_step, const Config& tuned, const DecodeStep& step,
                            const KernelSpec& spec);

/// The grid that does for `step` what `tuned.grid` did for `tuned_step`: it takes the same share of the GPU, and gives
/// every output tile the same number of CTAs where the tuned one did. `spec` may differ from `tuned.spec`.
std::int64_t carry_grid_over(const DecodeStep& tuned_step, const Config& tuned, const DecodeStep& step,
                             const KernelSpec& spec);

}  // namespace v1
}  // namespace leanattn
