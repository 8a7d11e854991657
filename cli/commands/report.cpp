#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <sstream>

#include "cli/commands/commands.hpp"
#include "cli/flags/caches.hpp"
#include "cli/help/command_page.hpp"
#include "generator/parse_json.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct ReportFlags {
  std::string format, out;
  std::string against, paper, regret;  ///< paths of files; empty: not given
};

/// The format that --format names, or else the one that the name of --out ends with, or else Markdown.
std::string chosen_format(const Console& console, const ReportFlags& flags) {
  if (!flags.format.empty()) return flags.format;
  if (console.json) return "json";
  const std::string extension = std::filesystem::path(flags.out).extension().string();
  if (extension == ".htm") return "html";
  return extension == ".json" || extension == ".csv" || extension == ".html" ? extension.substr(1) : "md";
}

Result<std::string> contents(const char* flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (std::filesystem::is_directory(path) || !(file && text << file.rdbuf()))
    return fail(ErrorCode::invalid_argument, fmt::format("{} {} cannot be read", flag, path));
  return text.str();
}

/// The error with the flag and its file in front.
Error of_file(const char* flag, const std::string& path, Error error) {
  error.message = fmt::format("{} {}: {}", flag, path, error.message);
  return error;
}

/// Fills `section` from one file with `read`, which parses its contents. Does nothing when no file was given.
template <class T, class Read>
Result<void> add_given(const char* flag, const std::string& path, std::optional<T>& section, const Read& read) {
  if (path.empty()) return {};
  const Result<std::string> text = contents(flag, path);
  if (!text) return tl::unexpected(text.error());
  Result<T> parsed = read(*text);
  if (!parsed) {
    Error error = of_file(flag, path, parsed.error());
    if (parse_json(*text).is_discarded()) error.message += ": " + json_fault(*text);
    return tl::unexpected(error);
  }
  section = std::move(*parsed);
  return {};
}

Result<void> add_files(Report& report, const ReportFlags& flags) {
  const auto difference = [&](const std::string& text) { return difference_from(text, report); };
  if (auto ok = add_given("--against", flags.against, report.difference, difference); !ok) return ok;
  if (auto ok = add_given("--regret", flags.regret, report.regret, regret_from_json); !ok) return ok;
  return add_given("--paper", flags.paper, report.paper, paper_from_json);
}

std::string rendered(const Report& report, const std::string& format) {
  if (format == "json") return to_json(report);
  if (format == "csv") return to_csv(report);
  return format == "html" ? to_html(report) : to_markdown(report);
}

int run(const Console& console, const ReportFlags& flags) {
  const std::string format = chosen_format(console, flags);
  if (format != "html" && format != "json" && format != "csv" && format != "md") {
    return report_error({ErrorCode::invalid_argument,
                         fmt::format("--format '{}' is not a format", format),
                         "Give html, md, json or csv.",
                         {}});
  }
  const Result<Caches> caches = open_caches(console, CacheNeed::durable);
  if (!caches) return report_error(caches.error());
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(*caches, OpenMode::read_only, CacheNeed::durable);
  if (!db) return report_error(db.error());
  Result<Report> report = make_report(**db);
  if (!report) return report_error(report.error());
  if (report->devices.empty()) {
    return report_error({ErrorCode::not_found,
                         fmt::format("the database in {} has no winners", caches->directory->string()),
                         "Run `leanattn tune` on a GPU, or `leanattn db import FILE`.",
                         {}});
  }
  if (const Result<void> added = add_files(*report, flags); !added) return report_error(added.error());
  const std::string text = rendered(*report, format);
  if (flags.out.empty()) {
    if (format == "json") {
      print_json_text(text);
    } else {
      print(text);
    }
    return kExitOk;
  }
  std::ofstream file(flags.out, std::ios::binary);
  file << text << std::flush;
  if (!file)
    return report_error({ErrorCode::invalid_argument, fmt::format("--out {} cannot be written", flags.out), {}, {}});
  note(console, fmt::format("{} has the report ({} bytes).", flags.out, text.size()));
  return kExitOk;
}

}  // namespace

Command add_report(CLI::App& program) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* app = program.add_subcommand(
      "report",
      "Report everything that was tuned: winners, how far they are from the read limit and why, candidates, failures");
  app->add_option("--format", flags->format,
                  "The format: html, md, json or csv; default: the one that --out's name ends with, else md")
      ->type_name("FORMAT");
  app->add_option("-o,--out", flags->out, "Write to this file instead of stdout")->type_name("FILE");
  app->add_option("--against", flags->against, "Also show what changed since an earlier report, given as its JSON")
      ->type_name("FILE");
  app->add_option("--paper", flags->paper, "Also show the result of `leanattn bench --paper`")->type_name("FILE");
  app->add_option("--regret", flags->regret, "Also show the held-out regret in this file")->type_name("FILE");
  set_examples(*app,
               {{"Write a page with figures", "leanattn report --out report.html"},
                {"Say what changed since an earlier report", "leanattn report --against last.json --out report.html"}});
  return {app, [flags](const Console& console) { return run(console, *flags); }};
}

}  // namespace v1
}  // namespace leanattn
