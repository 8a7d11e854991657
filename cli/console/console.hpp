// console.hpp -- Console: the flags that every command takes. The functions here write data and messages to the
// program's streams and give its exit codes. Messages are cleaned of what would steer a terminal, because they quote
// names of drivers, files and imported databases. Main thread only.
#pragma once

#include <cstdio>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The flags that every command takes, and the command line. Not to be confused with a tuning session.
struct Console {
  bool json = false;                        ///< whether data is printed as JSON
  bool quiet = false;                       ///< whether notes and progress are left out
  std::optional<std::filesystem::path> db;  ///< the directory that --db names; nullopt: the default one
  std::string command_line;                 ///< as typed; tuning sessions record it
};

/// The program's exit codes; docs/command-line.md lists them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  ///< every failure without a code of its own
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDevice = 3;
inline constexpr int kExitNothingFound = 4;
inline constexpr int kExitWrongResult = 5;
inline constexpr int kExitDatabase = 6;
inline constexpr int kExitInterrupted = 130;

/// The exit code that an error ends the program with.
int exit_code(ErrorCode code);

/// Writes data to stdout exactly as given.
void print(std::string_view text);
/// Writes text for people to stdout, cleaned like messages.
void print_text(std::string_view text);
/// Writes a document to stdout, two blanks to a level. Control characters in it are escaped, and bytes that are no
/// UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& document);
/// The same for a document that is text already.
void print_json_text(std::string_view document);
/// Flushes stdout. Returns why data could not be written, such as "No space left on device"; empty: everything was.
std::string flush_stdout();
/// Writes to stderr exactly as given. A write that fails changes nothing else, because there is nowhere to say so: a
/// terminal that has gone or a full disk must not end a tuning.
void write_stderr(std::string_view text);
/// Writes a message and a newline to stderr. Does nothing under --quiet.
void note(const Console& console, std::string_view text);
/// Writes "leanattn: warning: text" to stderr, even under --quiet.
void warn(std::string_view text);
/// Writes "leanattn: error: message", the hint and the log to stderr. Returns exit_code(error.code).
int report_error(const Error& error);
/// The exit code of a command whose results were printed, although an error may have ended the measurements, or have
/// kept them from being `written`. Reports both.
int exit_code_after(const std::optional<Error>& failure, const Result<void>& written, bool interrupted);
/// The document {"schema_version": 1, "error": {...}} of the first error that was reported, for a program that ends
/// with it under --json; nullopt when data was printed, which is then the program's one document, or when there was no
/// error.
std::optional<std::string> error_document(int exit_code);

/// The width of the terminal that a stream is; 0 when it is none or does not say.
std::size_t terminal_columns(std::FILE* stream);
/// Whether colours may be written to this stream: it is a terminal that is not dumb, and NO_COLOR is unset.
bool use_colour(std::FILE* stream);
/// Whether the stream is a terminal that understands carriage return and erase-line.
bool is_terminal(std::FILE* stream);
/// The text between the escapes of an SGR number (32 green, 33 yellow, 31 red, 1 bold) if use_colour(stream), else the
/// text alone.
std::string coloured(std::FILE* stream, int sgr, std::string_view text);

}  // namespace v1
}  // namespace leanattn
