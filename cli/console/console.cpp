#include "cli/console/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tuner/report/escape.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// What has become of stdout and stderr so far.
struct Streams {
  bool printed = false;              ///< whether data was printed
  int write_error = 0;               ///< errno of the first write to stdout that failed
  std::optional<Error> first_error;  ///< that was reported
};
Streams streams;

/// A JSON document without control characters other than line breaks. Its writer escaped those below 0x20 only, and
/// those from 0x7f to 0x9f steer terminals as well. Outside of strings a document has none of them.
std::string without_controls(std::string_view dumped) {
  std::string text;
  text.reserve(dumped.size());
  for (std::size_t i = 0; i < dumped.size(); ++i) {
    const auto byte = static_cast<unsigned char>(dumped[i]);
    const auto next = static_cast<unsigned char>(i + 1 < dumped.size() ? dumped[i + 1] : 0);
    if (byte == 0x7F) {
      text += "\\u007f";
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      text += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      text += dumped[i];
    }
  }
  return text;
}

std::string json_text(const nlohmann::ordered_json& document) {
  return without_controls(document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) + "\n";
}

}  // namespace

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return kExitOk;
    case ErrorCode::invalid_argument:
    case ErrorCode::unsupported: return kExitUsage;
    case ErrorCode::no_driver:
    case ErrorCode::no_device:
    case ErrorCode::driver_too_old:
    case ErrorCode::nvrtc_missing: return kExitNoDevice;
    case ErrorCode::not_found: return kExitNothingFound;
    case ErrorCode::wrong_result: return kExitWrongResult;
    case ErrorCode::cache_unavailable:
    case ErrorCode::database_corrupt:
    case ErrorCode::database_newer:
    case ErrorCode::database_busy: return kExitDatabase;
    case ErrorCode::interrupted: return kExitInterrupted;
    case ErrorCode::compile_failed:
    case ErrorCode::kernel_rejected:
    case ErrorCode::load_failed:
    case ErrorCode::launch_failed:
    case ErrorCode::out_of_memory:
    case ErrorCode::not_prepared:
    case ErrorCode::context_lost:
    case ErrorCode::workspace_corrupt:
    case ErrorCode::group_broken:
    case ErrorCode::internal: return kExitFailure;
  }
  return kExitFailure;
}

bool is_terminal(std::FILE* stream) {
  if (isatty(fileno(stream)) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

std::size_t terminal_columns(std::FILE* stream) {
  winsize size = {};
  if (!is_terminal(stream) || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

// An empty NO_COLOR counts as unset, as https://no-color.org asks.
bool use_colour(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && is_terminal(stream);
}

std::string coloured(std::FILE* stream, int sgr, std::string_view text) {
  return use_colour(stream) ? fmt::format("\033[{}m{}\033[0m", sgr, text) : std::string(text);
}

// What is larger than the stream's buffer is written here, so that a full disk may show here and not in the flush.
void print(std::string_view text) {
  streams.printed = true;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && streams.write_error == 0)
    streams.write_error = errno != 0 ? errno : EIO;
}

void print_text(std::string_view text) { print(detail::clean_text(text)); }

void print_json(const nlohmann::ordered_json& document) { print(json_text(document)); }

void print_json_text(std::string_view document) { print(without_controls(document)); }

std::string flush_stdout() {
  errno = 0;
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && streams.write_error == 0)
    streams.write_error = errno != 0 ? errno : EIO;
  return streams.write_error == 0 ? std::string() : std::strerror(streams.write_error);
}

void write_stderr(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

void note(const Console& console, std::string_view text) {
  if (!console.quiet) write_stderr(detail::clean_text(text) + "\n");
}

void warn(std::string_view text) {
  write_stderr(fmt::format("leanattn: {}: {}\n", coloured(stderr, 33, "warning"), detail::clean_text(text)));
}

int report_error(const Error& error) {
  if (!streams.first_error) streams.first_error = error;
  write_stderr(fmt::format("leanattn: {}: {}\n", coloured(stderr, 31, "error"), detail::clean_text(error.message)));
  if (!error.hint.empty()) write_stderr(fmt::format("  {}\n", detail::clean_text(error.hint)));
  if (!error.log.empty()) write_stderr(detail::clean_text(error.log) + "\n");
  return exit_code(error.code);
}

int exit_code_after(const std::optional<Error>& failure, const Result<void>& written, bool interrupted) {
  int code = interrupted ? kExitInterrupted : kExitOk;
  if (!written) code = report_error(written.error());
  if (failure) code = report_error(*failure);
  return code;
}

std::optional<std::string> error_document(int exit_code) {
  if (streams.printed || !streams.first_error) return std::nullopt;
  const Error& error = *streams.first_error;
  const nlohmann::ordered_json document{{"schema_version", 1},
                                        {"error",
                                         {{"code", error_code_name(error.code)},
                                          {"exit_code", exit_code},
                                          {"message", error.message},
                                          {"hint", error.hint},
                                          {"log", error.log}}}};
  return json_text(document);
}

}  // namespace v1
}  // namespace leanattn
