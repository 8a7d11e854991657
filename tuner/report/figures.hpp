// figures.hpp -- the charts of reports and of the paper's sweeps. Internal to tuner/report. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tuner/report/chart.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The speed-ups of one shape.
struct SpeedUpPoint {
  std::string problem;  ///< all of its name but the heads
  std::string heads;    ///< "32/8"
  int q_heads = 0;
  int batch = 0;
  std::int64_t context = 0;
  TimeRatio over_fa2, over_fd;  ///< the times of FlashAttention-2's and FlashDecoding's grids over lean's
};
std::vector<SpeedUpPoint> speed_up_points(const DeviceReport& device);
std::vector<SpeedUpPoint> speed_up_points(const PaperReport& report);

enum class Baseline { flash_attention2, flash_decoding };

/// Speed-ups over one baseline along one axis. Points that differ only along the axis are one line. The chart has at
/// most eight lines of at least three points each, those with the most points first. It may have none.
Chart speed_up_chart(std::span<const SpeedUpPoint> points, PaperAxis axis, Baseline baseline);

/// The time of every winner over its read limit, against the bytes that it reads.
Chart distance_chart(const DeviceReport& device);

/// The best time so far in the search of one shape, in microseconds, against its trials or its seconds.
enum class Effort { trials, seconds };
Chart progress_chart(const ReportedWinner& winner, Effort effort);

/// The regret of every case, the largest first.
Chart regret_chart(const RegretReport& report);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
