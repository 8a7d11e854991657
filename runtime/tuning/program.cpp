// program.cpp -- where the program of this library may be.
#include "runtime/tuning/program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <vector>

#include "cache/environment_variable.hpp"
#include "cache/paths.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr const char* kProgram = "leanattn";

bool can_be_run(const std::filesystem::path& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0;
}

Result<std::filesystem::path> named(const std::string& file, const char* where) {
  if (can_be_run(file)) return std::filesystem::path(file);
  return fail(ErrorCode::invalid_argument, fmt::format("{} is {}, which is no program that can be run", where, file),
              "Name the leanattn program of the library's own version, such as /usr/local/bin/leanattn.");
}

}  // namespace

Result<std::filesystem::path> find_leanattn_program(const std::string& given) {
  if (!given.empty()) return named(given, "tune_options.program");
  if (const std::string file = environment_variable("LEANATTN_PROGRAM"); !file.empty())
    return named(file, "LEANATTN_PROGRAM");
  std::vector<std::string> tried;
  const auto found = [&](const std::filesystem::path& file) {
    tried.push_back(file.string());
    return can_be_run(file);
  };
  if (const std::filesystem::path own = own_directory(); !own.empty()) {
    for (const char* folder : {"bin", "../bin", "../../bin"}) {
      const std::filesystem::path file = (own / folder / kProgram).lexically_normal();
      if (found(file)) return file;
    }
  }
  const std::string path = environment_variable("PATH");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::filesystem::path folder = path.substr(begin, end - begin);
    begin = end + 1;
    if (folder.is_absolute() && can_be_run(folder / kProgram)) return folder / kProgram;
  }
  return fail(ErrorCode::not_found,
              fmt::format("the leanattn program, which tunes, is neither {} nor in PATH", fmt::join(tried, ", ")),
              "Install the program beside the library, or set LEANATTN_PROGRAM to its file.");
}

}  // namespace v1
}  // namespace leanattn
