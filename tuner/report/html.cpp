// html.cpp -- the page, a section for each GPU, and the elements that all sections use.
#include "tuner/report/html.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/measure/statistics.hpp"
#include "tuner/report/escape.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/names.hpp"
#include "tuner/report/render.hpp"
#include "tuner/report/style.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

constexpr std::size_t kMostFailures = 20;

/// A problem's winners in one row.
struct Glance {
  double median_over = 0, worst_over = 0;
  const ReportedWinner* worst = nullptr;
  double over_default = 0, over_fa2 = 0, over_fd = 0;  ///< geometric means; 0: unknown
};

double geometric_mean(const std::vector<double>& values) {
  double logs = 0;
  for (const double value : values) logs += std::log(value);
  return values.empty() ? 0 : std::exp(logs / static_cast<double>(values.size()));
}

Glance glance_at(const DeviceReport& device, const ProblemReport& group) {
  Glance glance;
  std::vector<double> over, untuned, fa2, fd;
  for (const std::size_t i : group.winners) {
    const ReportedWinner& winner = device.winners[i];
    if (winner.over_limit() > 0) {
      over.push_back(winner.over_limit());
      if (winner.over_limit() > glance.worst_over) glance.worst_over = winner.over_limit(), glance.worst = &winner;
    }
    if (winner.default_config) untuned.push_back(winner.default_config->over_winner.ratio);
    if (winner.flash_attention2) fa2.push_back(winner.flash_attention2->over_winner.ratio);
    if (winner.flash_decoding) fd.push_back(winner.flash_decoding->over_winner.ratio);
  }
  if (!over.empty()) glance.median_over = median(over);
  glance.over_default = geometric_mean(untuned), glance.over_fa2 = geometric_mean(fa2);
  glance.over_fd = geometric_mean(fd);
  return glance;
}

std::string mean_cell(double mean) { return mean > 0 ? fmt::format("{:.2f}", mean) : "<span class=\"dim\">-</span>"; }

std::string problems_table(const DeviceReport& device) {
  std::vector<std::vector<std::string>> rows;
  for (const ProblemReport& group : device.problems) {
    const Glance glance = glance_at(device, group);
    rows.push_back(
        {escape_html(problem_name(group.problem)) + (group.policy == L2Policy::cold ? "" : ", warm L2"),
         html_heat(glance.median_over, mean_cell(glance.median_over)),
         html_heat(glance.worst_over, mean_cell(glance.worst_over)),
         glance.worst ? shape_name(glance.worst->shape) + ": " + escape_html(why(*glance.worst, device.device)) : "",
         std::to_string(group.winners.size()), mean_cell(glance.over_default), mean_cell(glance.over_fa2),
         mean_cell(glance.over_fd)});
  }
  return html_table({"problem", "x limit, median", "x limit, worst", "the worst shape, and why", "shapes", "vs default",
                     "vs FA2", "vs FD"},
                    rows, "nrrwrrrr");
}

std::string environments_table(const DeviceReport& device) {
  std::vector<std::vector<std::string>> rows;
  for (const Environment& e : device.environments) {
    rows.push_back({escape_html(e.driver_release.empty() ? "unknown" : e.driver_release),
                    fmt::format("{}.{}", e.driver_version / 1000, e.driver_version % 1000 / 10),
                    escape_html(e.nvrtc_version), fmt::format("{:.0f}", e.clock_khz / 1000.0),
                    fmt::format("{:.0f}", e.memory_clock_khz / 1000.0),
                    e.power_limit_mw > 0 ? fmt::format("{:.0f}", e.power_limit_mw / 1000.0) : "unknown",
                    e.ecc ? "on" : "off", "<code>" + escape_html(e.library_revision) + "</code>"});
  }
  return html_table({"driver", "CUDA", "NVRTC", "MHz", "memory MHz", "W", "ECC", "library"}, rows, "nnnrrrnn");
}

std::string failures_table(const DeviceReport& device) {
  if (device.failures.empty()) return "<p class=\"note\">No candidate failed.</p>\n";
  std::vector<std::vector<std::string>> rows;
  for (const FailureGroup& group : device.failures) {
    if (rows.size() == kMostFailures) break;
    rows.push_back({std::to_string(group.count), escape_html(group.status), escape_html(group.reason),
                    group.example == group.reason ? "" : escape_html(group.example),
                    "<code>" + escape_html(group.kernel) + "</code>"});
  }
  std::string html = html_table({"trials", "status", "reason", "example", "kernel of the example"}, rows, "rnwwn");
  if (device.failures.size() > kMostFailures)
    html += fmt::format("<p class=\"note\">{} other reasons are in the JSON.</p>\n",
                        device.failures.size() - kMostFailures);
  return html;
}

std::string counts_of(const DeviceReport& device) {
  std::string counts;
  for (const auto& [status, count] : device.trials)
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, escape_html(status));
  return counts;
}

std::string speed_up_figures(const DeviceReport& device) {
  const std::vector<SpeedUpPoint> points = speed_up_points(device);
  std::string figures;
  for (const PaperAxis axis : {PaperAxis::context, PaperAxis::heads, PaperAxis::batch}) {
    figures += html_pair(html_figure("", speed_up_chart(points, axis, Baseline::flash_attention2)) +
                         html_figure("", speed_up_chart(points, axis, Baseline::flash_decoding)));
  }
  if (figures.empty()) return {};
  return "<h4>Lean over FlashAttention-2 and FlashDecoding</h4><p class=\"note\">The winner is compared with the best "
         "trial that has one CTA for each output tile, and with the best one that has the same number of CTAs for "
         "each. "
         "The search stops early with slow candidates, so points without an interval are rough.</p>" +
         figures;
}

std::string device_section(const DeviceReport& device, std::size_t index) {
  const DeviceModel& model = device.device;
  std::string html = fmt::format("<h2 id=\"gpu{}\"><bdi>{}</bdi></h2>\n", index, escape_html(model.name));
  html += fmt::format("<p>{}, {} SMs, {:.0f} MiB L2, {:.0f} GiB{}. {} winners; trials: {}{}.</p>\n",
                      escape_html(model.arch), model.sm_count, static_cast<double>(model.l2_bytes) / (1 << 20),
                      static_cast<double>(model.memory_bytes) / (1 << 30),
                      model.mig_profile.empty() ? "" : ", MIG " + escape_html(model.mig_profile), device.winners.size(),
                      counts_of(device),
                      device.first_trial.empty() ? ""
                                                 : fmt::format(", from {} to {}", escape_html(device.first_trial),
                                                               escape_html(device.last_trial)));
  if (device.unreadable > 0)
    html += fmt::format("<p class=\"bad\">{} winners were written by another version and are left out.</p>\n",
                        device.unreadable);
  if (!device.problems.empty()) {
    html += problems_table(device) + html_heat_key();
    html +=
        html_figure("The time of every winner over its read limit. No kernel that reads the same bytes can be below 1.",
                    distance_chart(device));
    html += speed_up_figures(device);
  }
  for (const ProblemReport& group : device.problems) html += html_problem(device, group);
  html += "<h3>Failures</h3>\n" + failures_table(device);
  return html + "<h3>Environments</h3>\n" + environments_table(device);
}

constexpr const char* kHowToRead =
    "<h2 id=\"how\">How to read this</h2>\n"
    "<p>The <b>read limit</b> is the time of the fastest kernel that only reads the same bytes, measured beside the "
    "candidates. <b>x limit</b> is the winner's median over it. <b>&#177;</b> is half the 95 % bootstrap interval of "
    "the median. <b>vs default</b> is the time of the untuned configuration over the winner's, and <b>vs runner-up</b> "
    "that of the fastest other configuration with at least three samples. A ratio is grey if its interval reaches "
    "1.</p>\n"
    "<p><b>Where the time goes</b> follows from the cost model, which is fitted to this GPU's trials. Start-up is the "
    "launch, the schedule and the first bytes. Stream is the transfer of K and V. Segments is draining and refilling "
    "the ring when a CTA goes on to another output tile. Fix-up is storing and merging partials. The rest is what the "
    "model does not explain.</p>\n"
    "<p>docs/reports.md of leanattn says how each number is computed.</p>\n";

}  // namespace

std::string html_table(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows,
                       std::string_view columns) {
  const auto class_of = [&](std::size_t column) {
    const char kind = column < columns.size() ? columns[column] : 'w';
    return kind == 'r' ? "r" : kind == 'n' ? "nw" : "wrap";
  };
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (std::size_t i = 0; i < headings.size(); ++i)
    html += fmt::format("<th scope=\"col\" class=\"{}\">{}</th>", class_of(i), headings[i]);
  html += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      // A cell of the heat scale is a whole element already.
      html += row[i].starts_with("<td") ? row[i] : fmt::format("<td class=\"{}\">{}</td>", class_of(i), row[i]);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_figure(const std::string& caption, const Chart& chart) {
  if (chart.series.empty()) return {};
  const std::string text = caption.empty() ? chart.label : caption;
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

std::string html_heat_key() {
  std::string html = "<div class=\"key\"><span>times the limit:</span>";
  for (std::size_t i = 0; i <= kHeatSteps.size(); ++i) {
    html += i < kHeatSteps.size() ? fmt::format("<span><i class=\"h{}\"></i>to {:.2f}</span>", i, kHeatSteps[i])
                                  : fmt::format("<span><i class=\"h{}\"></i>more</span>", i);
  }
  return html + "</div>\n";
}

}  // namespace detail

std::string to_html(const Report& report) {
  using namespace detail;
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>leanattn tuning report</title>\n<style>" +
      page_style() + "</style>\n</head>\n<body>\n<h1>leanattn tuning report</h1>\n";
  html += fmt::format("<p class=\"note\">Written by library {}.</p>\n", escape_html(report.library_revision));
  std::string links;
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const DeviceModel& model = report.devices[i].device;
    links += fmt::format("<a href=\"#gpu{}\"><bdi>{}</bdi>, {} SMs</a> ", i, escape_html(model.name), model.sm_count);
  }
  if (report.difference) links += "<a href=\"#difference\">Against an earlier report</a> ";
  if (report.regret) links += "<a href=\"#regret\">Held-out regret</a> ";
  if (report.paper) links += "<a href=\"#paper\">The paper's sweeps</a> ";
  html += "<nav>" + links + "<a href=\"#how\">How to read this</a></nav>\n";
  if (report.devices.empty()) html += "<p>Nothing has been tuned.</p>\n";
  for (std::size_t i = 0; i < report.devices.size(); ++i) html += device_section(report.devices[i], i);
  if (report.difference) html += html_difference(*report.difference);
  if (report.regret) html += html_regret(*report.regret);
  if (report.paper) html += html_paper(*report.paper);
  return html + kHowToRead + "</body>\n</html>\n";
}

}  // namespace v1
}  // namespace leanattn
