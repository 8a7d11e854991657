// report_render.hpp -- a Report as HTML, Markdown, CSV and JSON. The same report always gives the same bytes. Pure
// functions; any thread.
#pragma once

#include <string>

#include "tuner/report.hpp"

namespace leanattn {
inline namespace v1 {

/// docs/report.schema.json describes it.
std::string to_json(const Report& report);
/// One line a winner, RFC 4180 quoting, a header line first. Texts that a spreadsheet would run as a formula are
/// preceded by an apostrophe.
std::string to_csv(const Report& report);
std::string to_markdown(const Report& report);
/// One self-contained page: inline CSS and SVG, no script, nothing fetched.
std::string to_html(const Report& report);

}  // namespace v1
}  // namespace leanattn
