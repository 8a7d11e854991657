// plan.hpp -- VerifyKernel and PlannedCase: which kernels without features `verify` runs, on which shapes.
// feature_plan.hpp and random_plan.hpp have those with features. Pure functions of the architecture; any thread; no
// GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {

/// A kernel to verify: one or more specs that differ only in tunables. The first one that compiles without spills runs.
struct VerifyKernel {
  std::string group;              ///< of the report, such as "bf16 d128 cp_async"
  std::vector<KernelSpec> specs;  ///< valid specs, in order of preference; never empty
  bool required = true;           ///< whether it is a failure, and not only counted, when all of them spill; so for
                                  ///< cp_async, so that every problem has a kernel
};

/// What a decode case has beside the spec's heads and features.
struct CaseShape {
  int kv_heads = 1;
  std::vector<int> context_lengths = {};
  int context_capacity = 0;  ///< 0: it follows from the lengths
  bool padded = false;
  DataKind data = DataKind::uniform;
  std::vector<int> query_tokens = {};  ///< with ragged_q; empty: drawn from the seed
  int shared_prefix = 0;               ///< how many first tokens requests share
  int hole_every = 0;                  ///< with pages: one of so many entries of the page table is a hole; 0: none
};

/// A shape, the grids to launch on it, and how often each is launched.
struct PlannedCase {
  CaseShape shape;
  std::vector<std::int64_t> grids;
  int launches = 1;
};

/// The tunables that the plan takes in rotation.
struct Tunables {
  int warps = 4, warp_tokens = 16, steps_per_tile = 4, stages = 2, ctas_per_sm = 1;
  bool pdl = false;
};
const std::vector<Tunables>& verify_tunables();
/// `base` with these tunables, adapted to what load path and architecture have: one stage for ldg, no pdl before sm_90.
KernelSpec with_tunables(KernelSpec base, const Tunables& tunables);

/// The load paths of this architecture.
std::vector<LoadPath> load_paths_of(Arch arch);
/// All valid and different variants of `base`, beginning with entry `first` of verify_tunables().
std::vector<KernelSpec> kernel_variants(const KernelSpec& base, std::size_t first);
/// `base` with the tunables that need the fewest registers and the least shared memory, for when others do not compile.
KernelSpec modest_variant(const KernelSpec& base);

/// Every combination of dtype, head size, group, load path, fix-up, layout and LSE that this architecture has, with
/// tunables taken in rotation, and then every entry of verify_tunables() for a few heads. Neighbours share dtype, head
/// size, group and layout, so that they share data.
std::vector<VerifyKernel> verify_combinations(Arch arch);

/// The shapes that every kernel of verify_combinations() runs on: an empty request among short ones, padded strides
/// with a request of one token, and one long request that many CTAs share, so that the fix-up becomes a ticket tree.
std::vector<PlannedCase> combination_cases(const KernelSpec& spec);

/// The kernels that the themes run on. Together they have every dtype, head size, layout, load path and fix-up.
std::vector<VerifyKernel> representative_kernels(Arch arch);

/// The groups (query heads per KV head) of the combinations: 1 to 16, and a few more up to 64.
const std::vector<int>& verify_groups();

}  // namespace v1
}  // namespace leanattn
