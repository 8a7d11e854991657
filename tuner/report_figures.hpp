// report_figures.hpp -- the figures of reports and of the paper's sweeps, as charts. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tuner/report.hpp"
#include "tuner/report_chart.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// One shape in three modes.
struct SpeedUpPoint {
  std::string problem;  ///< everything of it but its heads
  std::string heads;    ///< "32/8"
  int q_heads = 0;
  int batch = 0;
  std::int64_t context = 0;
  TimeRatio over_fa2, over_fd;  ///< those modes' times over lean's
};
std::vector<SpeedUpPoint> speed_up_points(const DeviceReport& device);
std::vector<SpeedUpPoint> speed_up_points(const PaperReport& report);

enum class Baseline { flash_attention2, flash_decoding };

/// Speed-up over one baseline against one axis: a line for everything else that is equal, those with the most points
/// first, at most eight. No series where no line has three points.
Chart speed_up_chart(std::span<const SpeedUpPoint> points, PaperAxis axis, Baseline baseline);

/// Every winner: time over the read limit against the bytes it reads.
Chart distance_chart(const DeviceReport& device);

/// Every case's regret, sorted.
Chart regret_chart(const RegretReport& report);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
