// html.hpp -- the sections and elements of the HTML report. All return markup whose texts are escaped. Internal to
// tuner/report. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tuner/report/chart.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The winners of one problem: heat map, parts of their times, rivals, candidates and parameters.
std::string html_problem(const DeviceReport& device, const ProblemReport& group);

std::string html_difference(const ReportDifference& difference);
std::string html_regret(const RegretReport& report);
std::string html_paper(const PaperReport& report);

/// A table whose cells are markup. `columns` has a character for each column: 'r' for numbers, 'n' for text that must
/// not wrap, and anything else for other text.
std::string html_table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows,
                       std::string_view columns);
/// A chart with a caption above it; empty if the chart has no series.
std::string html_figure(const std::string& caption, const Chart& chart);
/// Figures beside each other if there is room.
std::string html_pair(const std::string& figures);
/// A cell with the colour that the heat scale gives to a ratio.
std::string html_heat(double ratio, std::string_view text);
/// "1.23", with its interval as a tooltip. It is grey if the interval reaches 1.
std::string html_ratio(const TimeRatio& ratio);
/// The colours of the heat scale and what they mean.
std::string html_heat_key();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
