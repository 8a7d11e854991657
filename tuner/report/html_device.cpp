// html_device.cpp -- the section of the HTML report about one GPU: headline, problems at a glance, failures,
// environments.
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "tuner/measure/statistics.hpp"
#include "tuner/report/escape.hpp"
#include "tuner/report/failure_groups.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/headline.hpp"
#include "tuner/report/html.hpp"
#include "tuner/report/names.hpp"

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

std::string problems_table(const DevicePlace& place) {
  const DeviceReport& device = place.device;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < device.problems.size(); ++i) {
    const ProblemReport& group = device.problems[i];
    const Glance glance = glance_at(device, group);
    rows.push_back(
        {html_link(problem_id(place, i), group_title(group)),
         html_heat(glance.median_over, mean_cell(glance.median_over)),
         html_heat(glance.worst_over, mean_cell(glance.worst_over)),
         glance.worst ? shape_name(glance.worst->shape) + ": " + escape_html(why(*glance.worst, device.device)) : "",
         std::to_string(group.winners.size()), mean_cell(glance.over_default), mean_cell(glance.over_fa2),
         mean_cell(glance.over_fd)});
  }
  return html_table({"problem", "x limit, median", "x limit, worst", "the worst shape, and why", "shapes", "vs default",
                     "vs FA2", "vs FD"},
                    rows, "nrrwrrrr", TableKind::cards);
}

std::string recurrent_table(const DeviceReport& device) {
  std::vector<std::vector<std::string>> rows;
  for (const ReportedRecurrent& winner : device.recurrent) {
    rows.push_back({escape_html(describe(winner.spec.problem)) + (winner.policy == L2Policy::cold ? "" : ", warm L2"),
                    std::to_string(winner.batch), us_name(winner.median_us),
                    us_name(winner.low_us) + " to " + us_name(winner.high_us), fmt::format("{:.0f}", winner.gb_per_s),
                    html_heat(winner.over_copy(), times_name(winner.over_copy())), times_name(winner.over_rule()),
                    winner.stale ? "stale" : "", "<code>" + escape_html(kernel_name(winner.spec)) + "</code>"});
  }
  return html_table({"layers", "batch", "us", "95 % interval", "GB/s", "x copy", "x rule", "", "kernel"}, rows,
                    "wrrNrrrNN");
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

/// The failures of one status, and the number of their trials in words.
std::string failures_of(const DeviceReport& device, const std::string& status) {
  std::vector<std::vector<std::string>> rows;
  std::int64_t trials = 0;
  std::size_t reasons = 0;
  for (const FailureGroup& group : device.failures) {
    if (group.status != status) continue;
    trials += group.count;
    if (++reasons > kMostFailures) continue;
    rows.push_back({std::to_string(group.count), escape_html(group.reason), escape_html(common_name(group)),
                    group.example == group.reason ? "" : escape_html(group.example),
                    "<code>" + escape_html(group.kernel) + "</code>"});
  }
  std::string table =
      html_table({"trials", "reason", "all of them have", "example", "kernel of the example"}, rows, "rwwwN");
  if (reasons > kMostFailures)
    table += fmt::format("<p class=\"note\">{} other reasons are in the JSON.</p>\n", reasons - kMostFailures);
  return html_details(
      fmt::format("{} {} {}", trials, trials == 1 ? "candidate" : "candidates", escape_html(cause_name(status))),
      table);
}

std::string failures_section(const DeviceReport& device) {
  std::string html = "<h3>Failures</h3>\n";
  if (device.failures.empty()) return html + "<p class=\"note\">No candidate failed.</p>\n";
  std::set<std::string> shown;
  for (const FailureGroup& group : device.failures) {  // the most frequent first
    if (shown.insert(group.status).second) html += failures_of(device, group.status);
  }
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
  return html_details(
      "Lean over FlashAttention-2 and FlashDecoding",
      "<p class=\"note\">The winner is compared with the best "
      "trial that has one CTA for each output tile, and with the best one that has the same number of CTAs for "
      "each. "
      "The search stops early with slow candidates, so points without an interval are rough.</p>" +
          figures);
}

}  // namespace

std::string html_device(const DevicePlace& place) {
  const DeviceReport& device = place.device;
  const DeviceModel& model = device.device;
  std::string html = fmt::format("<h2 id=\"gpu{}\"><bdi>{}</bdi></h2>\n", place.number, escape_html(model.name));
  html += "<p class=\"headline\">" + escape_html(headline_text(device)) + "</p>\n";
  html += fmt::format("<p class=\"note\">{}, {} SMs, {:.0f} MiB L2, {:.0f} GiB{}. Trials: {}{}.</p>\n",
                      escape_html(model.arch), model.sm_count, static_cast<double>(model.l2_bytes) / (1 << 20),
                      static_cast<double>(model.memory_bytes) / (1 << 30),
                      model.mig_profile.empty() ? "" : ", MIG " + escape_html(model.mig_profile), counts_of(device),
                      device.first_trial.empty() ? ""
                                                 : fmt::format(", from {} to {}", escape_html(device.first_trial),
                                                               escape_html(device.last_trial)));
  if (device.unreadable > 0)
    html += fmt::format("<p class=\"bad\">{} winners were written by another version and are left out.</p>\n",
                        device.unreadable);
  if (!device.problems.empty()) {
    html += problems_table(place) + html_heat_key();
    html +=
        html_figure("The time of every winner over its read limit. No kernel that reads the same bytes can be below 1.",
                    distance_chart(device));
    html += speed_up_figures(device);
  }
  for (std::size_t i = 0; i < device.problems.size(); ++i) html += html_problem(place, i);
  if (!device.recurrent.empty()) {
    html +=
        "<h3>Recurrent states</h3>\n<p class=\"note\">A copy reads each state once and writes each that is stored. "
        "The rule is what chooses tunables where nothing was tuned.</p>\n" +
        recurrent_table(device);
  }
  html += failures_section(device);
  return html + html_details("Environments", environments_table(device));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
