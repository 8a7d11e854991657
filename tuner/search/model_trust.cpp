#include "tuner/search/model_trust.hpp"

#include <algorithm>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr double kBelievable = 1.5;  // a fitted model that says a candidate is this much behind is believed

}  // namespace

std::vector<RankedConfig> ModelTrust::promising(std::vector<RankedConfig> candidates, double best_us) const {
  if (!fitted || best_us <= 0) return candidates;
  // A model that expects too much time of every kernel at a new shape must not end the search.
  const double limit = kBelievable * std::max(best_us, least_predicted_us);
  std::erase_if(candidates, [limit](const RankedConfig& candidate) { return candidate.predicted_us > limit; });
  return candidates;
}

std::vector<RankedConfig> within_reach(std::vector<RankedConfig> ranked, double reach) {
  if (ranked.empty()) return ranked;
  std::erase_if(ranked, [limit = reach * ranked.front().predicted_us](const RankedConfig& candidate) {
    return candidate.predicted_us > limit;
  });
  return ranked;
}

}  // namespace v1
}  // namespace leanattn
