// decode_case_detail.hpp -- what the two halves of DecodeCase share. Internal to tuner/decode_case*.cpp.
#pragma once

#include <cstdint>

#include "leanattn/error.hpp"

struct CUstream_st;

#define LEANATTN_TRY(expression)                                                       \
  do {                                                                                 \
    if (auto outcome = (expression); !outcome) return tl::unexpected(outcome.error()); \
  } while (false)

namespace leanattn {
inline namespace v1 {
namespace decode_case_detail {

/// Waits for the stream; an error is usually that of an earlier launch.
Result<void> wait_for(CUstream_st* stream);

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace decode_case_detail
}  // namespace v1
}  // namespace leanattn
