// parse_json.hpp -- text from files that anyone may have written, as JSON. Pure; any thread. Internal: not installed.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace leanattn {
inline namespace v1 {

/// The parsed value. It is a discarded one if the text is no JSON, or is nested so deeply that walking it could exhaust
/// the stack. Nothing that this project writes is nested more than a few levels.
inline nlohmann::json parse_json(std::string_view text) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) {
      i += c == '\\' ? 1 : 0;  // an escaped quote does not end the text
      continue;
    }
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (depth > kDeepest) return nlohmann::json::value_t::discarded;
  }
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace v1
}  // namespace leanattn
