#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <sstream>
#include <string_view>
#include <vector>

#include "cli/commands/commands.hpp"
#include "cli/commands/doctor.hpp"
#include "cli/help/command_page.hpp"
#include "cli/help/help_page.hpp"
#include "cli/help/usage_error.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {
namespace {

std::string joined(int argc, const char* const* argv) {
  std::string line = "leanattn";
  for (int i = 1; i < argc; ++i) line += fmt::format(" {}", argv[i]);
  return line;
}

/// Whether --json was given, also on a command line that cannot be parsed.
bool asks_for_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return false;
    if (word == "--json") return true;
  }
  return false;
}

/// Ends the program: writes the JSON of an error where JSON was asked for and nothing else was written, and flushes
/// stdout. The program fails when that does, because a full disk or a closed pipe must not look like success.
int finished(int code, bool json) {
  if (json && code != kExitOk) {
    if (const std::optional<std::string> document = error_document(code)) print(*document);
  }
  const std::string failure = flush_stdout();
  if (failure.empty()) return code;
  report_error({ErrorCode::internal,
                "cannot write to stdout: " + failure,
                "Make room, or write somewhere else, such as with --out FILE.",
                {}});
  return code == kExitOk ? kExitFailure : code;
}

/// Says which flags with a value were given more than once, because only the last value of each counts.
void warn_of_repeated_flags(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() < 2 || option->get_items_expected_max() == 0) continue;
    warn(fmt::format("{} was given {} times; only the last value, {}, counts", option->get_name(), option->count(),
                     option->results().back()));
  }
  for (const CLI::App* below : app.get_subcommands()) warn_of_repeated_flags(*below);
}

/// The flag or argument whose value is empty, as where a script's variable was not set; nullptr: none. No value of any
/// means something when it is empty, and commands would take it for one that was not given.
const CLI::Option* with_empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && option->get_items_expected_max() > 0 && option->results().back().empty()) return option;
  }
  for (const CLI::App* below : app.get_subcommands()) {
    if (const CLI::Option* option = with_empty_value(*below)) return option;
  }
  return nullptr;
}

/// An error that is no Error: a mistake of this program.
Error mistake(const std::exception& error) {
  return {ErrorCode::internal, error.what(), "This is a mistake in leanattn; please report it.", {}};
}

}  // namespace

std::string_view program_version() { return leanattn_version(); }

int run_program(int argc, const char* const* argv) {
  CLI::App program{"LeanAttention decode kernels: generated, compiled, tuned and looked up", "leanattn"};
  program.set_version_flag("--version", fmt::format("leanattn {}", leanattn_version()), "Print the version and exit");
  program.require_subcommand(1);
  program.formatter(help_formatter());
  program.fallthrough();  // Commands inherit this, so that shared flags may follow the command.
  // A flag that is repeated means its last value, so that scripts can append to a line of defaults. A warning says so.
  program.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Console console;
  console.command_line = joined(argc, argv);
  std::string db;
  program.add_flag("--json", console.json, "Print the data as one JSON document");
  program.add_flag("-q,--quiet", console.quiet, "Print no notes and no progress, only warnings and errors");
  program.add_option("--db", db, "The cache directory; default: LEANATTN_CACHE_DIR, else the user's cache")
      ->type_name("DIR");

  std::vector<Command> commands;
  for (auto* add : {add_tune, add_lookup, add_emit, add_prewarm, add_verify, add_bench, add_evaluate, add_recurrent,
                    add_explain, add_report, add_db, add_models, add_families, add_devices, add_doctor, add_completion,
                    add_man, add_worker, add_tune_order}) {
    commands.push_back(add(program));
  }
  set_examples(program, {{"Tune the decode of Llama-3-8B for this GPU within a minute",
                          "leanattn tune --model llama-3-8b --budget 60s"},
                         {"Say what would be launched on an H100, which need not be here",
                          "leanattn lookup --model llama-3-8b --context 8k --arch h100"},
                         {"Say what this machine lacks", "leanattn doctor"}});
  const bool json = asks_for_json(argc, argv);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return finished(report_error(usage_error(program, error)), json);
    std::ostringstream text;  // of help or version
    program.exit(error, text, text);
    print(text.str());
    return finished(kExitOk, json);
  }
  if (const CLI::Option* empty = with_empty_value(program)) {
    const std::string name = empty->get_name();
    return finished(report_error({ErrorCode::invalid_argument,
                                  fmt::format("{} has an empty value", name),
                                  fmt::format("Give {} a value, or leave it out.", name),
                                  {}}),
                    json);
  }
  warn_of_repeated_flags(program);
  if (program.count("--db") > 0) {
    // A path on the command line is relative to the current directory. The library itself refuses relative paths.
    std::error_code ignored;
    const std::filesystem::path absolute = std::filesystem::absolute(db, ignored);
    console.db = ignored ? std::filesystem::path(db) : absolute.lexically_normal();
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    // The doctor says it by itself.
    if (command.app->get_name() != "doctor") {
      for (const Finding& finding : look_at_numbers()) warn(fmt::format("{}: {}", finding.subject, finding.text));
    }
    try {
      return finished(command.body(console), json);
    } catch (const std::bad_alloc&) {
      throw;  // main's
    } catch (const std::exception& error) {
      return finished(report_error(mistake(error)), json);
    }
  }
  return kExitUsage;
}

}  // namespace v1
}  // namespace leanattn
