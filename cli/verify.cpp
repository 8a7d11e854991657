#include "tuner/verify.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/caches.hpp"
#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/stop.hpp"
#include "cli/table.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

void print_report(const VerifyReport& report) {
  Table table{.headings = {"group", "cases", "failed", "worst error ratio"}, .rows = {}, .right_aligned = "lrrr"};
  std::int64_t cases = 0;
  std::int64_t failed = 0;
  for (const VerifyGroup& group : report.groups) {
    cases += group.cases;
    failed += group.failed;
    table.rows.push_back({group.name, std::to_string(group.cases), std::to_string(group.failed),
                          fmt::format("{:.2f}", group.worst_error_ratio)});
  }
  print(to_text(table));
  for (const VerifyGroup& group : report.groups) {
    for (const std::string& failure : group.failures) print(fmt::format("FAILED {}: {}\n", group.name, failure));
  }
  const std::string verdict = report.passed ? coloured(stdout, 32, "passed") : coloured(stdout, 31, "FAILED");
  print(fmt::format("{}: {} of {} cases wrong on {}, seed {}, {:.1f} s\n", report.interrupted ? "interrupted" : verdict,
                    failed, cases, report.device.name, report.seed, report.seconds));
}

int run(const Session& session, const VerifyOptions& options) {
  const Result<Caches> caches = open_caches(session, CacheNeed::optional);
  if (!caches) return report_error(caches.error());
  const std::atomic<bool>* stop = stop_on_signals();
  ProgressLine line(session.quiet, is_terminal(stderr));
  std::int64_t groups = 0;
  const auto group_done = [&](const VerifyGroup& group) {
    ++groups;
    if (group.failed > 0) {
      line.clear();
      warn(fmt::format("{}: {} of {} cases wrong", group.name, group.failed, group.cases));
    }
    line.show_transient(fmt::format("{} groups done, last {} ({} cases)", groups, group.name, group.cases));
  };
  const Result<VerifyReport> report = verify(options, caches->cubins.get(), group_done, stop);
  line.clear();
  if (!report) return report_error(report.error());
  if (session.json) {
    print(to_json(*report) + "\n");
  } else {
    print_report(*report);
  }
  // A wrong result found before the interrupt outranks it.
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
      program.add_subcommand("verify", "Compare this GPU's results with the FP64 oracle; exits 5 on a wrong one");
  CLI::Option* quick = app->add_flag("--quick", options->quick, "A cross-section in seconds");
  app->add_flag("--long", options->extended, "Ten times as many random combinations of features")->excludes(quick);
  app->add_option_function<std::string>(
         "--only",
         [options](const std::string& part) {
           if (const auto parsed = parse_verify_part(part)) options->only = *parsed;
         },
         "One part of the run instead of all")
      ->check(CLI::IsMember({"themes", "features", "random", "combinations"}))
      ->type_name("PART");
  app->add_option("--device", options->device, "CUDA ordinal; default 0")->type_name("N");
  app->add_option("--seed", options->seed, "Of the random data")->type_name("N");
  app->add_option("--filter", options->filter, "Only kernels whose name contains this")->type_name("TEXT");
  return {app, [options](const Session& session) { return run(session, *options); }};
}

}  // namespace v1
}  // namespace leanattn
