// commands.hpp -- one function for each command of the program. It registers the command's flags and returns what runs
// it. Main thread only.
#pragma once

#include <functional>
#include <string_view>

#include "cli/console/console.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// Runs the command after the command line has been parsed, and returns the exit code. Owns the parsed flags.
using CommandBody = std::function<int(const Console&)>;

struct Command {
  CLI::App* app = nullptr;  ///< owned by the program
  CommandBody body;
};

Command add_tune(CLI::App& program);
Command add_lookup(CLI::App& program);
Command add_emit(CLI::App& program);
Command add_prewarm(CLI::App& program);
Command add_verify(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_evaluate(CLI::App& program);
Command add_recurrent(CLI::App& program);
Command add_explain(CLI::App& program);
Command add_report(CLI::App& program);
Command add_db(CLI::App& program);
Command add_models(CLI::App& program);
Command add_families(CLI::App& program);
Command add_devices(CLI::App& program);
Command add_doctor(CLI::App& program);
/// Prints a completion script. `program` must have all of its commands when the command runs.
Command add_completion(CLI::App& program);
/// A hidden command: the build writes the man page with it.
Command add_man(CLI::App& program);
/// A hidden command: a tuning session starts it as a worker.
Command add_worker(CLI::App& program);
Command add_tune_order(CLI::App& program);

/// The program's version: "1.2.3".
std::string_view program_version();

/// The whole program: parses the command line, runs one command and flushes stdout. Returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace v1
}  // namespace leanattn
