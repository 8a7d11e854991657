// search_effort.hpp -- SearchEffort: how much a search tries. Plain data; any thread.
#pragma once

#include <cstddef>
#include <limits>

namespace leanattn {
inline namespace v1 {

/// How much is tried for each shape. The budget cuts this short; it never lengthens it.
struct SearchEffort {
  std::size_t specs = 96;          ///< kernels compiled for the session
  std::size_t grids_per_spec = 3;  ///< grids of each kernel that are timed before the promising kernels are swept
  std::size_t sweep_specs = 8;     ///< kernels whose every promising grid is timed
  std::size_t refine_specs = 3;    ///< kernels whose neighbours are compiled and timed
  std::size_t twin_specs = 20;     ///< kernels that are compiled and timed with the other fix-up, too
  int refine_generations = 2;      ///< how often the neighbours of the best kernels are tried
  std::size_t race_size = 24;      ///< candidates that enter the race
  std::size_t finalists = 4;       ///< candidates that are confirmed, besides the default and what look-ups answer
  /// Rounds of the confirmation. The minimum is more rounds than a race has, so that it marks a finished search.
  int confirm_rounds_min = 12, confirm_rounds_max = 28;
  bool every_grid = false;  ///< time every grid of every kernel and neighbour, instead of those that the model likes
  /// With every_grid, a grid is left out when its prediction is above this many times the kernel's best.
  double reach = std::numeric_limits<double>::infinity();
};

/// The effort of an ordinary tuning: as many kernels as this number of threads compiles in a few seconds.
SearchEffort effort_for(int compile_threads);

/// The effort that other searches are measured against: `specs` kernels (by default all there are), every useful grid
/// that is not predicted to take more than `reach` times its kernel's best, a long race, and all neighbours of the best
/// kernels.
SearchEffort exhaustive_effort(std::size_t specs = std::numeric_limits<std::size_t>::max(),
                               double reach = std::numeric_limits<double>::infinity());

}  // namespace v1
}  // namespace leanattn
