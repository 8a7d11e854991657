// headline.hpp -- what a report says of a GPU in two or three sentences. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>

#include "tuner/report/report.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

struct Headline {
  std::size_t shapes = 0, problems = 0;
  double median_over_limit = 0;              ///< of the winners' times over their read limits; 0: unknown
  double median_over_default = 0;            ///< of the untuned configurations' times over the winners'; 0: unknown
  const ReportedWinner* furthest = nullptr;  ///< from its read limit; null: unknown
};
Headline headline_of(const DeviceReport& device);

/// The headline in words, as plain text.
std::string headline_text(const DeviceReport& device);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
