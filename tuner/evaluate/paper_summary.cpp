// paper_summary.cpp -- average, largest and smallest speed-ups, and those that the paper reports.
#include <cmath>

#include "tuner/evaluate/paper.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

SpeedUps speed_ups(const PaperReport& report, PairedRatio (PaperMeasurement::*over)() const) {
  SpeedUps result;
  double sum = 0, logs = 0;
  for (const PaperMeasurement& measured : report.measurements) {
    const double speed_up = (measured.*over)().ratio;
    if (!(speed_up > 0)) continue;
    sum += speed_up, logs += std::log(speed_up);
    if (result.points == 0 || speed_up > result.largest) result.largest = speed_up, result.largest_at = measured.point;
    if (result.points == 0 || speed_up < result.smallest)
      result.smallest = speed_up, result.smallest_at = measured.point;
    ++result.points;
  }
  if (result.points == 0) return result;
  result.average = sum / static_cast<double>(result.points);
  result.geometric_mean = std::exp(logs / static_cast<double>(result.points));
  return result;
}

}  // namespace

PaperSummary summarize(const PaperReport& report) {
  return {.over_flash_attention2 = speed_ups(report, &PaperMeasurement::over_flash_attention2),
          .over_flash_decoding = speed_ups(report, &PaperMeasurement::over_flash_decoding)};
}

const std::vector<PublishedSpeedUp>& published_speed_ups() {
  static const std::vector<PublishedSpeedUp> published = {
      {"average", "fa2", 2.6},
      {"largest (16 heads, 512k)", "fa2", 8.33},
      {"average", "fd", 1.27},
      {"average, later abstract", "fd", 1.73},
      {"at 256k, later abstract", "fd", 2.18},
  };
  return published;
}

}  // namespace v1
}  // namespace leanattn
