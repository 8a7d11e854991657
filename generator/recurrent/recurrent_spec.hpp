// recurrent_spec.hpp -- RecurrentSpec: one kernel of operation `recurrent`: a problem and tunables; its source; and the
// tunables that can be tried. Pure functions of the spec; any thread.
#pragma once

#include <string>
#include <vector>

#include "generator/recurrent/recurrent_problem.hpp"

namespace leanattn {
inline namespace v1 {

struct RecurrentTunables {
  int warps = 4;        ///< of a CTA, 1..16
  int warp_rows = 8;    ///< rows of V that a warp keeps in registers
  int row_lanes = 8;    ///< lanes over which the K columns of a row lie, 4..32: fewer make shorter sums and need more
                        ///< registers for q and k
  int ctas_per_sm = 1;  ///< occupancy that the register allocator must allow (__launch_bounds__)

  bool operator==(const RecurrentTunables&) const = default;
};

struct RecurrentSpec {
  Arch arch{9, 0, true};
  RecurrentProblem problem;
  RecurrentTunables tunables;

  bool operator==(const RecurrentSpec&) const = default;
};

/// Rows of V of a CTA. value_dim is a multiple of it.
int rows_of_cta(const RecurrentTunables& tunables);
/// CTAs that share a head.
int ctas_of_head(const RecurrentSpec& spec);

/// CTAs that normalise an output together, a cluster; 1 without a norm.
int ctas_of_cluster(const RecurrentSpec& spec);
/// More than these must be asked for (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED).
inline constexpr int kPortableCtasOfCluster = 8;

/// Whether a kernel of this spec can exist. Errors: those of validate(problem); invalid_argument, unsupported.
Result<void> validate(const RecurrentSpec& spec);

/// Short, stable, filename-safe identity, such as "recurrent_sm90a_gated_delta_bf16_fp32_h16x32_k128_v128_w4x8_l8_o1".
std::string kernel_name(const RecurrentSpec& spec);

/// One flat translation unit without includes, and what a host needs to launch it: ctas_of_head() x v_heads x requests
/// CTAs, with LeanRecurrentArgs (templates/recurrent/arguments.cuh) by value and no dynamic shared memory.
struct EmittedRecurrent {
  RecurrentSpec spec;
  std::string source;  ///< same bytes for the same spec
  std::string entry;   ///< extern "C" symbol of the kernel
  int threads = 0;     ///< CTA size
};
/// Errors: those of validate(spec).
Result<EmittedRecurrent> emit(const RecurrentSpec& spec);

/// As that of attention's kernels: a hash over the code of its modules and its constants. The spec is valid.
std::string kernel_revision(const RecurrentSpec& spec);

/// All tunables with which the problem has kernels that are worth trying, the search space.
std::vector<RecurrentTunables> recurrent_search_space(Arch arch, const RecurrentProblem& problem);

}  // namespace v1
}  // namespace leanattn
