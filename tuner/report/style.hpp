// style.hpp -- the CSS of reports and figures, for light and dark pages and for paper. Internal to tuner/report. Any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The classes c0 to c7 are the colours of a chart's series.
inline constexpr int kSeriesColours = 8;

/// The largest ratios of a time to its read limit in the classes h0 to h6. Larger ones are in h7.
inline constexpr std::array<double, 7> kHeatSteps = {1.02, 1.05, 1.10, 1.20, 1.40, 1.70, 2.50};
/// The number of a ratio's class: 0 is at the limit, 7 is far from it.
std::size_t heat_class(double ratio);

/// The style sheet of a chart in a file of its own.
std::string chart_style();
/// The style sheet of the whole page, which includes chart_style().
std::string page_style();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
