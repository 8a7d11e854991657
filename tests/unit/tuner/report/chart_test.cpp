// chart_test.cpp -- a chart that would show a level line is left out, and says between which values it would lie.
#include "tuner/report/chart.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tuner/report/html.hpp"

namespace leanattn {
namespace {

using detail::Chart;

Chart chart(double first, double second, bool log) {
  Chart made;
  made.label = "Speed-up against batch", made.y_log = log;
  made.least_y = log ? 1 : 0, made.most_y = log ? 1.2 : 11;
  detail::ChartSeries& series = made.series.emplace_back();
  series.points.resize(2);
  series.points[0].x = 1, series.points[0].y = first;
  series.points[1].x = 2, series.points[1].y = second;
  return made;
}

TEST(Chart, AChartIsFlatIfItsValuesHardlyDiffer) {
  EXPECT_TRUE(detail::flat_range(chart(1.50, 1.55, true)));
  EXPECT_FALSE(detail::flat_range(chart(1.00, 1.06, true)));
  EXPECT_TRUE(detail::flat_range(chart(0.1, 0.6, false)));
  EXPECT_FALSE(detail::flat_range(chart(0.1, 1.2, false)));
  EXPECT_FALSE(detail::flat_range(Chart{}));
}

TEST(Chart, AFlatChartBecomesASentence) {
  const std::string flat = detail::html_figure("", chart(1.50, 1.55, true));
  EXPECT_EQ(flat.find("<svg"), std::string::npos);
  EXPECT_NE(flat.find("Speed-up against batch: there is no chart, because all values lie between 1.50 and 1.55."),
            std::string::npos)
      << flat;
  EXPECT_NE(detail::html_figure("", chart(1.001, 1.002, true)).find("because every value is 1.00."), std::string::npos);
  EXPECT_NE(detail::html_figure("", chart(1, 2, true)).find("<svg"), std::string::npos);
}

TEST(Chart, AStepStaysLevelUpToTheNextPoint) {
  Chart steps = chart(4, 2, true);
  steps.stepped = true;
  const std::string svg = detail::svg_of(steps);
  EXPECT_NE(svg.find("H"), std::string::npos);
  const std::size_t path = svg.find("<path class=\"line c0\" d=\"M");
  ASSERT_NE(path, std::string::npos) << svg;
  EXPECT_EQ(svg.substr(path, svg.find('"', path + 28) - path).find('L'), std::string::npos);
}

TEST(Chart, NoMarkerOfTheLegendLiesWhereAPointCould) {
  Chart named = chart(1, 2, true);
  named.x_title = "batch";
  named.series[0].name = "one kind of shape";
  named.series.push_back(named.series[0]);
  const std::string svg = detail::svg_of(named);
  const auto number_behind = [&](const std::string& words, std::size_t from) {
    const std::size_t at = svg.find(words, from);
    return at == std::string::npos ? -1 : std::stod(svg.substr(at + words.size()));
  };
  double lowest = 0;  // of everything that the plot and the x axis have; y grows downwards
  for (std::size_t at = 0; (at = svg.find(" y=\"", at + 1)) < svg.find("<rect");)
    lowest = std::max(lowest, number_behind(" y=\"", at));
  int markers = 0;
  for (std::size_t at = 0; (at = svg.find("<rect", at + 1)) != std::string::npos; ++markers)
    EXPECT_GT(number_behind(" y=\"", at), lowest);
  EXPECT_EQ(markers, 2);
  const double bottom = std::stod(svg.substr(svg.find("viewBox=\"0 0 460 ") + 17));
  EXPECT_GT(bottom, number_behind(" y=\"", svg.rfind("<text")));
}

TEST(Chart, ShortLogarithmicAxesHaveMoreThanOneTick) {
  Chart search = chart(7.37, 6.4, true);
  search.least_y = search.most_y = 6.4;
  const std::string svg = detail::svg_of(search);
  std::size_t ticks = 0;
  for (std::size_t at = svg.find("class=\"grid\""); at != std::string::npos; at = svg.find("class=\"grid\"", at + 1))
    ++ticks;
  EXPECT_GE(ticks, 3u) << svg;
}

}  // namespace
}  // namespace leanattn
