// escape.hpp -- makes any text safe to write into a report. Names come from drivers and imported databases, so no
// character of them is trusted. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The text as well-formed UTF-8. Bytes that are none, characters that XML forbids, and characters that reorder the
/// text around them become U+FFFD.
std::string clean_text(std::string_view text);
/// clean_text() with markup characters as entities, for text and quoted attributes of HTML and SVG.
std::string escape_html(std::string_view text);
/// clean_text() as a field of RFC 4180 that no spreadsheet takes for a formula.
std::string escape_csv(std::string_view text);
/// clean_text() as a cell of a Markdown table, without column breaks, line breaks and HTML.
std::string escape_markdown(std::string_view text);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
