// search_space.hpp -- which kernels and grids the tuner considers for a device and a problem. Pure functions; the same
// input always gives the same list in the same order. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/problem.hpp"
#include "tuner/model_fit.hpp"

namespace leanattn {
inline namespace v1 {

/// Every spec of this problem that the generator accepts and that may be worth compiling: load path x warps x tokens a
/// warp x stages x tile x CTAs per SM, ticket fix-up. Left out are those whose registers cannot suffice and those that
/// differ from another only in name. All with programmatic dependent launch where the problem asks for it and the
/// device has it, else none.
std::vector<KernelSpec> all_specs(const DeviceFacts& device, const DecodeProblem& problem);

/// CTAs that one SM will hold, guessed before the compiler has said how many registers the kernel takes. At least 1.
int guess_resident(const DeviceFacts& device, const KernelSpec& spec);

/// `count` of all_specs(), most promising first: every (shape, load path) names its best by the model in turn, and
/// among specs that the model cannot tell apart (3 %) a fixed shuffle chooses, so that the list is diverse. The shapes
/// share the list: a kernel is compiled once.
std::vector<KernelSpec> choose_specs(const CostModel& model, const DeviceFacts& device, const DecodeProblem& problem,
                                     std::span<const Shape> shapes, std::size_t count);

/// Valid specs one step from `spec` in one parameter (stages, warps, tokens a warp, tile, CTAs per SM, load path,
/// fix-up).
std::vector<KernelSpec> neighbours(const KernelSpec& spec);

/// A configuration with what the model expects of it.
struct RankedConfig {
  Config config;
  double predicted_us = 0;
};

/// Every grid of this spec to be considered for the shape (useful_grids(), without those that a waiting fix-up could
/// not have co-resident), best predicted first; ties towards the smaller grid.
std::vector<RankedConfig> rank_grids(const ModelParameters& parameters, const DeviceFacts& device,
                                     const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec,
                                     int resident);

/// The first `count` of `ranked` whose grids differ from each other by more than `distance` (relative).
std::vector<RankedConfig> spread(std::span<const RankedConfig> ranked, std::size_t count, double distance = 0.08);

/// Context lengths that a shape stands for: one request of the longest context, the rest of the total shared equally.
/// Canonical or not; [batch], each within 0 .. longest.
std::vector<int> context_lengths_of(const Shape& shape);

}  // namespace v1
}  // namespace leanattn
