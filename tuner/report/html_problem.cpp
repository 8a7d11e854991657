// html_problem.cpp -- the section of the HTML report about the winners of one problem.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tuner/report/escape.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/html.hpp"
#include "tuner/report/names.hpp"
#include "tuner/report/style.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// The tunables of a configuration in short: "tensor t64 w8x16 s6 o1 ticket".
std::string tunables(const Config& config) {
  const KernelSpec& spec = config.spec;
  return fmt::format("{} t{} w{}x{} s{} o{} {}", to_string(spec.load), spec.tile, spec.warps, spec.warp_tokens,
                     spec.stages, spec.ctas_per_sm, to_string(spec.fixup));
}

std::string kernel_cell(const Config& config) {
  return fmt::format("<code title=\"{}\">{}</code>", escape_html(kernel_name(config.spec)), tunables(config));
}

std::string heat_map(const DevicePlace& place, const ProblemReport& group) {
  const DeviceReport& device = place.device;
  std::set<std::int64_t> batches, contexts;
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> cells;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    if (!is_uniform(winner.shape)) continue;
    batches.insert(winner.shape.batch), contexts.insert(winner.shape.longest_context);
    cells[{winner.shape.batch, winner.shape.longest_context}] = i;
  }
  if (cells.size() < 2) return {};
  std::string html =
      "<figure><figcaption>The time over the read limit, and below it the median in microseconds. Rows are batches, "
      "and "
      "columns are context lengths.</figcaption><div class=\"scroll\"><table class=\"heat\"><thead><tr><th></th>";
  for (const std::int64_t context : contexts) html += fmt::format("<th scope=\"col\">{}</th>", size_name(context));
  html += "</tr></thead><tbody>\n";
  for (const std::int64_t batch : batches) {
    html += fmt::format("<tr><th scope=\"row\">{}</th>", batch);
    for (const std::int64_t context : contexts) {
      const auto found = cells.find({batch, context});
      if (found == cells.end()) {
        html += "<td></td>";
        continue;
      }
      const ReportedWinner& winner = device.winners[found->second];
      const double over = winner.over_limit();
      html +=
          fmt::format("<td class=\"{}\" title=\"{}\">{}</td>", over > 0 ? fmt::format("h{}", heat_class(over)) : "dim",
                      escape_html(why(winner, device.device)),
                      html_link(shape_id(place, found->second),
                                fmt::format("<b>{}</b><small>{}</small>", over > 0 ? fmt::format("{:.2f}", over) : "?",
                                            us_name(winner.median_us))));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></figure>\n";
}

std::string winners_table(const DevicePlace& place, const ProblemReport& group) {
  const DeviceReport& device = place.device;
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    const std::string over =
        winner.over_limit() > 0 ? fmt::format("{:.2f}", winner.over_limit()) : std::string("unknown");
    rows.push_back({html_link(shape_id(place, i), shape_name(winner.shape)),
                    fmt::format("{}<small>&#177; {:.1f} %</small>", us_name(winner.median_us),
                                50 * (winner.high_us - winner.low_us) / winner.median_us),
                    fmt::format("{:.0f}", winner.gb_per_s), html_heat(winner.over_limit(), over),
                    html_parts_bar(winner), escape_html(why(winner, device.device)), html_margin(winner.default_config),
                    html_margin(winner.runner_up), std::to_string(winner.config.grid),
                    kernel_cell(winner.config) + (winner.stale ? " <span class=\"bad\">stale</span>" : "")});
  }
  return "<h4>Winners</h4>" + html_parts_key() +
         html_table({"batch x context", "us", "GB/s", "x limit", "where the time goes", "why not faster", "vs default",
                     "vs runner-up", "grid", "kernel"},
                    rows, "nrRrNWrRRN");
}

std::string mode_cell(const std::optional<Rival>& rival) {
  return rival ? html_ratio(rival->over_winner) : std::string("<span class=\"dim\">-</span>");
}

std::string candidates_table(const DeviceReport& device, const ProblemReport& group) {
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    if (!winner.candidates) continue;
    const CandidateSpread& spread = *winner.candidates;
    rows.push_back({shape_name(winner.shape),
                    fmt::format("<span title=\"{} kernels\">{}</span>", spread.kernels, spread.configurations),
                    html_strip(spread), fmt::format("{:.2f}", spread.quantiles[3]),
                    fmt::format("{:.1f}", spread.quantiles[6]), mode_cell(winner.flash_attention2),
                    mode_cell(winner.flash_decoding)});
  }
  if (rows.empty()) return {};
  return "<figure><figcaption>The times of all candidates over the fastest one, from 1 to 8 on a logarithmic scale. "
         "The box "
         "has the middle half of them, the ticks are at 10 % and 90 %, and the line is the range. FA2 and FD are the "
         "best "
         "with FlashAttention-2's and FlashDecoding's grids, over the winner.</figcaption>" +
         html_table({"batch x context", "timed", "1, 2, 4, 8 x the best", "median", "worst", "FA2 grid", "FD grid"},
                    rows, "nRnrrrr") +
         "</figure>";
}

/// Whether none of a parameter's values costs anything.
bool is_level(const ParameterSensitivity& parameter) {
  constexpr double kLevel = 1.005;
  return std::all_of(parameter.values.begin(), parameter.values.end(),
                     [](const ParameterValue& value) { return value.geometric_mean < kLevel; });
}

std::string sensitivity_table(const ProblemReport& group) {
  if (group.sensitivity.empty()) return {};
  std::string html =
      "<figure><figcaption>Sensitivity: the best time of any candidate with a value over the best time of all. It is "
      "the "
      "geometric mean over the shapes for which the value was tried.</figcaption><div class=\"scroll\"><table "
      "class=\"heat\"><tbody>\n";
  std::string level;
  for (const ParameterSensitivity& parameter : group.sensitivity) {
    if (is_level(parameter)) {
      level += (level.empty() ? "" : ", ") + escape_html(parameter.parameter);
      continue;
    }
    html += fmt::format("<tr><th scope=\"row\">{}</th>", escape_html(parameter.parameter));
    for (const ParameterValue& value : parameter.values) {
      html += fmt::format(
          "<td class=\"h{}\" title=\"{:.2f} in the worst shape; {} candidates in {} "
          "shapes\"><small>{}</small><b>{:.2f}</b></td>",
          heat_class(value.geometric_mean), value.worst, value.candidates, value.shapes, escape_html(value.value),
          value.geometric_mean);
    }
    html += "</tr>\n";
  }
  html += "</tbody></table></div>";
  if (!level.empty()) html += fmt::format("<p class=\"note\">No value of these costs more than 0.5 %: {}.</p>", level);
  return html + "</figure>";
}

}  // namespace

std::string group_title(const ProblemReport& group) {
  return escape_html(problem_name(group.problem)) + (group.policy == L2Policy::cold ? "" : ", warm L2");
}

std::string html_problem(const DevicePlace& place, std::size_t problem) {
  const DeviceReport& device = place.device;
  const ProblemReport& group = device.problems[problem];
  std::string html = fmt::format("<h3 id=\"{}\">{}</h3>\n", problem_id(place, problem), group_title(group));
  html += heat_map(place, group);
  html += winners_table(place, group);
  html += "<p class=\"note\">Choose a shape to see its winner and its search.</p>\n";
  for (std::size_t i = 0; i < group.winners.size(); ++i) html += html_shape(place, problem, i);
  std::string tables = candidates_table(device, group) + sensitivity_table(group);
  if (!tables.empty()) tables = html_pair(tables);
  if (group.model_error > 0)
    tables +=
        fmt::format("<p class=\"note\">The cost model, fitted to these trials, is {:.1f} % off in the median.</p>\n",
                    100 * group.model_error);
  return html + html_details("Candidates and parameters", tables);
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
