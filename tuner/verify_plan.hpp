// verify_plan.hpp -- which kernels and shapes `verify` runs. Pure functions of the architecture; any thread; no GPU.
// The kernels with features are in verify_feature_plan.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "tuner/random_data.hpp"

namespace leanattn {
inline namespace v1 {

/// A kernel to verify: one or more specs that differ in tunables only. The first that validates and compiles without
/// spills runs.
struct VerifyKernel {
  std::string group;              ///< report group, e.g. "bf16 d128 cp_async"
  std::vector<KernelSpec> specs;  ///< valid specs, in order of preference; never empty
  bool required = true;  ///< that all of them spill is a failure; otherwise it is only counted. cp_async must always
                         ///< work, so that every problem has a kernel
};

/// A shape to check, apart from the heads.
struct CaseShape {
  int kv_heads = 1;
  std::vector<int> context_lengths = {};
  int context_capacity = 0;  ///< 0: from the lengths
  bool padded = false;
  DataKind data = DataKind::uniform;
  std::vector<int> query_tokens = {};  ///< of a ragged_q kernel; empty: drawn from the seed
  int shared_prefix = 0;               ///< tokens whose pages requests share
};

/// A shape, the grids to launch on it, and how often each time.
struct PlannedCase {
  CaseShape shape;
  std::vector<std::int64_t> grids;
  int launches = 1;
};

/// The tunables that the plan rotates through: tile, warps x tokens, stages, CTAs per SM, programmatic launch.
struct Tunables {
  int warps = 4, warp_tokens = 16, steps_per_tile = 4, stages = 2, ctas_per_sm = 1;
  bool pdl = false;
};
const std::vector<Tunables>& verify_tunables();
/// `base` with these tunables, bent to what the load path and the arch know (one stage for ldg, no pdl below sm_90).
KernelSpec with_tunables(KernelSpec base, const Tunables& tunables);

/// The load paths that this arch has.
std::vector<LoadPath> load_paths_of(Arch arch);
/// All valid variants of `base`, starting with entry `first` of verify_tunables(); duplicates (after bending) dropped.
std::vector<KernelSpec> kernel_variants(const KernelSpec& base, std::size_t first);
/// `base` with the tunables that ask least of a GPU, for want of any that the compiler accepts.
KernelSpec modest_variant(const KernelSpec& base);

/// Every dtype x head_dim x group x load path x fix-up x layout x LSE that this arch has, each with tunables taken in
/// rotation, then every entry of verify_tunables() for a few heads. quick: a cross-section that still meets every value
/// of every feature. Neighbours share dtype, head_dim, group and layout, so their data can be reused.
std::vector<VerifyKernel> verify_combinations(Arch arch, bool quick);

/// Kernels that the themes (contexts one by one, ragged batches, graphs ...) run on: every value of every feature is
/// met.
std::vector<VerifyKernel> representative_kernels(Arch arch, bool quick);

/// Groups (query heads per KV head) that the combinations cover: 1..16, then a few up to 64.
const std::vector<int>& verify_groups();

}  // namespace v1
}  // namespace leanattn
