// rank_plan.hpp -- what `verify` checks of groups whose ranks share contexts: kernels and shapes. Pure functions of the
// architecture; any thread; no GPU. verify_ranks() runs them, with all ranks on one GPU.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tuner/verify/plan.hpp"
#include "tuner/verify/runner.hpp"

namespace leanattn {
inline namespace v1 {

/// Kernels of groups on every load path and with both fix-ups, which together have 1 to 8 query heads per KV head, one
/// and several query tokens, dense and paged caches, one-byte elements, latent heads, 2 to 8 ranks, both placements of
/// the output, contexts in contiguous parts and in units of several sizes; and windows, scores that depend on positions
/// and new tokens.
std::vector<VerifyKernel> rank_kernels(Arch arch);

/// Kernels of parts whose results are merged over NCCL, on every load path and with both fix-ups: with causal masks,
/// windows, scores that depend on positions, and new tokens, over both ways of dealing contexts.
std::vector<VerifyKernel> rank_part_kernels(Arch arch);

/// The lengths of the whole contexts of such a kernel's cases: those of the first launches, and others of as many
/// requests, which take turns with them in graphs.
std::vector<std::vector<int>> rank_lengths(const KernelSpec& spec);
/// The tokens for which requests have room.
inline constexpr int kRankCapacity = 2500;

/// The whole case that the ranks of such a kernel share: its heads, dense, on one GPU.
KernelSpec whole_spec(KernelSpec spec);
/// The KV heads of its cases, which the ranks can share out.
int rank_kv_heads(const KernelSpec& spec);

/// The features of the group for whose ranks a kernel of rank_kernels() or rank_part_kernels() is.
Features group_of(const Features& features);

/// Checks every kernel against the oracle of the whole contexts, whose lengths `lengths_of` gives as rank_lengths()
/// does. `kernels` are the next ones that `queue` hands out. There are ragged lengths with ranks that hold nothing,
/// repeated launches that must agree bit for bit, and one launch captured into a graph a rank whose lengths change.
/// Errors: context_lost, out_of_memory, nvrtc_missing.
Result<void> verify_ranks(VerifyRunner& runner, std::span<const VerifyKernel> kernels, CompileQueue& queue,
                          const std::function<std::vector<std::vector<int>>(const KernelSpec&)>& lengths_of);

}  // namespace v1
}  // namespace leanattn
