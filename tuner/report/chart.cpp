// chart.cpp -- draws axes, legend and series in SVG user units.
#include "tuner/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tuner/report/escape.hpp"
#include "tuner/report/names.hpp"
#include "tuner/report/style.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

// Geometry in SVG user units.
constexpr double kWidth = 460, kLeft = 46, kRight = 14, kTop = 26, kAxis = 40, kLegendRow = 18;
constexpr double kLetter = 6.6;  // the approximate width of a letter in a legend

class Axis {
 public:
  Axis(double least, double most, double from, double to, bool log)
      : log_(log), least_(scaled(least)), most_(scaled(most)), from_(from), to_(to) {}
  double at(double value) const {
    return most_ > least_ ? from_ + (scaled(value) - least_) / (most_ - least_) * (to_ - from_) : (from_ + to_) / 2;
  }

 private:
  double scaled(double value) const { return log_ ? std::log2(value) : value; }
  bool log_;
  double least_, most_, from_, to_;
};

bool drawable(double value, bool log) { return std::isfinite(value) && (!log || value > 0); }

/// Round values between two. On a logarithmic axis they are 1, 2, 5 and so on, unless it is so short that equal steps
/// serve it better.
std::vector<double> round_values(double least, double most, bool log) {
  constexpr int kMost = 12;  // decades, or equal steps
  std::vector<double> ticks;
  if (!std::isfinite(least) || !std::isfinite(most) || !(most > least)) return ticks;
  if (const double span = most / least; log && span > 1.8) {
    const std::vector<double> mantissas = span > 5000 ? std::vector<double>{1}
                                          : span > 5  ? std::vector<double>{1, 2, 5}
                                                      : std::vector<double>{1, 1.2, 1.5, 2, 3, 4, 6, 8};
    const int first = static_cast<int>(std::floor(std::log10(least)));
    const int last = static_cast<int>(std::floor(std::log10(most)));
    for (int exponent = first; exponent <= last; exponent += (last - first) / kMost + 1) {
      for (const double mantissa : mantissas) {
        const double tick = mantissa * std::pow(10, exponent);
        if (tick >= least * 0.999 && tick <= most * 1.001) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double rough = (most - least) / 5, decade = std::pow(10, std::floor(std::log10(rough)));
  const double step = (rough / decade < 1.5 ? 1 : rough / decade < 3.5 ? 2 : 5) * decade;
  const double first = std::ceil(least / step - 1e-9);
  for (int i = 0; i < kMost && (first + i) * step <= most + step * 1e-6; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

struct Plot {
  Axis x, y;
  double height;
};

/// A chart whose series has no name has no legend.
bool has_legend(const Chart& chart) { return !chart.series.empty() && !chart.series.front().name.empty(); }

constexpr double kLegendGap = 15;  // between the title of the x axis and the legend

/// Draws the legend below everything else, from `top` on, where no marker of it can be taken for a point of the plot.
/// Returns its height.
double append_legend(std::string& svg, const Chart& chart, double top) {
  if (!has_legend(chart)) return 0;
  double x = kLeft, y = top + kLegendGap;
  for (const ChartSeries& series : chart.series) {
    const double width = 20 + kLetter * static_cast<double>(series.name.size()) + 14;
    if (x + width > kWidth && x > kLeft) x = kLeft, y += kLegendRow;
    svg += fmt::format(
        "<rect class=\"dot c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\"/><text class=\"tick\" "
        "x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        series.colour % kSeriesColours, x, y - 8, x + 14, y, escape_html(series.name));
    x += width;
  }
  return y + kLegendRow - kLegendGap - top;
}

void append_grid(std::string& svg, const Chart& chart, const Plot& plot, double least, double most) {
  for (const double tick : round_values(least, most, chart.y_log)) {
    const double y = plot.y.at(tick);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{:.3g}</text>\n",
        kLeft, y, kWidth - kRight, kLeft - 7, y + 4, tick);
  }
  // A tick has no name where it would touch the name before it.
  double last = -1e9;
  for (const auto& [value, name] : chart.x_ticks) {
    if (!drawable(value, chart.x_log)) continue;
    const double x = plot.x.at(value), half = kLetter * static_cast<double>(name.size()) / 2 + 2;
    svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {}v4\"/>", x, plot.height);
    if (x - half > last) {
      svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
                         plot.height + 17, escape_html(name));
      last = x + half;
    }
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{} {}H{}\"/>\n", kLeft, plot.height, kWidth - kRight);
  for (const auto& [value, name] : chart.reference) {
    if (!drawable(value, chart.y_log)) continue;
    const double y = plot.y.at(value);
    svg += fmt::format(
        "<path class=\"mark\" d=\"M{} {:.1f}H{}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>\n",
        kLeft, y, kWidth - kRight, kWidth - kRight, y - 4, escape_html(name));
  }
}

void append_series(std::string& svg, const Chart& chart, const ChartSeries& series, const Plot& plot) {
  const int colour = series.colour % kSeriesColours;
  std::string path, dots;
  for (const ChartPoint& point : series.points) {
    if (!drawable(point.x, chart.x_log) || !drawable(point.y, chart.y_log)) continue;
    const double x = plot.x.at(point.x), y = plot.y.at(point.y);
    if (chart.stepped && !path.empty())
      path += fmt::format("H{:.1f}V{:.1f}", x, y);
    else
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    if (point.low > 0 && point.high >= point.low)
      dots += fmt::format("<path class=\"line c{}\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>", colour, x, plot.y.at(point.low),
                          plot.y.at(point.high));
    dots += fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{}</title></circle>\n",
                        colour, x, y, chart.joined ? 3 : 4, escape_html(point.title));
  }
  if (chart.joined && !path.empty()) svg += fmt::format("<path class=\"line c{}\" d=\"{}\"/>\n", colour, path);
  svg += dots;
}

std::string svg_with(const Chart& chart, const std::string& head) {
  double least_x = 1e300, most_x = -1e300, least = chart.least_y, most = chart.most_y;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawable(point.x, chart.x_log) || !drawable(point.y, chart.y_log)) continue;
      least_x = std::min(least_x, point.x), most_x = std::max(most_x, point.x);
      least = std::min({least, point.y, point.low > 0 ? point.low : point.y});
      most = std::max({most, point.y, point.high});
    }
  }
  if (least_x > most_x) least_x = most_x = 1;
  for (const auto& [value, name] : chart.reference) least = std::min(least, value), most = std::max(most, value);
  const double top = kTop, height = top + chart.height;
  std::string legend;
  const double legend_height = append_legend(legend, chart, height + kAxis);
  const double room = chart.y_log ? std::pow(most / least, 0.04) : 0;
  const double lowest = chart.y_log ? least / room : least, highest = chart.y_log ? most * room : most;
  const Plot plot{.x = Axis(least_x, most_x, kLeft + 12, kWidth - kRight - 12, chart.x_log),
                  .y = Axis(lowest, highest, height, top, chart.y_log),
                  .height = height};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">\n{}",
      kWidth, height + kAxis + legend_height, escape_html(chart.label), head);
  svg += fmt::format("<text class=\"tick\" x=\"4\" y=\"14\">{}</text>\n", escape_html(chart.y_title));
  append_grid(svg, chart, plot, lowest, highest);
  for (const ChartSeries& series : chart.series) append_series(svg, chart, series, plot);
  svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight,
                     height + 34, escape_html(chart.x_title));
  return svg + legend + "</svg>\n";
}

}  // namespace

std::optional<std::pair<double, double>> flat_range(const Chart& chart) {
  constexpr double kFlat = 0.05;
  double least = 1e300, most = -1e300;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (!drawable(point.x, chart.x_log) || !drawable(point.y, chart.y_log)) continue;
      least = std::min(least, point.y), most = std::max(most, point.y);
    }
  }
  if (least > most) return std::nullopt;
  const double scale = chart.y_log ? least : std::max(chart.most_y, most) - std::min(chart.least_y, least);
  if (most - least >= kFlat * scale) return std::nullopt;
  return std::pair(least, most);
}

std::string svg_of(const Chart& chart) { return svg_with(chart, ""); }

std::string svg_document(const Chart& chart) { return svg_with(chart, "<style>" + chart_style() + "</style>\n"); }

std::vector<std::pair<double, std::string>> size_ticks(const std::vector<ChartSeries>& series) {
  double least = 1e300, most = 0;
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) least = std::min(least, point.x), most = std::max(most, point.x);
  }
  std::vector<std::pair<double, std::string>> ticks;
  if (!(least > 0) || most < least) return ticks;
  constexpr double kMost = 0x1p62;  // the largest power of two in an int64_t
  for (double value = std::exp2(std::ceil(std::log2(least))); value <= std::min(most, kMost); value *= 2)
    ticks.emplace_back(value, size_name(static_cast<std::int64_t>(value)));
  return ticks;
}

std::vector<std::pair<double, std::string>> round_ticks(const std::vector<ChartSeries>& series, bool log) {
  double least = 1e300, most = -1e300;
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) least = std::min(least, point.x), most = std::max(most, point.x);
  }
  std::vector<std::pair<double, std::string>> ticks;
  if (!(most > least) || (log && least <= 0)) return ticks;
  for (const double value : round_values(least, most, log)) ticks.emplace_back(value, fmt::format("{:.4g}", value));
  return ticks;
}

std::vector<std::pair<double, std::string>> value_ticks(const std::vector<ChartSeries>& series) {
  std::set<double> values;
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) values.insert(point.x);
  }
  std::vector<std::pair<double, std::string>> ticks;
  ticks.reserve(values.size());
  for (const double value : values) ticks.emplace_back(value, size_name(static_cast<std::int64_t>(value)));
  return ticks;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
