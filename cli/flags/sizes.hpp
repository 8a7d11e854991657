// sizes.hpp -- reads and writes numbers as people type them: "64k", "1,8,16", "90s". Pure functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Reads a whole number with an optional binary suffix (k = 1024): "4096", "4k", "1M", "2g". Errors name `flag` and the
/// text: invalid_argument (it is no number, below `least`, above `most`, or too large for 64 bits).
Result<std::int64_t> parse_size(std::string_view flag, std::string_view text, std::int64_t least, std::int64_t most);

/// Reads one or more such numbers, separated by commas. The order is kept, and a number that repeats is left out.
Result<std::vector<std::int64_t>> parse_size_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                  std::int64_t most);
/// The same, but numbers may repeat, as the context lengths of a ragged batch do: "64x4k,8k" has 4k 64 times.
Result<std::vector<std::int64_t>> parse_length_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                    std::int64_t most);

/// Reads "60s", "2m", "1.5h" or "500ms". A number without a unit is in seconds. Errors: invalid_argument (it is no
/// duration, shorter than 1 ms, or longer than a week).
Result<std::chrono::milliseconds> parse_duration(std::string_view flag, std::string_view text);

/// The shortest text that parse_size() reads back exactly: 65536 becomes "64k", 1500 stays "1500".
std::string format_size(std::int64_t value);
/// A rounded number of bytes for people: 1536 becomes "1.5 KiB".
std::string format_bytes(std::int64_t bytes);

}  // namespace v1
}  // namespace leanattn
