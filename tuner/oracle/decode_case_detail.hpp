// decode_case_detail.hpp -- what the sources of tuner/oracle share. Internal to tuner/oracle.
#pragma once

#include <cstdint>

#include "leanattn/error.hpp"

struct CUstream_st;

/// Returns the expression's error from the calling function, if it has one.
#define LEANATTN_TRY(expression)                                                       \
  do {                                                                                 \
    if (auto outcome = (expression); !outcome) return tl::unexpected(outcome.error()); \
  } while (false)

namespace leanattn {
inline namespace v1 {
namespace decode_case_detail {

/// Bases and strides are multiples of so many bytes, unless scales lie among rows.
inline constexpr std::int64_t kUnitBytes = 16;

/// Waits for the stream. An error is usually that of an earlier launch.
Result<void> wait_for(CUstream_st* stream);

/// The least multiple of `multiple` that is not below `value`.
inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace decode_case_detail
}  // namespace v1
}  // namespace leanattn
