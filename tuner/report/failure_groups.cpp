// failure_groups.cpp -- a reason becomes a group's key when names of kernels and numbers are replaced in it.
#include "tuner/report/failure_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "generator/recurrent/recurrent_json.hpp"
#include "tuner/report/parameters.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// The reason with kernels' names and numbers replaced: "lean_sm90a_d128 spills 24 bytes" becomes "(kernel) spills N
/// bytes".
std::string generalised(const std::string& reason) {
  std::string out;
  for (std::size_t i = 0; i < reason.size();) {
    std::size_t end = i;
    while (end < reason.size() && is_name(reason[end])) ++end;
    if (end == i) {
      // A decimal point between digits is part of the number.
      const bool inside = reason[i] == '.' && !out.empty() && out.back() == 'N' && i + 1 < reason.size() &&
                          std::isdigit(static_cast<unsigned char>(reason[i + 1])) != 0;
      if (inside) {
        ++i;
        while (i < reason.size() && std::isdigit(static_cast<unsigned char>(reason[i])) != 0) ++i;
      } else {
        out += reason[i++];
      }
      continue;
    }
    const std::string word = reason.substr(i, end - i);
    const bool number = std::isdigit(static_cast<unsigned char>(word[0])) != 0;
    out += word.starts_with("lean_") || word.starts_with("recurrent_") ? "(kernel)" : number ? "N" : word;
    i = end;
  }
  return out;
}

/// Empty: the configuration is none of operation `recurrent`.
std::string recurrent_kernel_name(const std::string& config) {
  const auto spec = recurrent_spec_from_json(config);
  return spec ? kernel_name(*spec) : "";
}

/// The value of each parameter that some kernels share, in the order of kKernelParameters; nullopt: they differ.
class SharedValues {
 public:
  void add(const KernelSpec& spec) {
    for (std::size_t i = 0; i < kKernelParameters.size(); ++i) {
      const std::string value = kKernelParameters[i].value(spec);
      if (first_)
        values_[i] = value;
      else if (values_[i] && *values_[i] != value)
        values_[i].reset();
    }
    first_ = false;
  }
  const std::optional<std::string>& at(std::size_t parameter) const { return values_[parameter]; }

 private:
  bool first_ = true;
  std::array<std::optional<std::string>, kKernelParameters.size()> values_;
};

}  // namespace

std::string_view cause_name(std::string_view status) {
  if (status == "compile_fail") return "did not compile, or spilled registers";
  if (status == "launch_fail") return "could not be launched";
  if (status == "incorrect") return "gave a wrong result";
  return status == "timeout" ? "took too long" : status;
}

std::string common_name(const FailureGroup& group) {
  std::string text;
  for (const auto& [parameter, value] : group.common)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", parameter, value);
  return text;
}

std::vector<FailureGroup> failure_groups(const std::vector<Trial>& trials, ParsedTexts<Config>& configs) {
  using Key = std::pair<std::string, std::string>;
  std::map<Key, FailureGroup> groups;
  std::map<Key, SharedValues> shared;
  SharedValues shared_by_all;
  for (const Trial& trial : trials) {
    const Result<Config>& config = configs(trial.config);
    if (config) shared_by_all.add(config->spec);
    if (trial.status == TrialStatus::ok || trial.status == TrialStatus::pruned) continue;
    const std::string status(to_string(trial.status)), reason = generalised(trial.reason);
    FailureGroup& group = groups[{status, reason}];
    if (config) shared[{status, reason}].add(config->spec);
    if (group.count++ > 0) continue;
    group.status = status, group.reason = reason, group.example = trial.reason;
    group.kernel = config ? kernel_name(config->spec) : recurrent_kernel_name(trial.config);
  }
  std::vector<FailureGroup> sorted;
  for (auto& [key, group] : groups) {
    for (std::size_t i = 0; i < kKernelParameters.size() && group.count > 1; ++i) {
      if (const auto& value = shared[key].at(i); value && !shared_by_all.at(i))
        group.common.emplace_back(kKernelParameters[i].name, *value);
    }
    sorted.push_back(std::move(group));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const FailureGroup& a, const FailureGroup& b) { return a.count > b.count; });
  return sorted;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
