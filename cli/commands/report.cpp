#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <memory>

#include "cli/commands/commands.hpp"
#include "cli/flags/caches.hpp"
#include "cli/flags/files.hpp"
#include "cli/help/command_page.hpp"
#include "generator/parse_json.hpp"
#include "tuner/report/read_report.hpp"
#include "tuner/report/render.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct ReportFlags {
  std::string format, out;
  std::string from;                    ///< the path of a report's JSON; empty: the database is reported
  std::string against, paper, regret;  ///< paths of files; empty: not given
};

/// The format that --format names, or else the one that the name of --out ends with. Without an ending it is Markdown.
/// Errors: invalid_argument.
Result<std::string> chosen_format(const Console& console, const ReportFlags& flags) {
  constexpr std::array<std::pair<std::string_view, const char*>, 7> kEndings = {{{".html", "html"},
                                                                                 {".htm", "html"},
                                                                                 {".json", "json"},
                                                                                 {".csv", "csv"},
                                                                                 {".md", "md"},
                                                                                 {".markdown", "md"},
                                                                                 {"", "md"}}};
  if (!flags.format.empty()) {
    for (const auto& [ending, format] : kEndings) {
      if (flags.format == format) return flags.format;
    }
    return fail(ErrorCode::invalid_argument, fmt::format("--format '{}' is not a format", flags.format),
                "Give html, md, json or csv.");
  }
  if (console.json) return "json";
  const std::string ending = CLI::detail::to_lower(std::filesystem::path(flags.out).extension().string());
  for (const auto& [known, format] : kEndings) {
    if (ending == known) return format;
  }
  return fail(ErrorCode::invalid_argument,
              fmt::format("--out {}: no report has a name that ends in {}", flags.out, ending),
              "Let the name end in .html, .md, .json or .csv, or give --format.");
}

/// The error with the flag and its file in front, and behind it where the file's text is no JSON.
Error of_file(const char* flag, const std::string& path, const std::string& text, Error error) {
  error.message = fmt::format("{} {}: {}", flag, path, error.message);
  if (parse_json(text).is_discarded()) error.message += ": " + json_fault(text);
  return error;
}

/// Fills `section` from one file with `read`, which parses its contents. Does nothing when no file was given.
template <class T, class Read>
Result<void> add_given(const char* flag, const std::string& path, std::optional<T>& section, const Read& read) {
  if (path.empty()) return {};
  const Result<std::string> text = read_given(flag, path);
  if (!text) return tl::unexpected(text.error());
  Result<T> parsed = read(*text);
  if (!parsed) return tl::unexpected(of_file(flag, path, *text, parsed.error()));
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

/// The report of the database. Errors: those of the database; not_found if it has no winners.
Result<Report> report_of_database(const Console& console) {
  const Result<Caches> caches = open_caches(console, CacheNeed::readable);
  if (!caches) return tl::unexpected(caches.error());
  const Result<std::unique_ptr<TuningDb>> db = open_tuning(*caches, OpenMode::read_only, CacheNeed::durable);
  if (!db) return tl::unexpected(db.error());
  Result<Report> report = make_report(**db);
  if (report && report->devices.empty()) {
    return fail(ErrorCode::not_found, fmt::format("the database in {} has no winners", caches->directory->string()),
                "Run `leanattn tune` on a GPU, or `leanattn db import FILE`.");
  }
  return report;
}

/// The report that a file has as JSON. Errors: invalid_argument.
Result<Report> report_of_file(const Console& console, const std::string& path) {
  if (console.db)
    return fail(ErrorCode::invalid_argument, "--from and --db are two sources of one report", "Give one of them.");
  const Result<std::string> text = read_given("--from", path);
  if (!text) return tl::unexpected(text.error());
  Result<Report> report = report_from_json(*text);
  if (!report) return tl::unexpected(of_file("--from", path, *text, report.error()));
  return report;
}

int run(const Console& console, const ReportFlags& flags) {
  const Result<std::string> format = chosen_format(console, flags);
  if (!format) return report_error(format.error());
  Result<Report> report = flags.from.empty() ? report_of_database(console) : report_of_file(console, flags.from);
  if (!report) return report_error(report.error());
  if (const Result<void> added = add_files(*report, flags); !added) return report_error(added.error());
  const std::string text = rendered(*report, *format);
  if (flags.out.empty()) {
    if (format == "json") {
      print_json_text(text);
    } else {
      print(text);
    }
    return kExitOk;
  }
  if (const Result<void> written = write_out(flags.out, text); !written) return report_error(written.error());
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
  app->add_option("--from", flags->from, "Show the report in this file, given as its JSON, instead of the database's")
      ->type_name("FILE");
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
