#include "cli/console/suggestions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace leanattn {
inline namespace v1 {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// How far a word of this length may be from what it was meant to be.
std::size_t reach(std::size_t length) { return length < 3 ? 1 : std::max<std::size_t>(2, length / 3); }

}  // namespace

// The optimal string alignment distance. Three rows are enough, because an exchange looks back two.
std::size_t edit_distance(std::string_view first, std::string_view second) {
  const std::string a = lower(first), b = lower(second);
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLongest = 64;  // A longer word is no misspelling.
  if (word.empty() || word.size() > kLongest) return std::nullopt;
  const std::string* best = nullptr;
  std::size_t best_distance = reach(word.size()) + 1;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= 3 && lower(candidate).starts_with(lower(word));
    const std::size_t distance = begins ? 1 : edit_distance(word, candidate);
    if (distance < best_distance) best = &candidate, best_distance = distance;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::optional<std::string> meant = closest(word, candidates);
  return meant ? fmt::format("Did you mean {}? ", *meant) : "";
}

}  // namespace v1
}  // namespace leanattn
