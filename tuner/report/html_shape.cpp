// html_shape.cpp -- the details of one shape. The style sheet hides them until a link leads to them, so that a page
// without scripts shows the shape that a reader chooses.
#include <fmt/format.h>

#include "tuner/report/escape.hpp"
#include "tuner/report/figures.hpp"
#include "tuner/report/html.hpp"
#include "tuner/report/names.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

std::string row(std::string_view name, std::string_view value) {
  return value.empty() ? std::string() : fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", name, value);
}

std::string rival_row(std::string_view name, const std::optional<Rival>& rival) {
  if (!rival) return {};
  return row(name,
             fmt::format("{} times, {} us, grid {}, <code>{}</code>", escape_html(interval_name(rival->over_winner)),
                         us_name(rival->median_us), rival->config.grid, kernel_name(rival->config.spec)));
}

/// Only load path tensor has an L2 promotion to name.
std::string promotion_of(const Config& config) {
  if (config.spec.load != LoadPath::tensor) return {};
  return fmt::format(", L2 promotion {} bytes", config.l2_promotion);
}

std::string facts(const DeviceReport& device, const ReportedWinner& winner) {
  std::string time = fmt::format("{} us", us_name(winner.median_us));
  if (winner.high_us > 0)
    time += fmt::format(", 95 % interval {:.3f} to {:.3f}, {} samples", winner.low_us, winner.high_us, winner.samples);
  std::string limit;
  if (winner.over_limit() > 0)
    limit =
        fmt::format("{} us; the winner takes {:.2f} times that", us_name(winner.read_limit_us), winner.over_limit());
  const std::string reason = escape_html(why(winner, device.device));
  std::string candidates;
  if (winner.candidates) {
    candidates =
        fmt::format("{} timed, {} kernels; the median is {:.2f} times the best{}", winner.candidates->configurations,
                    winner.candidates->kernels, winner.candidates->quantiles[3], html_strip(*winner.candidates));
  }
  return "<div class=\"scroll\"><table class=\"facts\"><tbody>\n" + row("time", time) +
         row("reads", fmt::format("{}, {:.0f} GB/s", bytes_name(winner.kv_bytes), winner.gb_per_s)) +
         row("read limit", limit) + row("why not faster", reason) + row("where the time goes", html_parts_bar(winner)) +
         row("kernel",
             fmt::format("<code>{}</code>, grid {}{}{}", kernel_name(winner.config.spec), winner.config.grid,
                         promotion_of(winner.config), winner.stale ? ", <span class=\"bad\">stale</span>" : "")) +
         rival_row("default", winner.default_config) + rival_row("runner-up", winner.runner_up) +
         rival_row("FA2 grid", winner.flash_attention2) + rival_row("FD grid", winner.flash_decoding) +
         row("candidates", candidates) + row("measured", escape_html(winner.measured)) + "</tbody></table></div>\n";
}

std::string search_figures(const ReportedWinner& winner) {
  if (winner.progress.empty()) return {};
  const ProgressStep& first = winner.progress.front();
  const ProgressStep& last = winner.progress.back();
  std::string html = fmt::format(
      "<p>The search made {} trials in {:.3g} s. Trial {} was the first with a time, {:.2f} times the best one.</p>\n",
      last.trials, last.seconds, first.trials, first.best_us / last.best_us);
  const Chart by_trials = progress_chart(winner, Effort::trials);
  if (flat_range(by_trials)) return html;
  return html + html_pair(html_figure("", by_trials) + html_figure("", progress_chart(winner, Effort::seconds)));
}

}  // namespace

std::string html_shape(const DevicePlace& place, std::size_t problem, std::size_t position) {
  const ProblemReport& group = place.device.problems[problem];
  const std::size_t index = group.winners[position];
  const ReportedWinner& winner = place.device.winners[index];
  std::string links;
  if (position > 0) links += html_link(shape_id(place, group.winners[position - 1]), "previous shape") + " ";
  if (position + 1 < group.winners.size())
    links += html_link(shape_id(place, group.winners[position + 1]), "next shape") + " ";
  return fmt::format("<section class=\"shape\" id=\"{}\"><h4>{} of {}</h4>\n<p class=\"links\">{}{}</p>\n",
                     shape_id(place, index), shape_name(winner.shape), group_title(group), links,
                     html_link(problem_id(place, problem), "close")) +
         facts(place.device, winner) + search_figures(winner) + "</section>\n";
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
