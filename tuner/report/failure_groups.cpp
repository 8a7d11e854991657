// failure_groups.cpp -- a reason becomes a group's key when names of kernels and numbers are replaced in it.
#include "tuner/report/failure_groups.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

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
    out += word.starts_with("lean_") ? "(kernel)" : number ? "N" : word;
    i = end;
  }
  return out;
}

}  // namespace

std::vector<FailureGroup> failure_groups(const std::vector<Trial>& trials, ParsedTexts<Config>& configs) {
  std::map<std::pair<std::string, std::string>, FailureGroup> groups;
  for (const Trial& trial : trials) {
    if (trial.status == TrialStatus::ok || trial.status == TrialStatus::pruned) continue;
    const std::string status(to_string(trial.status)), reason = generalised(trial.reason);
    FailureGroup& group = groups[{status, reason}];
    if (group.count++ > 0) continue;
    const Result<Config>& config = configs(trial.config);
    group.status = status, group.reason = reason, group.example = trial.reason;
    group.kernel = config ? kernel_name(config->spec) : "";
  }
  std::vector<FailureGroup> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const FailureGroup& a, const FailureGroup& b) { return a.count > b.count; });
  return sorted;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
