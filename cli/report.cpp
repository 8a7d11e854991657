#include "tuner/report.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>

#include "cli/caches.hpp"
#include "cli/commands.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct ReportFlags {
  std::string format;
  std::string out;
};

/// --format, else what the output file's name says, else Markdown.
std::string chosen_format(const Session& session, const ReportFlags& flags) {
  if (!flags.format.empty()) return flags.format;
  if (session.json) return "json";
  const std::string extension = std::filesystem::path(flags.out).extension().string();
  if (extension == ".json" || extension == ".csv") return extension.substr(1);
  return "md";
}

int run(const Session& session, const ReportFlags& flags) {
  const std::string format = chosen_format(session, flags);
  if (format != "json" && format != "csv" && format != "md") {
    return report_error(
        {ErrorCode::invalid_argument, fmt::format("--format '{}': unknown", format), "Give json, csv or md.", {}});
  }
  const Result<Caches> caches = open_caches(session, CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(*caches, OpenMode::read_only, CacheNeed::durable);
  if (!db) return report_error(db.error());
  const Result<Report> report = make_report(**db);
  if (!report) return report_error(report.error());
  if (report->devices.empty()) {
    return report_error({ErrorCode::not_found,
                         fmt::format("nothing has been tuned in {}", caches->directory->string()),
                         "Run `leanattn tune` on a GPU, or `leanattn db import FILE`.",
                         {}});
  }
  const std::string text = format == "json"  ? to_json(*report)
                           : format == "csv" ? to_csv(*report)
                                             : to_markdown(*report);
  if (flags.out.empty()) {
    print(text);
    return kExitOk;
  }
  std::ofstream file(flags.out, std::ios::binary);
  file << text << std::flush;
  if (!file)
    return report_error({ErrorCode::invalid_argument, fmt::format("--out {}: cannot be written", flags.out), {}, {}});
  note(session, fmt::format("{}: {} bytes", flags.out, text.size()));
  return kExitOk;
}

}  // namespace

Command add_report(CLI::App& program) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* app =
      program.add_subcommand("report", "Everything that has been tuned: GPUs, environments, winners, trial counts");
  app->add_option("--format", flags->format, "json, csv or md; default: from --out's name, else md")
      ->type_name("FORMAT");
  app->add_option("-o,--out", flags->out, "Write to a file instead of stdout")->type_name("FILE");
  return {app, [flags](const Session& session) { return run(session, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
