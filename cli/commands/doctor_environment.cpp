#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "cli/commands/doctor.hpp"
#include "runtime/engine/launch_status.hpp"

extern char** environ;

namespace leanattn {
inline namespace v1 {
namespace {

/// Says what one variable's value is worth. Only faults that would otherwise pass in silence are found here, because a
/// variable's user reports all others.
using Judge = Finding (*)(const std::string& name, const std::string& value);

Finding accept(const std::string& name, const std::string& value) { return good(name, value); }

Finding judge_number(const std::string& name, const std::string& value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size() && number >= 0) return good(name, value);
  return doubtful(name, fmt::format("'{}' is not a whole number of 0 or more, so the default is used", value),
                  fmt::format("Correct it or unset {}.", name));
}

Finding judge_bound(const std::string& name, const std::string& value) {
  if (parse_bound(value)) return good(name, value);
  return doubtful(name, fmt::format("'{}' is not a number of milliseconds from 1 to {}", value, kLongestBoundMs),
                  fmt::format("Correct it or unset {}.", name));
}

/// The backend for vLLM refuses what is not finite or below 0. It takes a few texts more than this, such as "+60".
Finding judge_seconds(const std::string& name, const std::string& value) {
  double seconds = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error == std::errc() && end == value.data() + value.size() && seconds >= 0 && std::isfinite(seconds))
    return good(name, value);
  return doubtful(name, fmt::format("'{}' is not a plain number of seconds, so vLLM may not start", value),
                  fmt::format("Correct it or unset {}.", name));
}

/// A library that is looked for nowhere else once it is named.
Finding judge_library(const std::string& name, const std::string& value, const char* library, const char* example) {
  std::error_code error;
  // The loader looks for a name without a slash in its own directories.
  if (value.find('/') == std::string::npos || std::filesystem::is_regular_file(value, error)) return good(name, value);
  return doubtful(name, fmt::format("'{}' is not a file, and no other {} is looked for", value, library),
                  fmt::format("Name the file itself, such as {}, or unset it.", example));
}

Finding judge_nvrtc_file(const std::string& name, const std::string& value) {
  return judge_library(name, value, "NVRTC", "/usr/local/cuda/lib64/libnvrtc.so.13");
}

Finding judge_nccl_file(const std::string& name, const std::string& value) {
  return judge_library(name, value, "NCCL", "/usr/lib/x86_64-linux-gnu/libnccl.so.2");
}

Finding judge_nvrtc_directory(const std::string& name, const std::string& value) {
  std::error_code error;
  if (std::filesystem::is_directory(value, error)) return good(name, value);
  return doubtful(name, fmt::format("'{}' is not a directory", value),
                  "Name the directory of libnvrtc.so, or a site-packages directory with NVIDIA's wheels, or unset it.");
}

Finding judge_capture(const std::string& name, const std::string& value) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::absolute(value, error);
  const bool exists = !error && std::filesystem::exists(file, error);
  const bool writable = exists ? std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), W_OK) == 0
                               : ::access(file.parent_path().c_str(), W_OK | X_OK) == 0;
  if (writable) return good(name, value);
  return doubtful(name, fmt::format("'{}' cannot be written, so no calls are captured", value),
                  "Name a file in a directory that exists and that you may write to.");
}

Finding judge_program(const std::string& name, const std::string& value) {
  std::error_code error;
  if (std::filesystem::is_regular_file(value, error) && ::access(value.c_str(), X_OK) == 0) return good(name, value);
  return doubtful(name, fmt::format("'{}' is no program that can be run, so engines cannot tune", value),
                  "Name the leanattn program of the library's own version, or unset it.");
}

Finding judge_debug(const std::string& name, const std::string& value) {
  if (value == "0") return good(name, "off");
  return doubtful(name, fmt::format("'{}' makes engines check every launch, which is slow", value),
                  "Unset it unless you are looking for a fault.");
}

Finding judge_visible(const std::string& name, const std::string& value) {
  if (!value.empty() && !value.starts_with("-1")) return good(name, value);
  return doubtful(name, fmt::format("'{}' hides every GPU", value), "Unset it, or name ordinals or UUIDs.");
}

struct Variable {
  const char* name;
  Judge judge;
};
constexpr Variable kVariables[] = {
    {"LEANATTN_CACHE_DIR", accept},  // look_at_caches() judges these three
    {"LEANATTN_SITE_DB", accept},
    {"LEANATTN_SHIPPED_DB", accept},
    {"LEANATTN_CUBIN_CACHE_MB", judge_number},
    {"LEANATTN_BUSY_TIMEOUT_MS", judge_number},
    {"LEANATTN_WAIT_BOUND_MS", judge_bound},
    {"LEANATTN_JOIN_BOUND_MS", judge_bound},
    {"LEANATTN_NVRTC_LIB", judge_nvrtc_file},
    {"LEANATTN_NVRTC_DIR", judge_nvrtc_directory},
    {"LEANATTN_NCCL_LIB", judge_nccl_file},
    {"LEANATTN_CAPTURE", judge_capture},
    {"LEANATTN_DEBUG", judge_debug},
    {"LEANATTN_PROGRAM", judge_program},
    {"LEANATTN_VLLM_CONTEXT", judge_number},  // The backend for vLLM reads these four.
    {"LEANATTN_VLLM_RECURRENT", accept},
    {"LEANATTN_VLLM_TUNE", judge_seconds},
    {"LEANATTN_VLLM_UNTRIED", accept},
    {"LEANATTN_SGLANG_CONTEXT", judge_number},  // The backend for SGLang reads these three.
    {"LEANATTN_SGLANG_RECURRENT", accept},
    {"LEANATTN_SGLANG_UNTRIED", accept},
    {"LEANATTN_CUDA_WHEELS", accept},  // The project's scripts and tests read these.
    {"LEANATTN_FA3_LIBRARY", accept},
    {"LEANATTN_TEST_JOBS", accept},
    {"LEANATTN_LINT_SHARES", accept},
    {"LEANATTN_TEST_SEED", accept},
    {"LEANATTN_TEST_SECONDS", accept},
    {"LEANATTN_TEST_THOROUGH", accept},
    {"LEANATTN_ATTACK", accept},
    {"LEANATTN_GROUP_REPLAYS", accept},
    {"LEANATTN_GROUP_KILLS", accept},
    {"CUDA_VISIBLE_DEVICES", judge_visible},
};

/// The value of a variable of this process; empty: it is unset.
std::string value_here(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? "" : value;
}

}  // namespace

Findings judge_environment(const std::vector<std::string>& names,
                           const std::function<std::string(std::string_view)>& value_of) {
  Findings findings;
  for (const std::string& name : names) {
    const auto known = std::find_if(std::begin(kVariables), std::end(kVariables),
                                    [&](const Variable& variable) { return name == variable.name; });
    if (known != std::end(kVariables)) {
      const std::string value = value_of(name);
      // An empty variable counts as unset, except that an empty CUDA_VISIBLE_DEVICES hides all GPUs.
      if (!value.empty() || name == "CUDA_VISIBLE_DEVICES") findings.push_back(known->judge(name, value));
    } else if (name.starts_with("LEANATTN_")) {
      findings.push_back(doubtful(name, "no part of leanattn reads this variable",
                                  "It may be a misspelling. docs/environment.md lists the variables."));
    }
  }
  return findings;
}

Findings look_at_environment() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    names.emplace_back(text.substr(0, text.find('=')));
  }
  std::sort(names.begin(), names.end());
  return judge_environment(names, value_here);
}

Findings look_at_numbers() {
  std::vector<std::string> names;
  for (const Variable& variable : kVariables) {
    if (variable.judge == judge_number || variable.judge == judge_bound) names.emplace_back(variable.name);
  }
  Findings findings = judge_environment(names, value_here);
  std::erase_if(findings, [](const Finding& finding) { return finding.level == Finding::Level::ok; });
  return findings;
}

}  // namespace v1
}  // namespace leanattn
