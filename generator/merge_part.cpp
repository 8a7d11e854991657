// merge_part.cpp -- the modules and constants with which CTAs merge partials and write results.
#include <fmt/format.h>

#include "generator/families/family.hpp"
#include "generator/kernel_source.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Columns that a thread merges together, each a multiple of the CTA's worker threads apart.
int merge_columns(const KernelSpec& spec, const KernelLayout& layout) {
  const int pairs = 2 * 32 * spec.warps * 4;  // values that the workers take at once, with two columns each
  const bool whole = layout.rows * value_dim(spec) % pairs == 0;
  return layout.has_large_partials && whole && layout.registers >= 200 ? 2 : 1;
}

}  // namespace

int merge_batch(const KernelLayout& layout) { return layout.registers >= 112 ? 8 : 4; }

void add_merge_constants(KernelSource& source) {
  const KernelSpec& spec = source.spec;
  const KernelLayout& layout = source.layout;
  source.flag("kMerges", source.variant != KernelVariant::unmerged, "CTAs that share an output tile merge partials");
  if (spec.fixup == FixUp::ticket) {
    source.constant("unsigned", "kMergeBatch", fmt::to_string(merge_batch(layout)),
                    "partials whose loads are in flight together, as registers allow");
    source.number("kMergeColumns", merge_columns(spec, layout), "columns that a thread merges together");
  }
  source.flag("kColumnsInBlocks", layout.holds_results && layout.rows % 8 == 0,
              "how columns of partials are numbered (merge/partial.cuh)");
  source.number("kStateColumns", layout.state_columns, "columns of a partial that share a state");
  if (spec.fixup == FixUp::wait && layout.strip_loads > 1) {
    source.number("kStripLoads", layout.strip_loads, "columns of partials that a thread asks for at once");
    source.flag("kCountsPartials", layout.counts_partials, "partials are counted, instead of announcing themselves");
  }
}

void add_merge(KernelSource& source) {
  const KernelLayout& layout = source.layout;
  const bool group = in_group(source.spec.features), counts = layout.counts_partials;
  source.add({"merge/partial.cuh", "merge/output.cuh"});
  if (!layout.holds_results) source.add({"merge/states.cuh"});
  source.add({"merge/workspace.cuh", layout.keeps_partials_by_hint ? "merge/l2_hint.cuh" : "merge/l2_prefetch.cuh"});
  if (group) source.add({"merge/exchange.cuh", "merge/send_columns.cuh"});
  source.add({"merge/destination.cuh"});
  if (layout.holds_results) {
    source.add({layout.family->result_columns, "merge/held_results.cuh",
                layout.writes_rows ? "merge/write_rows.cuh" : "merge/write_columns.cuh"});
  } else {
    source.add({"merge/buffer_results.cuh"});
  }
  if (source.spec.fixup == FixUp::ticket) {
    source.add({"merge/ticket.cuh"});
    if (layout.family->counts_partials) source.add({"merge/no_pairs.cuh"});
  } else {
    if (layout.strip_loads == 1) {
      source.add({"merge/slice.cuh"});
    } else {
      source.add({counts ? "merge/counted_partials.cuh" : "merge/announced_partials.cuh", "merge/share_strips.cuh"});
    }
    source.add({"merge/shared_tiles.cuh", counts ? "merge/wait_counted.cuh" : "merge/wait.cuh"});
  }
  if (group) source.add({"merge/receive_columns.cuh"});
  source.add({"merge/finish_segment.cuh"});
}

}  // namespace v1
}  // namespace leanattn
