// escape.cpp -- UTF-8 is checked code point by code point; then each format replaces the characters that it gives a
// meaning.
#include "tuner/report/escape.hpp"

#include <algorithm>
#include <array>

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// A code point and the length of its UTF-8 sequence; length 0: the bytes are no such sequence.
struct CodePoint {
  std::size_t length = 0;
  char32_t value = 0;
};
/// The code point at the start of a text that is not empty.
CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0u) != 0x80) return {};
    value = value << 6 | (byte & 0x3Fu);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {length, value};
}

/// Whether it is a control character, a non-character, or one that reorders text (UAX #9).
bool is_forbidden(char32_t c) {
  return (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFFFE || c == 0xFFFF;
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const std::size_t length = std::max<std::size_t>(point.length, 1);
    if (point.length == 0 || is_forbidden(point.value)) {
      out += "\xEF\xBF\xBD";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : clean_text(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string escape_csv(std::string_view raw) {
  std::string text = clean_text(raw);
  const bool formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  if (!formula && text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = formula ? "\"'" : "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : escape_html(text)) {
    if (std::string_view("|\\`*_[]").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\t' ? ' ' : c;
  }
  return out;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
