// report_words.hpp -- the texts that renderers share: titles, sizes, times, and what each format must escape. Names
// come from drivers and imported databases: nothing of them is trusted. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "tuner/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Well-formed UTF-8: what is not, characters that XML forbids, and those that reorder the text around them become
/// U+FFFD.
std::string clean_text(std::string_view text);
/// clean_text() for HTML and SVG, text and quoted attributes alike: markup characters become entities.
std::string escape_html(std::string_view text);
/// clean_text() as a field of RFC 4180 that no spreadsheet takes for a formula.
std::string escape_csv(std::string_view text);
/// clean_text() as a table cell: no column break, no line break, no HTML.
std::string escape_markdown(std::string_view text);

/// "32/8 x 128 bf16 pdl p16"
std::string problem_name(const DecodeProblem& problem);
/// "64k"; exact.
std::string size_name(std::int64_t value);
/// "8 x 4k", ragged: "32 x up to 128k, 160k in all"
std::string shape_name(const Shape& shape);
/// "33.6 MB", of 10^6 bytes
std::string bytes_name(std::int64_t bytes);
/// Microseconds with three digits that count: "7.16", "36.4", "475".
std::string us_name(double us);
/// "1.23", or "-" where it is unknown.
std::string ratio_name(const TimeRatio& ratio);
/// "1.23 (1.20 to 1.26)"
std::string interval_name(const TimeRatio& ratio);
/// "+2.3 %": how much longer.
std::string percent_name(double ratio);
/// One sentence on what keeps a winner from its limit; empty without parts.
std::string why(const ReportedWinner& winner, const DeviceModel& device);

bool is_uniform(const Shape& shape);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
