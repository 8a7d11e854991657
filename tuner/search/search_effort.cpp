#include "tuner/search/search_effort.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {

SearchEffort effort_for(int compile_threads) {
  SearchEffort effort;
  effort.specs = static_cast<std::size_t>(std::clamp(40 + 6 * compile_threads, 48, 128));
  return effort;
}

SearchEffort exhaustive_effort(std::size_t specs, double reach) {
  return {.specs = specs,
          .grids_per_spec = std::numeric_limits<std::size_t>::max(),
          .sweep_specs = 0,
          .refine_specs = 8,
          .refine_generations = 1,
          .race_size = 96,
          .finalists = 8,
          .every_grid = true,
          .reach = reach};
}

}  // namespace v1
}  // namespace leanattn
