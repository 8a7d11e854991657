// report_style.hpp -- colours and type of reports and figures, on light and on dark pages and on paper. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Classes c0 .. c7 colour a chart's series.
inline constexpr int kSeriesColours = 8;

/// Where the classes h0 .. h7 of a time over its limit begin: at most this many times the limit.
inline constexpr std::array<double, 7> kHeatSteps = {1.02, 1.05, 1.10, 1.20, 1.40, 1.70, 2.50};
/// Class of a ratio: 0 is at the limit, 7 far from it.
std::size_t heat_class(double ratio);

/// For charts that stand alone.
std::string chart_style();
/// For the whole page; includes chart_style().
std::string page_style();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
