// warps.hpp -- what the families have in common whose warps each load KV for themselves, take steps of their own and
// have a softmax state of their own. Any thread. Internal to this folder.
#pragma once

#include "generator/families/family.hpp"

namespace leanattn {
inline namespace v1 {

/// Accumulator and query fragments take 3/8 * head_dim registers for every eight query rows.
int most_rows_of_warps(const KernelSpec& spec);
/// query_bytes: of shared memory for a warp's queries.
void lay_out_warps(const KernelSpec& spec, KernelLayout& layout, int query_bytes);
/// Errors: unsupported, for rows with a format of their own, and for scales that the load path does not bring.
Result<void> refuse_row_format(const KernelSpec& spec);
/// The modules with which warps find tokens in memory.
void add_modules_of_warps(KernelSource& source);
void add_constants_of_warps(KernelSource& source, ConstantGroup group);
std::span<const DefaultDepth> default_depths_of_warps(const KernelSpec& base);

}  // namespace v1
}  // namespace leanattn
