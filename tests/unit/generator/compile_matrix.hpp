// compile_matrix.hpp -- the kernels of the compile matrix. Pure functions of the run's seed; any thread.
#pragma once

#include <span>
#include <vector>

#include "generator/generator.hpp"

namespace leanattn {

/// A kernel with default tunables, and as many warps as fit the shared memory of this arch.
KernelSpec matrix_spec(Arch arch, DType dtype, int head_dim, LoadPath load, FixUp fixup, int group);

/// How much of the matrix a run has, as each function says.
enum class Combinations { covering, all };

/// `covering` has every load path on every arch with one of the four head_dims, and of their dtypes and fix-ups one
/// pair, in turn. The seed of the run decides which ones an arch has; the next arch has others. Of what only Hopper
/// has, it has every fourth kernel. `all` has everything, and every head_dim with every pair.
std::vector<KernelSpec> matrix(Combinations combinations);

/// The features of features_matrix().
std::span<const Features> matrix_features();

/// Each feature, with the load paths in turn; the second of two arches gets what the first did not. Then uncommon
/// head_dims and latent caches. `covering` has every second feature on Hopper, half of the others on one other arch
/// each, and uncommon head_dims on every other arch; the seed of the run says which.
std::vector<KernelSpec> features_matrix(Combinations combinations);

}  // namespace leanattn
