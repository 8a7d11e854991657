// model_trust.hpp -- ModelTrust: how far a shape's search believes the cost model when it chooses what to time. Plain
// data; any thread. Internal to tuner/search.
#pragma once

#include <vector>

#include "tuner/model/search_space.hpp"

namespace leanattn {
inline namespace v1 {

struct ModelTrust {
  bool fitted = false;            ///< whether the model was fitted to enough samples to be believed
  double least_predicted_us = 0;  ///< of any kernel at this shape; 0: the model was not asked

  /// Without those that a fitted model says are far behind the best time so far (0: none).
  std::vector<RankedConfig> promising(std::vector<RankedConfig> candidates, double best_us) const;
};

/// Those of a ranked list whose prediction is at most `reach` times the first one's.
std::vector<RankedConfig> within_reach(std::vector<RankedConfig> ranked, double reach);

}  // namespace v1
}  // namespace leanattn
