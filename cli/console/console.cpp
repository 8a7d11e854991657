#include "cli/console/console.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

namespace leanattn {
inline namespace v1 {

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
    case ErrorCode::internal: return kExitFailure;
  }
  return kExitFailure;
}

bool is_terminal(std::FILE* stream) {
  if (isatty(fileno(stream)) == 0) return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) != "dumb";
}

// An empty NO_COLOR counts as unset, as https://no-color.org asks.
bool use_colour(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == '\0') && is_terminal(stream);
}

std::string coloured(std::FILE* stream, int sgr, std::string_view text) {
  return use_colour(stream) ? fmt::format("\033[{}m{}\033[0m", sgr, text) : std::string(text);
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void note(const Console& console, std::string_view text) {
  if (!console.quiet) fmt::print(stderr, "{}\n", text);
}

void warn(std::string_view text) { fmt::print(stderr, "leanattn: {}: {}\n", coloured(stderr, 33, "warning"), text); }

int report_error(const Error& error) {
  fmt::print(stderr, "leanattn: {}: {}\n", coloured(stderr, 31, "error"), error.message);
  if (!error.hint.empty()) fmt::print(stderr, "  {}\n", error.hint);
  if (!error.log.empty()) fmt::print(stderr, "{}\n", error.log);
  return exit_code(error.code);
}

}  // namespace v1
}  // namespace leanattn
