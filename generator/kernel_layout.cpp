#include "generator/kernel_layout.hpp"

#include <algorithm>

#include "generator/families/family.hpp"
#include "generator/families/shared_layout.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

void lay_out_rows(const KernelSpec& spec, KernelLayout& layout) {
  const int rows = query_rows(spec.features, spec.group), most = layout.family->most_rows(spec);
  layout.row_blocks = (rows + most - 1) / most;
  layout.rows = (rows + layout.row_blocks - 1) / layout.row_blocks;
}

void lay_out_threads(const KernelSpec& spec, KernelLayout& layout) {
  layout.threads = 32 * (spec.warps + layout.producer_warps);
  layout.registers = 65536 / (layout.threads * std::max(spec.ctas_per_sm, 1));
}

int strip_loads(const KernelSpec& spec, const KernelLayout& layout) {
  // Both fix-ups have one layout of states. Where columns share one, a warp that merges by tickets votes on whether all
  // of its columns have come, so none of its lanes may be without a column.
  const int threads = 32 * spec.warps, columns = layout.partial_columns;
  if (columns / threads < 4 || columns % 32 != 0) return 1;
  // n of them take about 8 n registers.
  return columns / threads < 8 || layout.registers < 112 ? 4 : 8;
}

void lay_out_partials(const KernelSpec& spec, KernelLayout& layout) {
  constexpr int kManyColumns = 2048, kManyBytes = 32768;
  layout.partial_columns = layout.rows * value_dim(spec) / 4;
  layout.counts_partials = spec.fixup == FixUp::wait && layout.family->counts_partials;
  layout.strip_loads = strip_loads(spec, layout);
  layout.state_columns = layout.counts_partials ? 4 : std::max(layout.strip_loads / 4, 1);
  layout.partial_floats = lean_partial_floats(4 * layout.partial_columns, layout.state_columns);
  layout.keeps_partials_by_hint =
      !spec.features.batch_invariant && (layout.counts_partials || 4 * layout.partial_floats > kManyBytes);
  layout.has_large_partials = spec.features.latent && layout.partial_columns >= kManyColumns;
}

}  // namespace

KernelLayout layout_of(const KernelSpec& spec) { return layout_of(spec, family_of(spec)); }

KernelLayout layout_of(const KernelSpec& spec, const KernelFamily& family) {
  // Beside the dynamic part of shared memory there are tickets, barriers and what the search in a large batch needs.
  KernelLayout layout;
  layout.family = &family, layout.static_bytes = 1024;
  lay_out_rows(spec, layout);
  layout.family->lay_out(spec, layout);
  lay_out_threads(spec, layout);
  lay_out_partials(spec, layout);
  return layout;
}

}  // namespace v1
}  // namespace leanattn
