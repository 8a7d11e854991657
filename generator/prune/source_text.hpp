// source_text.hpp -- where names, comments, literals, brackets and statements of a C++ text end. Positions count
// characters; one behind the last stands for "not there". Pure functions; any thread. Internal to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace leanattn {
inline namespace v1 {
namespace prune {

inline constexpr std::size_t kEnd = std::string_view::npos;

/// What a character may be part of: 1, the rest of a name; 2, its beginning too; 4, something that has an end of its
/// own.
inline constexpr std::array<unsigned char, 256> kKinds = [] {
  std::array<unsigned char, 256> kinds{};
  for (int c = 0; c < 26; ++c) kinds['a' + c] = kinds['A' + c] = 3;
  for (int c = '0'; c <= '9'; ++c) kinds[c] = 1;
  kinds['_'] = 3;
  for (const char c : {'"', '\'', '/'}) kinds[c] = 4;
  return kinds;
}();
inline bool begins_name(char c) { return (kKinds[static_cast<unsigned char>(c)] & 2) != 0; }
inline bool in_name(char c) { return (kKinds[static_cast<unsigned char>(c)] & 1) != 0; }
inline bool is_space(char c) { return c == ' ' || c == '\n'; }

/// The end of the name that begins at `at`.
inline std::size_t name_end(std::string_view text, std::size_t at) {
  while (at < text.size() && in_name(text[at])) ++at;
  return at;
}

inline std::size_t line_end(std::string_view text, std::size_t at) {
  return std::min(text.find('\n', at), text.size());
}

/// The end of the comment, literal or single character at `at`: what lies inside a literal is no code.
inline std::size_t token_end(std::string_view text, std::size_t at) {
  if (kKinds[static_cast<unsigned char>(text[at])] != 4) return at + 1;
  const char quote = text[at];
  if (quote == '/') return at + 1 < text.size() && text[at + 1] == '/' ? line_end(text, at) : at + 1;
  for (++at; at < text.size() && text[at] != quote; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

/// Behind the bracket that closes the one at `at`.
std::size_t closing(std::string_view text, std::size_t at);

/// The next character that is neither space, comment nor part of a preprocessor's line.
std::size_t skip_blank(std::string_view text, std::size_t at);

/// Whether `word` stands at `at`, and is no part of a longer name.
bool starts_with_word(std::string_view text, std::size_t at, std::string_view word);

/// The end of the statement that begins at `at`.
std::size_t statement_end(std::string_view text, std::size_t at);

/// Whether the last statement of the block or single statement `text` is a return.
bool ends_with_return(std::string_view text);

}  // namespace prune
}  // namespace v1
}  // namespace leanattn
