#include "tuner/report/headline.hpp"

#include <fmt/format.h>

#include <vector>

#include "tuner/measure/statistics.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

std::string counted(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string over_default_text(double ratio) {
  constexpr double kSame = 0.005;
  if (ratio > 1 + kSame)
    return fmt::format(" In the median, a winner is {:.2f} times as fast as the default configuration.", ratio);
  return " In the median, a winner is as fast as the default configuration.";
}

}  // namespace

Headline headline_of(const DeviceReport& device) {
  Headline headline{.shapes = device.winners.size(), .problems = device.problems.size()};
  std::vector<double> over_limit, over_default;
  for (const ReportedWinner& winner : device.winners) {
    if (winner.default_config && winner.default_config->over_winner.known())
      over_default.push_back(winner.default_config->over_winner.ratio);
    if (winner.over_limit() <= 0) continue;
    over_limit.push_back(winner.over_limit());
    if (headline.furthest == nullptr || winner.over_limit() > headline.furthest->over_limit())
      headline.furthest = &winner;
  }
  if (!over_limit.empty()) headline.median_over_limit = median(over_limit);
  if (!over_default.empty()) headline.median_over_default = median(over_default);
  return headline;
}

std::string headline_text(const DeviceReport& device) {
  const Headline headline = headline_of(device);
  const std::string steps = device.recurrent.empty() ? ""
                                                     : fmt::format("{} of recurrent states {} tuned.",
                                                                   counted(device.recurrent.size(), "step"),
                                                                   device.recurrent.size() == 1 ? "is" : "are");
  if (headline.shapes == 0) return steps.empty() ? "No shape is tuned." : steps;
  std::string text = fmt::format("{} of {} {} tuned.", counted(headline.shapes, "shape"),
                                 counted(headline.problems, "problem"), headline.shapes == 1 ? "is" : "are");
  if (headline.median_over_limit > 0)
    text += fmt::format(" The median winner takes {:.2f} times its read limit.", headline.median_over_limit);
  if (headline.median_over_default > 0) text += over_default_text(headline.median_over_default);
  if (headline.shapes > 1 && headline.furthest != nullptr) {
    const ReportedWinner& furthest = *headline.furthest;
    text += fmt::format(" The furthest from its limit is {} of {}{}, with {:.2f} times.", shape_name(furthest.shape),
                        problem_name(furthest.problem), furthest.policy == L2Policy::cold ? "" : " (warm L2)",
                        furthest.over_limit());
  }
  return steps.empty() ? text : text + " " + steps;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
