// sizes.hpp -- numbers as people type them: "64k", "1,8,16", "90s". Pure functions; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// "4096", "4k", "1M", "2g": a whole number with an optional binary suffix (k = 1024). `flag` names the value in
/// errors. Errors: invalid_argument (not a number, below `least`, above `most`, too large for 64 bits).
Result<std::int64_t> parse_size(std::string_view flag, std::string_view text, std::int64_t least, std::int64_t most);

/// Comma-separated sizes, at least one, order kept, duplicates dropped.
Result<std::vector<std::int64_t>> parse_size_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                  std::int64_t most);
/// The same with duplicates kept: the context lengths of a ragged batch.
Result<std::vector<std::int64_t>> parse_length_list(std::string_view flag, std::string_view text, std::int64_t least,
                                                    std::int64_t most);

/// "60s", "2m", "1.5h", "500ms"; a bare number is seconds. Errors: invalid_argument (also zero and more than a week).
Result<std::chrono::milliseconds> parse_duration(std::string_view flag, std::string_view text);

/// 65536 -> "64k", 1500 -> "1500": the shortest exact form that parse_size reads back.
std::string format_size(std::int64_t value);
/// 1536 -> "1.5 KiB": for people, rounded.
std::string format_bytes(std::int64_t bytes);

}  // namespace v1
}  // namespace leanattn
