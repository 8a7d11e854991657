// chart.hpp -- Chart: a chart of lines or dots that becomes SVG, in a page or in a file of its own. Colours come from
// the page's classes (style.hpp). Internal to tuner/report. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace detail {

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  ///< an interval of y; both 0: there is none
  std::string title;         ///< shown when the pointer is on the point
};

struct ChartSeries {
  std::string name;                ///< empty: there is no legend, as with a single series
  std::vector<ChartPoint> points;  ///< by growing x if they are joined
  int colour = 0;                  ///< the number of a class of style.hpp
};

struct Chart {
  std::string label;  ///< says what the chart shows, for readers who cannot see it
  std::string x_title, y_title;
  bool x_log = false, y_log = false, joined = true;
  bool stepped = false;  ///< joined lines stay level up to each point
  double height = 200;   ///< of the plot, in SVG user units; the width is 400
  std::vector<std::pair<double, std::string>> x_ticks;
  double least_y = 1;                                     ///< the y axis reaches at least from here
  double most_y = 1;                                      ///< to here
  std::vector<std::pair<double, std::string>> reference;  ///< the y of horizontal lines, and their names
  std::vector<ChartSeries> series;
};

/// The least and the greatest y of a chart that would show a level line: they differ by less than 5 % on a logarithmic
/// axis, or by less than a twentieth of a linear one. nullopt: there is something to see.
std::optional<std::pair<double, double>> flat_range(const Chart& chart);

/// An <svg> element for a page that has page_style(). Values that are not finite, or not positive on a logarithmic
/// axis, are left out.
std::string svg_of(const Chart& chart);
/// The same as a document of its own.
std::string svg_document(const Chart& chart);

/// The powers of two between the least and the greatest x, named "64k", "1m" and so on.
std::vector<std::pair<double, std::string>> size_ticks(const std::vector<ChartSeries>& series);
/// Round numbers across the range of x: for a logarithmic axis 1, 2, 5, 10 and so on.
std::vector<std::pair<double, std::string>> round_ticks(const std::vector<ChartSeries>& series, bool log);
/// Every distinct x of the series.
std::vector<std::pair<double, std::string>> value_ticks(const std::vector<ChartSeries>& series);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
