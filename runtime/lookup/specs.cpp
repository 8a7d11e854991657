// specs.cpp -- what the problem fixes of a spec, and tunables that are made to fit it.
#include "runtime/lookup/specs.hpp"
#include "generator/kernel_layout.hpp"
#include "generator/kv_encoding.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

/// The number of pieces in which a lane reads its share of a row (templates/attend/vector.cuh). Rows of one piece
/// stream at the memory's rate, in 1.01 to 1.05 times the read limit; rows of 96 dims have three pieces and take 1.3
/// to 1.4 times the read limit.
int vector_lane_chunks(int head_dim) {
  const int lanes = head_dim % 256 == 0 ? 32 : head_dim % 128 == 0 ? 16 : head_dim % 64 == 0 ? 8 : 4;
  return head_dim / 8 / lanes;
}

/// `spec` with what the problem and the arch of `base` fix.
KernelSpec of_problem(const KernelSpec& base, KernelSpec spec) {
  spec.arch = base.arch;
  spec.head_dim = base.head_dim;
  spec.group = base.group;
  spec.dtype = base.dtype;
  spec.layout = base.layout;
  spec.lse = base.lse;
  spec.pdl = base.pdl;
  spec.features = base.features;
  return spec;
}

}  // namespace

bool differ_in_tunables_only(const KernelSpec& a, const KernelSpec& b) { return of_problem(b, a) == a; }

KernelSpec base_spec(Arch arch, const DecodeProblem& problem) {
  KernelSpec spec;
  spec.arch = arch;
  spec.head_dim = problem.head_dim;
  spec.group = problem.q_heads / problem.kv_heads;
  spec.dtype = problem.dtype;
  spec.layout = problem.layout;
  spec.lse = problem.lse;
  spec.pdl = as_launched(problem, arch).pdl;
  spec.features = canonical(problem).features;
  return spec;
}

bool has_dependent_launch(Arch arch) { return arch.major >= 9; }

DecodeProblem as_launched(DecodeProblem problem, Arch arch) {
  // Lanes that bring scales with the rows of their tokens never start early (generator/families/mma.cpp).
  problem.pdl = problem.pdl && has_dependent_launch(arch) &&
                (!stages_scales(problem.features) || boxes_bring_all(problem.features, problem.layout));
  return canonical(std::move(problem));
}

Result<KernelSpec> with_tunables_of(const KernelSpec& base, const KernelSpec& from) {
  if (from.load == LoadPath::vector && vector_lane_chunks(base.head_dim) != vector_lane_chunks(from.head_dim)) {
    return fail(ErrorCode::unsupported,
                fmt::format("load path vector as it was tuned for head_dim {}, with {}", from.head_dim, base.head_dim),
                "Tune this head_dim: there the lanes share rows in another way.");
  }
  KernelSpec spec = of_problem(base, from);
  if (spec.features.batch_invariant) spec.fixup = FixUp::ticket;
  if (layout_of(spec).consumer_registers > 0) spec.ctas_per_sm = 1;  // validate() says why
  for (;;) {
    const auto valid = validate(spec);
    if (valid) return spec;
    if (valid.error().code != ErrorCode::unsupported) return tl::unexpected(valid.error());
    // The number of stages of a ring is a multiple of the number of warpgroups that share it.
    const int step = layout_of(spec).producer_warps > 0 ? std::max(1, spec.warps / 4) : 1;
    if (spec.stages > step) {
      spec.stages -= step;
    } else if (spec.ctas_per_sm > 1) {
      --spec.ctas_per_sm;
    } else {
      return tl::unexpected(valid.error());
    }
  }
}

}  // namespace v1
}  // namespace leanattn
