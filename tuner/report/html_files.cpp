// html_files.cpp -- the sections of the HTML report whose data comes from files: an earlier report, held-out regret and
// the paper's sweeps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/report/escape.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/html.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr double kIntervalWidth = 160, kIntervalHeight = 16;
constexpr std::size_t kMostRegretRows = 20;

/// An interval around 1 on a logarithmic axis from 1 / most to most.
std::string forest_plot(const WinnerChange& change, double most) {
  const auto x = [&](double ratio) {
    return kIntervalWidth / 2 * (1 + std::log(std::clamp(ratio, 1 / most, most)) / std::log(most));
  };
  return fmt::format(
      "<svg class=\"bar\" viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2:.3f}\"><path class=\"axis\" d=\"M{3} "
      "0v{1}\"/><path class=\"line c{7}\" d=\"M{4:.1f} 8H{5:.1f}\"/><circle class=\"dot c{7}\" cx=\"{6:.1f}\" cy=\"8\" "
      "r=\"3.5\"/></svg>",
      kIntervalWidth, kIntervalHeight, change.ratio, kIntervalWidth / 2, x(change.ratio_low), x(change.ratio_high),
      x(change.ratio),
      change.verdict() == "faster"   ? 2
      : change.verdict() == "slower" ? 5
                                     : 7);
}

std::string titled_problem(const std::string& json) {
  const auto problem = problem_from_json(json);
  return escape_html(problem ? problem_name(*problem) : json);
}

std::string titled_shape(const std::string& json) {
  const auto shape = shape_from_json(json);
  return escape_html(shape ? shape_name(*shape) : json);
}

std::string paper_row(const PaperPoint& point) {
  return fmt::format("{} heads, d {}, batch {}, context {}", point.heads, point.head_dim, point.batch,
                     size_name(point.context));
}

}  // namespace

std::string html_difference(const ReportDifference& difference) {
  std::string html = "<h2 id=\"difference\">Against an earlier report</h2>\n";
  html += fmt::format(
      "<p>{} winners are faster, {} are slower, and {} are the same within their intervals. {} are new and {} are "
      "lost. {} "
      "of those in both reports have another configuration. {}The earlier report is of library {}.</p>\n",
      difference.count("faster"), difference.count("slower"), difference.count("same"), difference.count("new"),
      difference.count("lost"), difference.replaced(),
      difference.geometric_mean > 0
          ? fmt::format("The new times are {:.3f} times the earlier ones in the geometric mean. ",
                        difference.geometric_mean)
          : "",
      escape_html(difference.old_revision));
  double most = 1.05;
  for (const WinnerChange& change : difference.changes) {
    if (change.ratio > 0) most = std::max({most, change.ratio_high, 1 / change.ratio_low});
  }
  most = std::min(most, 4.0);
  std::vector<std::vector<std::string>> rows;
  for (const WinnerChange& change : difference.changes) {
    const std::string verdict(change.verdict());
    const char* const tone = verdict == "faster" ? "good" : verdict == "slower" || verdict == "lost" ? "bad" : "dim";
    const std::string kernels =
        change.config_changed
            ? fmt::format("<code>{}</code> G {}<br><span class=\"dim\">was <code>{}</code> G {}</span>",
                          escape_html(change.new_kernel), change.new_grid, escape_html(change.old_kernel),
                          change.old_grid)
            : "";
    rows.push_back({titled_problem(change.problem) + (change.policy == L2Policy::cold ? "" : ", warm L2"),
                    titled_shape(change.shape), change.old_us > 0 ? us_name(change.old_us) : "-",
                    change.new_us > 0 ? us_name(change.new_us) : "-",
                    change.ratio > 0 ? fmt::format("<span title=\"{:.3f} to {:.3f}\">{:.3f}</span>", change.ratio_low,
                                                   change.ratio_high, change.ratio)
                                     : "-",
                    change.ratio > 0 ? forest_plot(change, most) : "",
                    fmt::format("<span class=\"{}\">{}</span>", tone, verdict), escape_html(change.device), kernels});
  }
  return html + html_table({"problem", "batch x context", "earlier, us", "now, us", "ratio", "interval", "verdict",
                            "GPU", "change of kernel and grid"},
                           rows, "nnrrrnnnn");
}

std::string html_regret(const RegretReport& report) {
  std::string html = fmt::format(
      "<h2 id=\"regret\">Held-out regret</h2>\n<p>{} untuned shapes were looked up and then searched in full. The "
      "looked-up configuration was {:.2f} % slower than the best in the median, {:.2f} % at the ninetieth "
      "percentile, {:.2f} % at most.</p>\n",
      report.cases.size(), 100 * report.median, 100 * report.ninetieth, 100 * report.largest);
  std::vector<std::vector<std::string>> rows;
  for (const HeldOutCase& one : report.cases) {
    if (rows.size() == kMostRegretRows) break;
    rows.push_back({escape_html(problem_name(one.problem)), shape_name(one.shape), escape_html(one.answer),
                    us_name(one.looked_up_us), us_name(one.best_us), fmt::format("{:.2f} %", 100 * one.regret())});
  }
  return html + html_pair(html_figure("Each dot is a shape", regret_chart(report)) +
                          "<figure><figcaption>The largest regrets</figcaption>" +
                          html_table({"problem", "batch x context", "answer", "looked up, us", "best, us", "regret"},
                                     rows, "nnnrrr") +
                          "</figure>");
}

std::string html_paper(const PaperReport& report) {
  const PaperSummary summary = summarize(report);
  std::string html = fmt::format(
      "<h2 id=\"paper\">The paper's sweeps</h2>\n<p>{} attentions of the LeanAttention paper were timed on {} ({}). "
      "Each "
      "mode has its own best kernel and grid out of the same kernels, and all modes are timed in the same "
      "rounds.{}</p>\n",
      report.measurements.size(), escape_html(report.device), escape_html(report.arch),
      report.missing.empty() ? "" : fmt::format(" {} more attentions were not measured.", report.missing.size()));
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, speed_ups] : {std::pair("FlashAttention-2", &summary.over_flash_attention2),
                                        std::pair("FlashDecoding", &summary.over_flash_decoding)}) {
    const std::string_view key = speed_ups == &summary.over_flash_attention2 ? "fa2" : "fd";
    std::string published;
    for (const PublishedSpeedUp& one : published_speed_ups()) {
      if (key == one.over)
        published += fmt::format("{}{:.2f} {}", published.empty() ? "" : "; ", one.speed_up, one.what);
    }
    rows.push_back({name, fmt::format("{:.2f}", speed_ups->average), fmt::format("{:.2f}", speed_ups->geometric_mean),
                    fmt::format("{:.2f}", speed_ups->largest), paper_row(speed_ups->largest_at),
                    fmt::format("{:.2f}", speed_ups->smallest), paper_row(speed_ups->smallest_at), published});
  }
  html += html_table(
      {"speed-up over", "average", "geometric mean", "largest", "at", "smallest", "at", "published for an A100"}, rows,
      "nrrrwrww");
  const std::vector<SpeedUpPoint> points = speed_up_points(report);
  std::string figures;
  for (const PaperAxis axis : {PaperAxis::context, PaperAxis::heads, PaperAxis::batch}) {
    figures += html_pair(html_figure("", speed_up_chart(points, axis, Baseline::flash_attention2)) +
                         html_figure("", speed_up_chart(points, axis, Baseline::flash_decoding)));
  }
  return html + figures;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
