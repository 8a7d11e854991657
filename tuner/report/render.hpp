// render.hpp -- writes a Report as HTML, Markdown, CSV or JSON. The same report always gives the same bytes. Pure
// functions; any thread.
#pragma once

#include <string>

#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {

/// A JSON document, which docs/report.schema.json describes.
std::string to_json(const Report& report);
/// A header line and one line for each winner, quoted as RFC 4180 says. A text that a spreadsheet would run as a
/// formula begins with an apostrophe.
std::string to_csv(const Report& report);
/// Tables, headings and text.
std::string to_markdown(const Report& report);
/// One page with its CSS and SVG in it. It has no scripts and loads nothing.
std::string to_html(const Report& report);

}  // namespace v1
}  // namespace leanattn
