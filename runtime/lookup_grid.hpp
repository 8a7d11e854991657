// lookup_grid.hpp -- grids for shapes nobody measured: carried over from a measured one, or ranked by a rough schedule
// model. Internal to the look-up. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "runtime/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// CTAs of this spec that are surely resident at once: what its launch bounds promise on every SM.
std::int64_t resident_grid(const DeviceFacts& device, const KernelSpec& spec);

/// The grid that means for `shape` what `tuned.grid` meant for `tuned_shape`: the same share of the GPU, and equal
/// numbers of CTAs per output tile where the tuned one had that. Both specs need not be equal.
std::int64_t carry_grid_over(const DeviceFacts& device, const DecodeProblem& tuned_problem, const Shape& tuned_shape,
                             const Config& tuned, const DecodeProblem& problem, const Shape& shape,
                             const KernelSpec& spec);

/// Octaves between the longest and the average context from which segments are charged, and beyond those of a winner
/// from which its grid is no guide.
inline constexpr double kRaggedOctaves = 0.5;

/// A grid for a batch more ragged than what was measured: as many CTAs as are resident at once. segment_cost() makes
/// their ranges equal in time.
std::int64_t ragged_grid(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                         const KernelSpec& spec);

/// Config::segment_cost for such a batch: what starting and ending a segment takes, over what a LeanTile takes.
int segment_cost(const DeviceFacts& device, const KernelSpec& spec);

/// Relative time of one step: tiles an SM streams, segments started, partials merged. Only for ranking grids.
double schedule_cost(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape, const Config& config);

/// The useful grid of least schedule_cost.
std::int64_t cheapest_grid(const DeviceFacts& device, const DecodeProblem& problem, const Shape& shape,
                           const KernelSpec& spec);

/// `base` with the tunables of `from`, changed as little as this problem needs to fit (fewer stages, fewer CTAs per
/// SM). Errors: those of validate(spec), when nothing fits; unsupported where `from` is of load path vector and its
/// lanes share the rows of this head_dim in another way, so that its speed says nothing.
Result<KernelSpec> with_tunables_of(const KernelSpec& base, const KernelSpec& from);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
