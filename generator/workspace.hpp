// workspace.hpp -- size and layout of the device workspace one launch needs. Plain arithmetic; any thread.
#pragma once

#include <cstdint>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// Workspace = two fp32 partials per slot (a CTA; see partial_slots) (un-normalised O with row max and row sum, of one
/// row block), one 4-byte ticket per slot and one 4-byte counter per output tile. All of it must be zero before the
/// first launch, and is zero again after every completed one, so launches of different kernels and shapes may share one
/// workspace in turn. Offsets in bytes from a 256-byte aligned base.
struct WorkspaceLayout {
  std::int64_t slots = 0;
  std::int64_t partials_offset = 0;  ///< float [slots, 2, partial_floats]
  std::int64_t tickets_offset = 0;   ///< uint32 [slots + output_tiles]
  std::int64_t total_bytes = 0;      ///< zero all of it once
};

/// Floats of one partial: O [rows_per_block, head_dim], and (row max, row sum) once per four of them.
int partial_floats(const KernelSpec& spec);

/// How many pairs of partials a launch needs room for: the CTAs of its grid, or, of a batch-invariant kernel, the
/// LeanTiles that contexts of up to `context_capacity` tokens can have. output_tiles: max_batch * kv_heads *
/// row_blocks(spec). Saturates at INT64_MAX.
std::int64_t partial_slots(const KernelSpec& spec, std::int64_t grid, std::int64_t output_tiles,
                           std::int64_t context_capacity);

/// slots: partial_slots(). Both positive; 64-bit safe.
WorkspaceLayout workspace_layout(const KernelSpec& spec, std::int64_t slots, std::int64_t output_tiles);

}  // namespace v1
}  // namespace leanattn
