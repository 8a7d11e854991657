#include "cli/flags/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::int64_t kMostEntries = 1 << 20;  // of one item of a list
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

int suffix_shift(char suffix) {
  switch (suffix) {
    case 'k':
    case 'K': return 10;
    case 'm':
    case 'M': return 20;
    case 'g':
    case 'G': return 30;
    default: return 0;
  }
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::int64_t> parse_size(std::string_view flag, std::string_view text, std::int64_t least, std::int64_t most) {
  const std::string_view whole = trimmed(text);
  std::string_view digits = whole;
  const int shift = digits.empty() ? 0 : suffix_shift(digits.back());
  if (shift != 0) digits.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range ||
      (error == std::errc() && (value > (kMaxInt64 >> shift) || value < -(kMaxInt64 >> shift)))) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} {} does not fit in 64 bits", flag, whole));
  }
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} '{}' is not a whole number", flag, text),
                "Write a number with an optional binary suffix, such as 8, 64k or 1m.");
  }
  value *= std::int64_t{1} << shift;
  if (value < least) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} {} must be at least {}", flag, whole, least));
  }
  if (value > most) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} {} must be at most {}", flag, whole, most));
  }
  return value;
}

Result<std::vector<std::int64_t>> parse_length_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                    std::int64_t most) {
  std::vector<std::int64_t> values;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    Result<std::int64_t> times = 1;
    if (const std::size_t by = item.find('x'); by != std::string_view::npos && by > 0) {
      times = parse_size(flag, item.substr(0, by), 1, kMostEntries);
      if (!times) return tl::unexpected(times.error());
      item.remove_prefix(by + 1);
    }
    const Result<std::int64_t> value = parse_size(flag, item, least, most);
    if (!value) return tl::unexpected(value.error());
    values.insert(values.end(), static_cast<std::size_t>(*times), *value);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}

Result<std::vector<std::int64_t>> parse_size_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                  std::int64_t most) {
  Result<std::vector<std::int64_t>> values = parse_length_list(flag, text, least, most);
  if (!values) return values;
  std::vector<std::int64_t> unique;
  for (const std::int64_t value : *values) {
    if (std::find(unique.begin(), unique.end(), value) == unique.end()) unique.push_back(value);
  }
  return unique;
}

Result<std::chrono::milliseconds> parse_duration(std::string_view flag, std::string_view text) {
  struct Unit {
    std::string_view suffix;
    double seconds;
  };
  // The first suffix that matches wins, so "ms" stands before "s" and "m".
  constexpr std::array<Unit, 4> kUnits = {{{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}}};
  std::string_view digits = trimmed(text);
  double scale = 1;
  for (const Unit& unit : kUnits) {
    if (digits.size() > unit.suffix.size() && digits.substr(digits.size() - unit.suffix.size()) == unit.suffix) {
      digits.remove_suffix(unit.suffix.size());
      scale = unit.seconds;
      break;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} '{}' is not a duration", flag, text),
                "Write a number with a unit, such as 60s, 2m or 500ms.");
  }
  const double seconds = value * scale;
  constexpr double kWeek = 7 * 24 * 3600.0;
  if (seconds < 1e-3 || seconds > kWeek) {
    return fail(ErrorCode::invalid_argument, fmt::format("{} {} must lie between 1ms and a week", flag, text));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

std::string format_size(std::int64_t value) {
  constexpr std::array<std::pair<int, char>, 3> kSuffixes = {{{30, 'g'}, {20, 'm'}, {10, 'k'}}};
  for (const auto& [shift, suffix] : kSuffixes) {
    const std::int64_t unit = std::int64_t{1} << shift;
    if (value != 0 && value % unit == 0) return fmt::format("{}{}", value / unit, suffix);
  }
  return std::to_string(value);
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace v1
}  // namespace leanattn
