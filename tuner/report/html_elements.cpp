// html_elements.cpp -- tables, figures and cells that all sections of the HTML report use.
#include <fmt/format.h>

#include "tuner/report/escape.hpp"
#include "tuner/report/html.hpp"
#include "tuner/report/style.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

std::string html_table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows,
                       std::string_view columns, TableKind kind) {
  const auto class_of = [&](std::size_t column) {
    const char letter = column < columns.size() ? columns[column] : 'w';
    const bool wide_only = letter == 'R' || letter == 'N' || letter == 'W';
    const char* const text = letter == 'r' || letter == 'R' ? "r" : letter == 'n' || letter == 'N' ? "nw" : "wrap";
    return fmt::format("{}{}", text, wide_only ? " wide" : "");
  };
  const bool cards = kind == TableKind::cards;
  std::string html = fmt::format("<div class=\"scroll\"><table{}><thead><tr>", cards ? " class=\"cards\"" : "");
  for (std::size_t i = 0; i < headings.size(); ++i)
    html += fmt::format("<th scope=\"col\" class=\"{}\">{}</th>", class_of(i), headings[i]);
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string label = cards ? fmt::format(" data-label=\"{}\"", headings[i]) : "";
      // A cell of the heat scale is a whole element already.
      html += row[i].starts_with("<td") ? "<td" + label + row[i].substr(3)
                                        : fmt::format("<td class=\"{}\"{}>{}</td>", class_of(i), label, row[i]);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_figure(const std::string& caption, const Chart& chart) {
  if (chart.series.empty()) return {};
  const std::string text = caption.empty() ? chart.label : caption;
  if (const auto range = flat_range(chart)) {
    const std::string least = fmt::format("{:.2f}", range->first), most = fmt::format("{:.2f}", range->second);
    return fmt::format("<p class=\"note\">{}: there is no chart, because {}.</p>\n", escape_html(chart.label),
                       least == most ? fmt::format("every value is {}", least)
                                     : fmt::format("all values lie between {} and {}", least, most));
  }
  return fmt::format("<figure><figcaption>{}</figcaption><div class=\"scroll\">{}</div></figure>\n", escape_html(text),
                     svg_of(chart));
}

std::string html_pair(const std::string& figures) {
  return figures.empty() ? std::string() : "<div class=\"pair\">" + figures + "</div>\n";
}

std::string html_heat(double ratio, std::string_view text) {
  if (!(ratio > 0)) return fmt::format("<td class=\"r dim\">{}</td>", text);
  return fmt::format("<td class=\"r h{}\">{}</td>", heat_class(ratio), text);
}

std::string html_ratio(const TimeRatio& ratio) {
  if (!ratio.known()) return "<span class=\"dim\">-</span>";
  if (!ratio.has_interval())
    return fmt::format("<span title=\"there are too few samples for an interval\">{:.2f}</span>", ratio.ratio);
  return fmt::format("<span{} title=\"95 % interval {:.3f} to {:.3f}\">{:.2f}</span>",
                     ratio.low <= 1 ? " class=\"dim\"" : "", ratio.low, ratio.high, ratio.ratio);
}

std::string html_details(std::string_view summary, std::string_view content) {
  return content.empty() ? std::string()
                         : fmt::format("<details><summary>{}</summary>\n{}</details>\n", summary, content);
}

std::string html_link(const std::string& id, std::string_view text) {
  return fmt::format("<a href=\"#{}\">{}</a>", id, text);
}

std::string problem_id(const DevicePlace& place, std::size_t problem) {
  return fmt::format("gpu{}-p{}", place.number, problem);
}

std::string shape_id(const DevicePlace& place, std::size_t winner) {
  return fmt::format("gpu{}-s{}", place.number, winner);
}

std::string html_heat_key() {
  std::string html = "<div class=\"key\"><span>times the limit:</span>";
  for (std::size_t i = 0; i <= kHeatSteps.size(); ++i) {
    html += i < kHeatSteps.size() ? fmt::format("<span><i class=\"h{}\"></i>to {:.2f}</span>", i, kHeatSteps[i])
                                  : fmt::format("<span><i class=\"h{}\"></i>more</span>", i);
  }
  return html + "</div>\n";
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
