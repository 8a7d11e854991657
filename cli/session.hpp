// session.hpp -- what every command shares: output switches, the cache directory, exit codes. Main thread only.
#pragma once

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The flags that every command takes, and the command line as typed (recorded with tuning sessions).
struct Session {
  bool json = false;
  bool quiet = false;                       ///< no notes and no progress; warnings and errors stay
  std::optional<std::filesystem::path> db;  ///< --db DIR
  std::string command_line;
};

/// The program's exit codes; docs/command-line.md lists them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  ///< anything without a code of its own
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDevice = 3;
inline constexpr int kExitNothingFound = 4;
inline constexpr int kExitWrongResult = 5;
inline constexpr int kExitDatabase = 6;
inline constexpr int kExitInterrupted = 130;

/// The exit code that an error ends the program with.
int exit_code(ErrorCode code);

/// Data, to stdout, exactly as given.
void print(std::string_view text);
/// A message to stderr, with a newline; silent under --quiet.
void note(const Session& session, std::string_view text);
/// "leanattn: warning: text" to stderr, even under --quiet.
void warn(std::string_view text);
/// "leanattn: error: message", the hint and the log to stderr. Returns exit_code(error.code).
int report_error(const Error& error);

/// Whether escapes may be written to this stream: a terminal that is not dumb, and NO_COLOR is unset.
bool use_colour(std::FILE* stream);
/// Whether the stream is a terminal that understands carriage return and erase-line.
bool is_terminal(std::FILE* stream);
/// text between the escapes of an SGR colour number (32 green, 33 yellow, 31 red, 1 bold) when use_colour(stream).
std::string coloured(std::FILE* stream, int sgr, std::string_view text);

}  // namespace v1
}  // namespace leanattn
