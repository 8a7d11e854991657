// report_chart.hpp -- line and dot charts as SVG, for reports and for files of their own. Colours come from the page's
// classes (report_style.hpp). Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  ///< an interval of y; both 0: none
  std::string title;         ///< shown on hovering
};

struct ChartSeries {
  std::string name;                ///< empty, where it is the only one: no legend
  std::vector<ChartPoint> points;  ///< by growing x where they are joined
  int colour = 0;
};

struct Chart {
  std::string label;  ///< for who cannot see it
  std::string x_title, y_title;
  bool x_log = false, y_log = false, joined = true;
  std::vector<std::pair<double, std::string>> x_ticks;
  double least_y = 1;                                     ///< the axis reaches at least from here
  double most_y = 1;                                      ///< to here
  std::vector<std::pair<double, std::string>> reference;  ///< horizontal lines and their names
  std::vector<ChartSeries> series;
};

/// An <svg> element for a page that has style_sheet(). Values that are not finite or, on a logarithmic axis, not
/// positive are left out.
std::string svg_of(const Chart& chart);
/// The same as a document of its own.
std::string svg_document(const Chart& chart);

/// 64k, 1m ... for a logarithmic axis of powers of two between the least and the greatest x.
std::vector<std::pair<double, std::string>> size_ticks(const std::vector<ChartSeries>& series);
/// Every distinct x of the series.
std::vector<std::pair<double, std::string>> value_ticks(const std::vector<ChartSeries>& series);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
