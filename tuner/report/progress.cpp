#include "tuner/report/progress.hpp"

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tuner/report/candidates.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr double kLongestPause = 60;  // seconds

/// The number of so many digits; -1 if there is anything else.
int digits(std::string_view text) {
  int number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    number = 10 * number + (c - '0');
  }
  return number;
}

/// Seconds since the epoch of a text like "2026-11-21T09:30:00.123Z".
std::optional<double> seconds_of(std::string_view text) {
  if (text.size() != 24) return std::nullopt;
  const int year = digits(text.substr(0, 4)), month = digits(text.substr(5, 2)), day = digits(text.substr(8, 2));
  const int hour = digits(text.substr(11, 2)), minute = digits(text.substr(14, 2));
  const int second = digits(text.substr(17, 2)), milliseconds = digits(text.substr(20, 3));
  if (year < 0 || month < 0 || day < 0 || hour < 0 || minute < 0 || second < 0 || milliseconds < 0) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * hour + 60.0 * minute + second + milliseconds / 1000.0;
}

}  // namespace

std::vector<ProgressStep> search_progress(std::span<const Trial* const> trials, const Environment& software) {
  const std::map<std::string, const Trial*> counted = counted_trials(trials, software);
  std::vector<ProgressStep> steps;
  ProgressStep now;
  std::optional<double> before;
  for (const Trial* trial : trials) {
    if (!same_software(trial->environment, software)) continue;
    ++now.trials;
    const std::optional<double> at = seconds_of(trial->created);
    if (at && before && *at > *before && *at - *before <= kLongestPause) now.seconds += *at - *before;
    if (at) before = at;
    const auto found = counted.find(trial->config);
    if (found == counted.end() || (now.best_us > 0 && found->second->median_us >= now.best_us)) continue;
    now.best_us = found->second->median_us;
    steps.push_back(now);
  }
  if (!steps.empty() && steps.back().trials < now.trials) steps.push_back(now);
  return steps;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
