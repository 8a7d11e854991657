// earlier_results.hpp -- EarlierResults: what the database knows that helps the search of a shape. One thread, the
// session's. Internal to tuner/search.
#pragma once

#include <optional>
#include <vector>

#include "tuner/search/measurer.hpp"

namespace leanattn {
inline namespace v1 {

struct EarlierResults {
  /// Earlier winners of this shape, also of the same problem with the other kind of launch.
  std::vector<Config> incumbents;
  /// What won for similar heads and near shapes, fitted to this problem and shape; the nearest first.
  std::vector<Config> relatives;
  /// The shape's trials with the same software, where the session resumes.
  KnownTrials known;

  /// Whether a search with this software came to its end, so that resuming would add nothing.
  bool finished(const SearchEffort& effort) const;
  /// The time of a known configuration, or nothing.
  std::optional<double> us_of(const Config& config) const;
};

/// `model` ranks the grids of relatives whose shape is another one. Errors: of the database.
Result<EarlierResults> earlier_results(const ShapeContext& context, const CostModel& model);

}  // namespace v1
}  // namespace leanattn
