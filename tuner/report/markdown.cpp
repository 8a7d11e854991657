// markdown.cpp -- writes the report as tables for a terminal, an issue or a wiki.
#include <fmt/format.h>

#include "tuner/report/escape.hpp"
#include "tuner/report/failure_groups.hpp"
#include "tuner/report/headline.hpp"
#include "tuner/report/names.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using namespace detail;

constexpr std::size_t kMostFailures = 10, kMostRegretRows = 10;

std::string ratio_of(const std::optional<Rival>& rival) { return rival ? ratio_name(rival->over_winner) : "-"; }

std::string margin_of(const std::optional<Rival>& rival) {
  return rival ? interval_name(rival->over_winner) : std::string("-");
}

void append_environments(std::string& text, const DeviceReport& device) {
  for (const Environment& environment : device.environments) {
    text += fmt::format("\n- driver {} (CUDA {}.{}), NVRTC {}, {:.0f} MHz, ECC {}, library {}",
                        environment.driver_release.empty() ? "unknown" : escape_markdown(environment.driver_release),
                        environment.driver_version / 1000, environment.driver_version % 1000 / 10,
                        escape_markdown(environment.nvrtc_version), environment.clock_khz / 1000.0,
                        environment.ecc ? "on" : "off", escape_markdown(environment.library_revision));
  }
  if (!device.environments.empty()) text += "\n";
}

void append_winners(std::string& text, const DeviceReport& device) {
  if (device.winners.empty()) return;
  text +=
      "\n| heads | batch x context | L2 | kernel | grid | us | 95% interval | GB/s | of read limit | stale |\n"
      "|---|---|---|---|--:|--:|--:|--:|--:|---|\n";
  for (const ReportedWinner& winner : device.winners) {
    text += fmt::format("| {} | {} | {} | `{}` | {} | {} | {} to {} | {:.0f} | {} | {} |\n",
                        escape_markdown(problem_name(winner.problem)), shape_name(winner.shape),
                        to_string(winner.policy), kernel_name(winner.config.spec), winner.config.grid,
                        us_name(winner.median_us), us_name(winner.low_us), us_name(winner.high_us), winner.gb_per_s,
                        winner.read_limit_us > 0 ? fmt::format("{:.0f}%", 100 * winner.read_limit_share) : "unknown",
                        winner.stale ? "yes" : "");
  }
  text +=
      "\n### Margins\n\nEach ratio is another configuration's time over the winner's. It has a 95% interval if there "
      "are "
      "enough samples. FA2 is the best with one CTA for each output tile, and FD the best with the same number of CTAs "
      "for each.\n\n"
      "| heads | batch x context | L2 | x limit | why not faster | default | runner-up | FA2 | FD | timed | median "
      "candidate |\n|---|---|---|--:|---|--:|--:|--:|--:|--:|--:|\n";
  for (const ReportedWinner& winner : device.winners) {
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                    escape_markdown(problem_name(winner.problem)), shape_name(winner.shape), to_string(winner.policy),
                    winner.over_limit() > 0 ? fmt::format("{:.2f}", winner.over_limit()) : "unknown",
                    escape_markdown(why(winner, device.device)), margin_of(winner.default_config),
                    margin_of(winner.runner_up), ratio_of(winner.flash_attention2), ratio_of(winner.flash_decoding),
                    winner.candidates ? winner.candidates->configurations : 0,
                    winner.candidates ? fmt::format("{:.2f}", winner.candidates->quantiles[3]) : "-");
  }
}

void append_recurrent(std::string& text, const DeviceReport& device) {
  if (device.recurrent.empty()) return;
  text +=
      "\n### Recurrent states\n\nA copy reads each state once and writes each that is stored. The rule is what chooses "
      "tunables where nothing was tuned.\n\n"
      "| layers | batch | L2 | kernel | us | 95% interval | GB/s | x copy | x rule | stale |\n"
      "|---|--:|---|---|--:|--:|--:|--:|--:|---|\n";
  for (const ReportedRecurrent& winner : device.recurrent) {
    text += fmt::format("| {} | {} | {} | `{}` | {} | {} to {} | {:.0f} | {} | {} | {} |\n",
                        escape_markdown(describe(winner.spec.problem)), winner.batch, to_string(winner.policy),
                        kernel_name(winner.spec), us_name(winner.median_us), us_name(winner.low_us),
                        us_name(winner.high_us), winner.gb_per_s, times_name(winner.over_copy()),
                        times_name(winner.over_rule()), winner.stale ? "yes" : "");
  }
}

void append_sensitivity(std::string& text, const DeviceReport& device) {
  bool any = false;
  for (const ProblemReport& group : device.problems) any = any || !group.sensitivity.empty();
  if (!any) return;
  text +=
      "\n### Sensitivity\n\nEach number is the best time with a value over the best time of all, as the geometric mean "
      "over the "
      "shapes for which the value was tried.\n\n"
      "| heads | L2 | parameter | values |\n|---|---|---|---|\n";
  for (const ProblemReport& group : device.problems) {
    for (const ParameterSensitivity& parameter : group.sensitivity) {
      std::string values;
      for (const ParameterValue& value : parameter.values)
        values +=
            fmt::format("{}{}: {:.2f}", values.empty() ? "" : ", ", escape_markdown(value.value), value.geometric_mean);
      text += fmt::format("| {} | {} | {} | {} |\n", escape_markdown(problem_name(group.problem)),
                          to_string(group.policy), escape_markdown(parameter.parameter), values);
    }
  }
}

void append_failures(std::string& text, const DeviceReport& device) {
  if (device.failures.empty()) return;
  text +=
      "\n### Failures\n\n| trials | cause | reason | all of them have | example of a kernel |\n|--:|---|---|---|---|\n";
  for (std::size_t i = 0; i < std::min(device.failures.size(), kMostFailures); ++i) {
    const FailureGroup& group = device.failures[i];
    text += fmt::format("| {} | {} | {} | {} | {} |\n", group.count, escape_markdown(cause_name(group.status)),
                        escape_markdown(group.reason), escape_markdown(common_name(group)),
                        group.kernel.empty() ? "-" : "`" + group.kernel + "`");
  }
  if (device.failures.size() > kMostFailures)
    text += fmt::format("\n{} other reasons are in the JSON.\n", device.failures.size() - kMostFailures);
}

void append_difference(std::string& text, const ReportDifference& difference) {
  text += fmt::format(
      "\n## Against an earlier report\n\n{} winners are faster, {} are slower, and {} are the same within their "
      "intervals. "
      "{} are new and {} are lost. {} of those in both reports have another configuration. The earlier report is of "
      "library {}.\n\n| GPU | problem | shape | L2 | earlier, us | now, us | ratio | verdict "
      "|\n|---|---|---|---|--:|--:|--:|---|\n",
      difference.count("faster"), difference.count("slower"), difference.count("same"), difference.count("new"),
      difference.count("lost"), difference.replaced(), escape_markdown(difference.old_revision));
  for (const WinnerChange& change : difference.changes) {
    const auto problem = problem_from_json(change.problem);
    const auto shape = shape_from_json(change.shape);
    text +=
        fmt::format("| {} | {} | {} | {} | {} | {} | {} | {}{} |\n", escape_markdown(change.device),
                    escape_markdown(problem ? problem_name(*problem) : change.problem),
                    escape_markdown(shape ? shape_name(*shape) : change.shape), to_string(change.policy),
                    change.old_us > 0 ? us_name(change.old_us) : "-", change.new_us > 0 ? us_name(change.new_us) : "-",
                    interval_name({.ratio = change.ratio, .low = change.ratio_low, .high = change.ratio_high}),
                    change.verdict(), change.config_changed ? ", other configuration" : "");
  }
}

void append_regret(std::string& text, const RegretReport& report) {
  text += fmt::format(
      "\n## Held-out regret\n\n{} untuned shapes were looked up and then searched in full. The looked-up configuration "
      "was "
      "{:.2f} % slower than the best in the median, {:.2f} % at the ninetieth percentile, and {:.2f} % at "
      "most.\n\n| problem | shape | answer | looked up, us | best, us | regret |\n|---|---|---|--:|--:|--:|\n",
      report.cases.size(), 100 * report.median, 100 * report.ninetieth, 100 * report.largest);
  for (std::size_t i = 0; i < std::min(report.cases.size(), kMostRegretRows); ++i) {
    const HeldOutCase& one = report.cases[i];
    text += fmt::format("| {} | {} | {} | {} | {} | {:.2f} % |\n", escape_markdown(problem_name(one.problem)),
                        shape_name(one.shape), escape_markdown(one.answer), us_name(one.looked_up_us),
                        us_name(one.best_us), 100 * one.regret());
  }
}

}  // namespace

std::string to_markdown(const Report& report) {
  std::string text = "# leanattn tuning report\n";
  if (report.devices.empty()) text += "\nNothing has been tuned.\n";
  for (const DeviceReport& device : report.devices) {
    text += fmt::format("\n## {}\n\n{}, {} SMs, {:.0f} MiB L2{}\n", escape_markdown(device.device.name),
                        escape_markdown(device.device.arch), device.device.sm_count,
                        static_cast<double>(device.device.l2_bytes) / (1 << 20),
                        device.device.mig_profile.empty() ? "" : ", MIG " + escape_markdown(device.device.mig_profile));
    text += "\n" + escape_markdown(headline_text(device)) + "\n";
    append_environments(text, device);
    append_winners(text, device);
    append_recurrent(text, device);
    append_sensitivity(text, device);
    append_failures(text, device);
    if (device.unreadable > 0)
      text += fmt::format("\n{} winners were written by another version and are left out.\n", device.unreadable);
    std::string counts;
    for (const auto& [status, count] : device.trials)
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, status);
    if (!counts.empty())
      text += fmt::format("\nTrials: {}; from {} to {}.\n", counts, escape_markdown(device.first_trial),
                          escape_markdown(device.last_trial));
  }
  if (report.difference) append_difference(text, *report.difference);
  if (report.regret) append_regret(text, *report.regret);
  if (report.paper) text += "\n" + to_markdown(*report.paper, {});
  return text;
}

}  // namespace v1
}  // namespace leanattn
