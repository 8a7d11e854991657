#include "tuner/verify/verify.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands/commands.hpp"
#include "cli/commands/progress_line.hpp"
#include "cli/console/stop.hpp"
#include "cli/console/table.hpp"
#include "cli/flags/caches.hpp"
#include "cli/help/command_page.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

void print_report(const VerifyReport& report) {
  Table table{
      .headings = {"group", "cases", "failed", "worst error ratio", "seconds"}, .rows = {}, .right_aligned = "lrrrr"};
  std::int64_t cases = 0;
  std::int64_t failed = 0;
  for (const VerifyGroup& group : report.groups) {
    cases += group.cases;
    failed += group.failed;
    table.rows.push_back({group.name, std::to_string(group.cases), std::to_string(group.failed),
                          fmt::format("{:.2f}", group.worst_error_ratio), fmt::format("{:.1f}", group.seconds)});
  }
  print_table(table);
  for (const VerifyGroup& group : report.groups) {
    for (const std::string& failure : group.failures) print_text(fmt::format("FAILED {}: {}\n", group.name, failure));
  }
  const std::string verdict = report.passed ? coloured(stdout, 32, "passed") : coloured(stdout, 31, "FAILED");
  print(report.interrupted ? "interrupted" : verdict);
  print_text(fmt::format(": {} of {} cases were wrong on {}, seed {}, {:.1f} s\n", failed, cases, report.device.name,
                         report.seed, report.seconds));
  if (const auto& coverage = report.coverage) {
    print(fmt::format("The cross-section has {} of {} kernels, with all of their {} traits.\n", coverage->kernels,
                      coverage->of_kernels, coverage->traits));
  }
}

int run(const Console& console, const VerifyOptions& options) {
  const Result<Caches> caches = open_caches(console, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(console.quiet, is_terminal(stderr));
  std::int64_t groups = 0;
  const auto group_done = [&](const VerifyGroup& group) {
    ++groups;
    if (group.failed > 0) {
      line.clear();
      warn(fmt::format("{}: {} of {} cases were wrong", group.name, group.failed, group.cases));
    }
    line.show_transient(
        fmt::format("{} groups are done, the last one is {} ({} cases)", groups, group.name, group.cases));
  };
  const Result<VerifyReport> report = verify(options, caches->cubins.get(), group_done, stop);
  line.clear();
  if (!report) return report_error(report.error());
  if (console.json) {
    print_json_text(to_json(*report) + "\n");
  } else {
    print_report(*report);
  }
  // A wrong result decides the exit code even when the run was interrupted afterwards.
  for (const VerifyGroup& group : report->groups) {
    if (group.failed > 0) return kExitWrongResult;
  }
  if (report->interrupted) return kExitInterrupted;
  return report->passed ? kExitOk : kExitWrongResult;
}

}  // namespace

Command add_verify(CLI::App& program) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* app =
      program.add_subcommand("verify", "Compare this GPU's results with the FP64 oracle; exits 5 when one is wrong");
  CLI::Option* quick =
      app->add_flag("--quick", options->quick,
                    "Check a cross-section: few kernels with every feature on every load path that has it");
  app->add_flag("--long", options->extended, "Check ten times as many random combinations of features")
      ->excludes(quick);
  app->add_option_function<std::string>(
         "--only",
         [options](const std::string& part) {
           if (const auto parsed = parse_verify_part(part)) options->only = *parsed;
         },
         "Run one part of the checks instead of all")
      ->check(CLI::IsMember({"themes", "features", "prefill", "random", "combinations", "groups", "recurrent"})
                  .description(""))
      ->type_name("themes|features|prefill|random|combinations|groups|recurrent");
  app->add_option("--device", options->device, "The CUDA ordinal of the GPU; default 0")->type_name("N");
  app->add_option("--seed", options->seed, "The seed of the random data and combinations")->type_name("N");
  app->add_option("--filter", options->filter, "Check only kernels whose name contains this text")->type_name("TEXT");
  set_examples(*app, {{"Check a cross-section in about half a minute", "leanattn verify --quick"},
                      {"Check the kernels of one load path", "leanattn verify --filter tensor"}});
  return {app, [options](const Console& console) { return run(console, *options); }};
}

}  // namespace v1
}  // namespace leanattn
