#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <vector>

#include "cli/commands/commands.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr const char* kFooter =
    "Data goes to stdout, messages to stderr. Sizes take k, m and g (binary).\n"
    "Exit codes: 0 ok, 1 other failure, 2 usage, 3 no usable device, driver or NVRTC, 4 nothing found,\n"
    "5 a result was wrong, 6 database, 130 interrupted.";

std::string joined(int argc, const char* const* argv) {
  std::string line = "leanattn";
  for (int i = 1; i < argc; ++i) line += fmt::format(" {}", argv[i]);
  return line;
}

/// Flushes stdout. The program fails when that does, because a full disk or a closed pipe must not look like success.
int flushed(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "leanattn: error: cannot write to stdout: {}\n", std::strerror(errno));
  return code == kExitOk ? kExitFailure : code;
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  CLI::App program{"LeanAttention decode kernels: generated, compiled, tuned and looked up", "leanattn"};
  program.set_version_flag("--version", "leanattn " LEANATTN_VERSION, "Print the version and exit");
  program.require_subcommand(1);
  program.footer(kFooter);
  program.fallthrough();  // Commands inherit this, so that shared flags may follow the command.
  // A flag that is repeated means its last value, so that scripts can append to a line of defaults.
  program.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  program.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("leanattn: error: {}\n  Run with --help for usage.\n", error.what());
  });

  Console console;
  console.command_line = joined(argc, argv);
  std::string db;
  program.add_flag("--json", console.json, "Print the data as one JSON document");
  program.add_flag("-q,--quiet", console.quiet, "Print no notes and no progress, only warnings and errors");
  program.add_option("--db", db, "The cache directory; default: LEANATTN_CACHE_DIR, else the user's cache")
      ->type_name("DIR");

  std::vector<Command> commands;
  for (auto* add : {add_tune, add_lookup, add_emit, add_prewarm, add_verify, add_bench, add_evaluate, add_explain,
                    add_report, add_db, add_devices, add_doctor, add_worker}) {
    commands.push_back(add(program));
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 says that a command is missing before it names the word that it does not know. The word helps more.
    const std::vector<std::string> left = program.remaining();
    if (program.get_subcommands().empty() && error.get_exit_code() != 0 && !left.empty()) {
      return report_error({ErrorCode::invalid_argument,
                           fmt::format("'{}' is neither a command nor a flag", left.front()),
                           "Run leanattn --help for the commands.",
                           {}});
    }
    const int code = program.exit(error, std::cout, std::cerr);
    std::cout.flush();
    return code == 0 ? kExitOk : kExitUsage;
  }
  if (program.count("--db") > 0) {
    if (db.empty()) {
      return report_error({ErrorCode::invalid_argument,
                           "--db '' does not name a directory",
                           "Give a directory, or leave --db out.",
                           {}});
    }
    // A path on the command line is relative to the current directory. The library itself refuses relative paths.
    std::error_code ignored;
    const std::filesystem::path absolute = std::filesystem::absolute(db, ignored);
    console.db = ignored ? std::filesystem::path(db) : absolute.lexically_normal();
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    try {
      return flushed(command.body(console));
    } catch (const std::bad_alloc&) {
      throw;  // main's
    } catch (const std::exception& error) {
      fmt::print(stderr, "leanattn: error: {}\n  This is a mistake in leanattn; please report it.\n", error.what());
      return kExitFailure;
    }
  }
  return kExitUsage;
}

}  // namespace v1
}  // namespace leanattn
