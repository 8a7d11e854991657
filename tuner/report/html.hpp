// html.hpp -- the sections and elements of the HTML report. All return markup whose texts are escaped. Internal to
// tuner/report. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/report/chart.hpp"
#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A GPU's report, and its number on the page, which the ids of its elements have.
struct DevicePlace {
  const DeviceReport& device;
  std::size_t number = 0;
};
/// The ids of the section of a problem and of the details of a winner's shape, both given by their indices.
std::string problem_id(const DevicePlace& place, std::size_t problem);
std::string shape_id(const DevicePlace& place, std::size_t winner);

std::string html_device(const DevicePlace& place);
/// The winners of one problem: heat map, parts of their times, rivals, the details of each shape, candidates and
/// parameters.
std::string html_problem(const DevicePlace& place, std::size_t problem);
/// The details of one shape, which are shown when a link leads to them: its winner, and how the search found it.
std::string html_shape(const DevicePlace& place, std::size_t problem, std::size_t position);
/// "32/8 x 128 bf16, warm L2"
std::string group_title(const ProblemReport& group);

std::string html_difference(const ReportDifference& difference);
std::string html_regret(const RegretReport& report);
std::string html_paper(const PaperReport& report);

/// What a table becomes on a narrow screen: the columns in capitals are left out, or each row is a card with the
/// columns' headings in it.
enum class TableKind { columns, cards };
/// A table whose cells are markup. `columns` has a letter for each column: 'r' for numbers, 'n' for text that must not
/// wrap, and 'w' for other text. Capitals are columns that a narrow screen does without.
std::string html_table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows,
                       std::string_view columns, TableKind kind = TableKind::columns);
/// The content below a summary that opens it. It is closed at first; empty without content.
std::string html_details(std::string_view summary, std::string_view content);
/// A link to an element of the page. `text` is markup.
std::string html_link(const std::string& id, std::string_view text);
/// A chart with a caption above it, or a sentence where the chart would show a level line; empty if the chart has no
/// series.
std::string html_figure(const std::string& caption, const Chart& chart);
/// Figures beside each other if there is room.
std::string html_pair(const std::string& figures);
/// A cell with the colour that the heat scale gives to a ratio.
std::string html_heat(double ratio, std::string_view text);
/// "1.23", with its interval as a tooltip. It is grey if the interval reaches 1.
std::string html_ratio(const TimeRatio& ratio);
/// The colours of the parts of a time, and what they mean.
std::string html_parts_key();
/// A winner's median, as a bar of the parts that the cost model gives it; empty if it has none.
std::string html_parts_bar(const ReportedWinner& winner);
/// A rival's time over the winner's, with its interval below it.
std::string html_margin(const std::optional<Rival>& rival);
/// The distribution of the candidates' times over the best.
std::string html_strip(const CandidateSpread& spread);
/// The colours of the heat scale and what they mean.
std::string html_heat_key();

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
