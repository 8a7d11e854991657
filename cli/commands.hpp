// commands.hpp -- one function a command: registers its flags and returns what runs it. Main thread only.
#pragma once

#include <functional>

#include "cli/session.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// Runs after parsing; returns the exit code. Owns the parsed flags.
using CommandBody = std::function<int(const Session&)>;

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
Command add_explain(CLI::App& program);
Command add_report(CLI::App& program);
Command add_db(CLI::App& program);
Command add_devices(CLI::App& program);
Command add_doctor(CLI::App& program);
/// Hidden: what `tune` starts, to drive one device on its behalf.
Command add_worker(CLI::App& program);

/// The whole program: parses, runs one command, flushes stdout. Returns the exit code.
int run_program(int argc, const char* const* argv);

}  // namespace v1
}  // namespace leanattn
