// html_problem.cpp -- the section of the HTML report about the winners of one problem.
#include <fmt/format.h>

#include <algorithm>
#include <array>
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

constexpr double kBarWidth = 150, kBarHeight = 14, kStripWidth = 170, kStripHeight = 16;
constexpr double kStripMost = 8;  // the ratio to the best at the right end of a strip

/// The tunables of a configuration in short: "tensor t64 w8x16 s6 o1 ticket".
std::string tunables(const Config& config) {
  const KernelSpec& spec = config.spec;
  return fmt::format("{} t{} w{}x{} s{} o{} {}", to_string(spec.load), spec.tile, spec.warps, spec.warp_tokens,
                     spec.stages, spec.ctas_per_sm, to_string(spec.fixup));
}

std::string kernel_cell(const Config& config) {
  return fmt::format("<code title=\"{}\">{}</code>", escape_html(kernel_name(config.spec)), tunables(config));
}

/// A rival's time over the winner's, with the interval below it, because phones and paper have no tooltips.
std::string margin_cell(const std::optional<Rival>& rival) {
  if (!rival) return "<span class=\"dim\">-</span>";
  const TimeRatio& ratio = rival->over_winner;
  if (!ratio.has_interval()) return html_ratio(ratio);
  return fmt::format("{}<small>{:.3f} to {:.3f}</small>", html_ratio(ratio), ratio.low, ratio.high);
}

std::string heat_map(const DeviceReport& device, const ProblemReport& group) {
  std::set<std::int64_t> batches, contexts;
  std::map<std::pair<std::int64_t, std::int64_t>, const ReportedWinner*> cells;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    if (!is_uniform(winner.shape)) continue;
    batches.insert(winner.shape.batch), contexts.insert(winner.shape.longest_context);
    cells[{winner.shape.batch, winner.shape.longest_context}] = &winner;
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
      const ReportedWinner& winner = *found->second;
      const double over = winner.over_limit();
      html +=
          fmt::format("<td class=\"{}\" title=\"{}\"><b>{}</b><small>{}</small></td>",
                      over > 0 ? fmt::format("h{}", heat_class(over)) : "dim", escape_html(why(winner, device.device)),
                      over > 0 ? fmt::format("{:.2f}", over) : "?", us_name(winner.median_us));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></figure>\n";
}

/// A bar with the parts of the measured time and a mark at the read limit.
std::string parts_bar(const ReportedWinner& winner) {
  if (!winner.parts) return "<span class=\"dim\">the GPU is unknown</span>";
  const TimeParts& parts = *winner.parts;
  const std::array<std::pair<double, const char*>, 5> all = {{{parts.stream_us, "stream"},
                                                              {parts.start_us, "start-up"},
                                                              {parts.segments_us, "segments"},
                                                              {parts.fix_up_us, "fix-up"},
                                                              {parts.unexplained_us, "unexplained"}}};
  double sum = 0;
  std::string title;
  for (const auto& [us, name] : all) {
    sum += std::max(us, 0.0);
    title += fmt::format("{}{} {:.2f} us", title.empty() ? "" : ", ", name, us);
  }
  std::string svg =
      fmt::format("<svg class=\"bar\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\"><title>{2}</title>",
                  kBarWidth, kBarHeight, title);
  // If the model predicts more than was measured, the bar shows the parts' shares of the prediction.
  const double scale = kBarWidth / std::max(sum, winner.median_us);
  double x = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double width = std::max(all[i].first, 0.0) * scale;
    if (width < 0.05) continue;
    svg += fmt::format("<rect class=\"f{}\" x=\"{:.1f}\" y=\"2\" width=\"{:.1f}\" height=\"10\"/>", i, x, width);
    x += width;
  }
  if (winner.read_limit_us > 0) {
    svg += fmt::format("<path class=\"limit\" d=\"M{:.1f} 0v{}\"/>",
                       std::min(winner.read_limit_us * scale, kBarWidth - 1), kBarHeight);
  }
  return svg + "</svg>";
}

std::string winners_table(const DeviceReport& device, const ProblemReport& group) {
  std::vector<std::vector<std::string>> rows;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    const std::string over =
        winner.over_limit() > 0 ? fmt::format("{:.2f}", winner.over_limit()) : std::string("unknown");
    rows.push_back({shape_name(winner.shape), bytes_name(winner.kv_bytes),
                    fmt::format("<span title=\"95 % interval {:.3f} to {:.3f}, {} samples{}\">{}</span>", winner.low_us,
                                winner.high_us, winner.samples,
                                winner.measured.empty() ? "" : ", measured " + escape_html(winner.measured),
                                us_name(winner.median_us)),
                    fmt::format("<span class=\"dim\">&#177; {:.1f} %</span>",
                                winner.median_us > 0 ? 50 * (winner.high_us - winner.low_us) / winner.median_us : 0),
                    fmt::format("{:.0f}", winner.gb_per_s), html_heat(winner.over_limit(), over), parts_bar(winner),
                    escape_html(why(winner, device.device)), margin_cell(winner.default_config),
                    margin_cell(winner.runner_up), std::to_string(winner.config.grid),
                    kernel_cell(winner.config) + (winner.stale ? " <span class=\"bad\">stale</span>" : "")});
  }
  const std::string key =
      "<div class=\"key\"><span><i class=\"f0\"></i>stream</span><span><i class=\"f1\"></i>start-up</span><span><i "
      "class=\"f2\"></i>segments</span><span><i class=\"f3\"></i>fix-up</span><span><i class=\"f4\"></i>not "
      "explained</span><span>the black or white mark is the read limit</span></div>\n";
  return "<h4>Winners</h4>" + key +
         html_table({"batch x context", "bytes read", "us", "&#177;", "GB/s", "x limit", "where the time goes",
                     "why not faster", "vs default", "vs runner-up", "grid", "kernel"},
                    rows, "nrrrrrnwrrrn");
}

double strip_x(double ratio) {
  return 3 + std::log(std::clamp(ratio, 1.0, kStripMost)) / std::log(kStripMost) * (kStripWidth - 6);
}

std::string spread_strip(const CandidateSpread& spread) {
  const auto& q = spread.quantiles;
  const double middle = kStripHeight / 2;
  std::string svg = fmt::format(
      "<svg class=\"strip\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"quartiles {:.2f}, {:.2f}, {:.2f}\">",
      kStripWidth, kStripHeight, q[2], q[3], q[4]);
  for (const double mark : {1.0, 2.0, 4.0, 8.0})
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} 0v{}\"/>", strip_x(mark), kStripHeight);
  svg += fmt::format("<path class=\"whisker\" d=\"M{:.1f} {}H{:.1f}\"/>", strip_x(q[0]), middle, strip_x(q[6]));
  svg += fmt::format("<path class=\"whisker\" d=\"M{0:.1f} {2}v8M{1:.1f} {2}v8\"/>", strip_x(q[1]), strip_x(q[5]),
                     middle - 4);
  svg += fmt::format("<rect class=\"box\" x=\"{:.1f}\" y=\"3\" width=\"{:.1f}\" height=\"10\"/>", strip_x(q[2]),
                     std::max(strip_x(q[4]) - strip_x(q[2]), 1.0));
  return svg + fmt::format("<path class=\"middle\" d=\"M{:.1f} 2v12\"/></svg>", strip_x(q[3]));
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
                    spread_strip(spread), fmt::format("{:.2f}", spread.quantiles[3]),
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
                    rows, "nrnrrrr") +
         "</figure>";
}

std::string sensitivity_table(const ProblemReport& group) {
  if (group.sensitivity.empty()) return {};
  std::string html =
      "<figure><figcaption>Sensitivity: the best time of any candidate with a value over the best time of all. It is "
      "the "
      "geometric mean over the shapes for which the value was tried.</figcaption><div class=\"scroll\"><table "
      "class=\"heat\"><tbody>\n";
  for (const ParameterSensitivity& parameter : group.sensitivity) {
    html += fmt::format("<tr><th scope=\"row\">{}</th>", parameter.parameter);
    for (const ParameterValue& value : parameter.values) {
      html += fmt::format(
          "<td class=\"h{}\" title=\"{:.2f} in the worst shape; {} candidates in {} "
          "shapes\"><small>{}</small><b>{:.2f}</b></td>",
          heat_class(value.geometric_mean), value.worst, value.candidates, value.shapes, escape_html(value.value),
          value.geometric_mean);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></figure>";
}

}  // namespace

std::string html_problem(const DeviceReport& device, const ProblemReport& group) {
  std::string html =
      fmt::format("<h3>{}, {} L2</h3>\n", escape_html(problem_name(group.problem)), to_string(group.policy));
  html += heat_map(device, group);
  html += winners_table(device, group);
  const std::string tables = candidates_table(device, group) + sensitivity_table(group);
  if (!tables.empty())
    html += "<details open><summary>Candidates and parameters</summary><div class=\"pair\">" + tables +
            "</div></details>\n";
  if (group.model_error > 0)
    html +=
        fmt::format("<p class=\"note\">The cost model, fitted to these trials, is {:.1f} % off in the median.</p>\n",
                    100 * group.model_error);
  return html;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
