// report_html.hpp -- the sections of the HTML report, for report_html.cpp. Each returns markup whose texts are escaped.
// Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tuner/report.hpp"
#include "tuner/report_chart.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Winners of one problem: heat map, where the time goes, rivals, candidates, parameters.
std::string html_problem(const DeviceReport& device, const ProblemReport& group);

std::string html_difference(const ReportDifference& difference);
std::string html_regret(const RegretReport& report);
std::string html_paper(const PaperReport& report);

/// A table whose cells are markup already. `right` has a character a column: 'r' for numbers, 'n' for text that must
/// not wrap, anything else for text.
std::string html_table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows,
                       std::string_view columns);
/// A chart with a caption above it; empty without series.
std::string html_figure(const std::string& caption, const Chart& chart);
/// Charts beside each other where there is room.
std::string html_pair(const std::string& figures);
/// A ratio in a cell of the heat scale.
std::string html_heat(double ratio, std::string_view text);
/// "1.23" with its interval on hovering and, where that reaches 1, greyed.
std::string html_ratio(const TimeRatio& ratio);
/// The colours of the heat scale and what they mean.
std::string html_heat_key();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
