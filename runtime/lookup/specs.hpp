// specs.hpp -- kernel specs for a problem: the part that the problem fixes, and tunables that come from another spec.
// Pure functions; any thread.
#pragma once

#include "generator/kernel_spec.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// The spec that the problem fixes (arch, heads, dtype, layout, lse, pdl, features), with the tunables at their
/// defaults. Its pdl is false where the arch has no dependent launches.
KernelSpec base_spec(Arch arch, const DecodeProblem& problem);

/// `base` with the tunables of `from`. Where these do not fit, the ring gets fewer stages and then each SM fewer CTAs,
/// until the spec is valid. Errors: those of validate(spec), when nothing fits; unsupported, when `from` has the load
/// path vector and its lanes share the rows of this head_dim in another way, so that its speed says nothing.
Result<KernelSpec> with_tunables_of(const KernelSpec& base, const KernelSpec& from);

/// Whether two specs are of one problem and arch.
bool differ_in_tunables_only(const KernelSpec& a, const KernelSpec& b);

/// Whether GPUs of this arch can start a kernel before the one in front of it has ended.
bool has_dependent_launch(Arch arch);

/// The canonical problem as GPUs of this arch launch it: without pdl where they have no dependent launches.
DecodeProblem as_launched(DecodeProblem problem, Arch arch);

}  // namespace v1
}  // namespace leanattn
