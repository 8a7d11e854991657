#include "generator/workspace.hpp"

namespace leanattn {
inline namespace v1 {

int partial_floats(const KernelSpec& spec) {
  // kPartialFloats of templates/partial.cuh; the emitted source asserts that they agree.
  return rows_per_block(spec) * spec.head_dim / 4 * 6;
}

WorkspaceLayout workspace_layout(const KernelSpec& spec, std::int64_t grid, std::int64_t output_tiles) {
  const auto round_up = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  WorkspaceLayout layout;
  layout.tickets_offset = 0;
  layout.partials_offset = round_up((grid + output_tiles) * 4);
  layout.total_bytes = layout.partials_offset + round_up(grid * 2 * partial_floats(spec) * 4);
  return layout;
}

}  // namespace v1
}  // namespace leanattn
