// workspace.hpp -- size and layout of the device workspace one launch needs. Plain arithmetic; any thread.
#pragma once

#include <cstdint>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// The workspace holds, for each slot (see partial_slots), two partials and a 4-byte counter. A partial is the
/// un-normalised O of a row block with its row maxima and sums, in fp32. All of it must be zero before the first
/// launch, and is zero again after every completed one, so that launches of different kernels and shapes may share one
/// workspace in turn. Offsets are in bytes from a base that is aligned to 256 bytes.
struct WorkspaceLayout {
  std::int64_t partials_offset = 0;  ///< float [slots, 2, partial_floats]
  std::int64_t tickets_offset = 0;   ///< uint32 [slots]
  std::int64_t total_bytes = 0;      ///< all of which the caller zeroes once
};

/// How many slots a launch needs: one for each range of a CTA of its grid, or, of a batch-invariant kernel, one for
/// each LeanTile that contexts of up to `context_capacity` tokens can have. output_tiles: max_batch * kv_heads *
/// row_blocks of the layout, with a selection as many for each query token. Saturates at INT64_MAX.
std::int64_t partial_slots(const KernelSpec& spec, std::int64_t grid, std::int64_t output_tiles,
                           std::int64_t context_capacity);

/// slots: as partial_slots() says. Both are positive.
WorkspaceLayout workspace_layout(const KernelSpec& spec, std::int64_t slots);

}  // namespace v1
}  // namespace leanattn
