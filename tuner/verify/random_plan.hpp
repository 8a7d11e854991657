// random_plan.hpp -- the random combinations of features, heads, tunables and shapes that `verify` checks. Pure
// functions of architecture and seed; any thread; no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tuner/verify/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// `count` different kernels with random heads, features, load paths and tunables that validate() accepts, all in one
/// group. The same arguments always give the same kernels.
std::vector<VerifyKernel> random_kernels(Arch arch, std::uint64_t seed, std::size_t count);
/// Random shapes for such a kernel. They follow from the seed and the kernel's name alone.
std::vector<PlannedCase> random_cases(const KernelSpec& spec, std::uint64_t seed);

inline constexpr std::size_t kRandomCasesPerKernel = 8;
inline constexpr std::size_t kQuickCasesPerKernel = 3;  ///< the first of them, which a cross-section has

/// The same for groups of 2 to 8 ranks that share contexts (rank_plan.hpp): different kernels, and the lengths of their
/// cases.
std::vector<VerifyKernel> random_rank_kernels(Arch arch, std::uint64_t seed, std::size_t count);
std::vector<std::vector<int>> random_rank_lengths(const KernelSpec& spec, std::uint64_t seed);

}  // namespace v1
}  // namespace leanattn
