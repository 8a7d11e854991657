#include "cache/tuning/winner_rule.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace detail {

std::optional<ChosenTrials> choose_winner(std::vector<MeasuredTrial> trials, std::string_view latest_credible) {
  const std::vector<MeasuredTrial> all = trials;
  std::erase_if(trials, [](const MeasuredTrial& trial) { return trial.lost || trial.wrong; });
  if (trials.empty()) return std::nullopt;
  const auto age = [&](const MeasuredTrial& trial) {
    const bool credible = trial.created <= latest_credible;
    return std::tuple(trial.library_version, trial.schema_version,
                      credible ? std::string_view(trial.created) : std::string_view(), std::string_view(trial.uuid));
  };
  const auto newest = std::max_element(trials.begin(), trials.end(),
                                       [&](const MeasuredTrial& a, const MeasuredTrial& b) { return age(a) < age(b); });
  const std::string driver = newest->driver, library = newest->library;

  const auto any_against = [&](const MeasuredTrial& trial, auto&& speaks) {
    return std::any_of(all.begin(), all.end(), [&](const MeasuredTrial& other) {
      return other.config == trial.config && other.driver == driver && speaks(other);
    });
  };
  std::erase_if(trials, [&](const MeasuredTrial& trial) {
    return trial.driver != driver || trial.library != library || any_against(trial, [&](const MeasuredTrial& other) {
             if (other.kernel == trial.kernel) return other.wrong;
             return other.library == library && age(trial) < age(other);
           });
  });
  if (trials.empty()) return std::nullopt;
  const auto overruled = [&](const MeasuredTrial& trial) {
    return any_against(trial, [&](const MeasuredTrial& other) {
      return other.lost && other.kernel == trial.kernel && other.samples >= trial.samples && age(trial) < age(other);
    });
  };
  if (!std::all_of(trials.begin(), trials.end(), overruled)) std::erase_if(trials, overruled);

  std::map<std::string_view, std::vector<const MeasuredTrial*>> by_config;
  for (const MeasuredTrial& trial : trials) by_config[trial.config].push_back(&trial);
  std::vector<const MeasuredTrial*> representatives;  // in the order of their config texts
  for (auto& [config, group] : by_config) {
    std::sort(group.begin(), group.end(), [](const MeasuredTrial* a, const MeasuredTrial* b) {
      return std::tie(a->median_us, a->uuid) < std::tie(b->median_us, b->uuid);
    });
    representatives.push_back(group[group.size() / 2]);
  }

  const MeasuredTrial* fastest =
      *std::min_element(representatives.begin(), representatives.end(),
                        [](const auto* a, const auto* b) { return a->median_us < b->median_us; });
  // An interval that was not measured is the median alone.
  const double fastest_high = std::max(fastest->high_us, fastest->median_us);
  for (const MeasuredTrial* candidate : representatives) {
    const double low = candidate->low_us > 0 ? std::min(candidate->low_us, candidate->median_us) : candidate->median_us;
    if (low <= fastest_high && candidate->median_us <= fastest->median_us * (1 + kTieShare)) {
      return ChosenTrials{candidate->id, fastest->id};
    }
  }
  return ChosenTrials{fastest->id, fastest->id};
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
