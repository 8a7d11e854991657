// search_space.hpp -- the kernels and grids that the tuner considers for a device and a problem. Pure functions; any
// thread. The same input always gives the same list in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/lookup/decode_step.hpp"
#include "runtime/lookup/residency.hpp"
#include "tuner/model/cost_model_fit.hpp"

namespace leanattn {
inline namespace v1 {

/// The cost model cannot tell candidates apart whose predictions are closer than this. They are a tie.
inline constexpr double kModelResolution = 0.03;

/// Every spec of this problem that the generator accepts and that may be worth compiling: all combinations of load
/// path, warps, tokens a warp, stages, tile and CTAs per SM, with the ticket fix-up, and where partials are large with
/// the fix-up wait as well. Specs whose registers cannot suffice are left out, and so are those that differ from
/// another one only in name. All have programmatic dependent launch where the problem asks for it and the device has
/// it, else none has.
std::vector<KernelSpec> all_specs(const DeviceFacts& device, const DecodeProblem& problem);

/// `count` kernels, most promising first: the usual ones, which won for other problems, and then those that each pair
/// of a step and a load path names in turn as its next best by the model. These are of all_specs(), or have the fix-up
/// wait instead where the model expects it to be faster for that step. Among specs that the model cannot tell apart
/// (3 %) a fixed shuffle chooses, so that the list is diverse. The steps share the list, since a kernel is compiled
/// once for all of them. They are of one problem and device, and at least one.
std::vector<KernelSpec> choose_specs(const CostModel& model, std::span<const DecodeStep> steps, std::size_t count);

/// Valid specs one step from `spec` in one parameter (stages, warps, tokens a warp, tile, CTAs per SM, load path,
/// fix-up), or with twice the tokens a warp and half the warps, or the reverse.
std::vector<KernelSpec> neighbours(const KernelSpec& spec);

/// A configuration with the time that the model expects.
struct RankedConfig {
  Config config;
  double predicted_us = 0;
};

/// Every grid of this spec that is considered for the step: useful_grids(), without those that are not co-resident
/// where the fix-up waits. The best prediction comes first, and among equal ones the smaller grid.
std::vector<RankedConfig> rank_grids(const ModelParameters& parameters, const DecodeStep& step, const KernelSpec& spec,
                                     int resident);

/// The first `count` of `ranked` whose grids differ from each other by more than `distance` (relative).
std::vector<RankedConfig> spread(std::span<const RankedConfig> ranked, std::size_t count, double distance = 0.08);

/// The context lengths that a shape stands for, one for each sequence of the batch: the first one has the longest
/// context, and the others share the rest of the total equally. Each is within 0 .. longest. Of a mixed step, the
/// chunks come last and share their contexts equally. The shape need not be canonical.
std::vector<int> context_lengths_of(const Shape& shape);
/// The query tokens of the same requests: one, and those of the chunks in equal shares; empty where there is no mix.
std::vector<int> query_tokens_of(const Shape& shape);

}  // namespace v1
}  // namespace leanattn
