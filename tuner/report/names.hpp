// names.hpp -- how every renderer of a report writes problems, shapes, sizes, times and ratios. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// A problem: "32/8 x 128 bf16 pdl p16".
std::string problem_name(const DecodeProblem& problem);
/// An exact number: "64k", "1500".
std::string size_name(std::int64_t value);
/// A shape: "8 x 4k"; if it is ragged "32 x up to 128k, 160k in all"; of a mixed step "64 x 1 of 4k + 2048 of 8k", the
/// average query tokens and contexts of decodes and of chunks.
std::string shape_name(const Shape& shape);
/// A number of bytes in decimal units: "33.6 MB".
std::string bytes_name(std::int64_t bytes);
/// Microseconds with three significant digits: "7.16", "36.4", "475".
std::string us_name(double us);
/// A ratio: "1.23", or "-" if it is unknown.
std::string ratio_name(const TimeRatio& ratio);
/// A ratio without an interval: "1.035", or "-" if it is 0, unknown.
std::string times_name(double ratio);
/// A ratio with its interval: "1.234 (1.201 to 1.262)".
std::string interval_name(const TimeRatio& ratio);
/// What keeps a winner from its read limit, in a few words; empty if it has no parts.
std::string why(const ReportedWinner& winner, const DeviceModel& device);

/// Whether all requests of a shape have the same context length, and one query token each.
bool is_uniform(const Shape& shape);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
