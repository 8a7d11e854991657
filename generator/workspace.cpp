#include "generator/workspace.hpp"

#include <algorithm>

#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

#include "templates/line/schedule.cuh"

}  // namespace

std::int64_t partial_slots(const KernelSpec& spec, std::int64_t grid, std::int64_t output_tiles,
                           std::int64_t context_capacity) {
  if (!spec.features.batch_invariant) return grid * layout_of(spec).most_passes;
  const auto tiles =
      static_cast<std::int64_t>(lean_most_tiles(static_cast<std::uint64_t>(std::max<std::int64_t>(0, context_capacity)),
                                                static_cast<unsigned>(spec.tile), spec.features.sink_tokens));
  return saturating_product(tiles, output_tiles);
}

WorkspaceLayout workspace_layout(const KernelSpec& spec, std::int64_t slots) {
  const KernelLayout kernel = layout_of(spec);
  // A second walk has a slot in each CTA behind those of the first one.
  const std::int64_t few_slots = kernel.few_partial_floats > 0 ? slots / kernel.most_passes : 0;
  WorkspaceLayout layout;
  layout.tickets_offset = 0;
  layout.partials_offset = round_up((slots + few_slots) * 4, 256);
  layout.total_bytes = layout.partials_offset +
                       round_up((slots * kernel.partial_floats + few_slots * kernel.few_partial_floats) * 2 * 4, 256);
  return layout;
}

}  // namespace v1
}  // namespace leanattn
