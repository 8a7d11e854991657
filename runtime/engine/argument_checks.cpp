// argument_checks.cpp -- errors that name the argument, its value and the way out.
#include "runtime/engine/argument_checks.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {
namespace detail {

tl::unexpected<Error> invalid(std::string message, std::string hint) {
  return fail(ErrorCode::invalid_argument, std::move(message), std::move(hint));
}

Error bad_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer == nullptr)
    return {ErrorCode::invalid_argument, fmt::format("{} is null", name), "Give a device pointer.", {}};
  return {ErrorCode::invalid_argument,
          fmt::format("{} is {}, which is not a multiple of {} bytes", name, pointer, alignment),
          "cudaMalloc and the frameworks align to 256; an offset into a tensor may break that.",
          {}};
}

Result<void> check_strides(const Row& row, std::initializer_list<Dimension> dimensions) {
  std::int64_t last = row.columns;  // elements to the end of the last row
  std::int64_t widest_span = -1;
  const char* widest = row.name;
  for (const Dimension& dimension : dimensions) {
    if (dimension.extent <= 1) continue;
    if (dimension.stride == 0) [[unlikely]] {
      if (!row.written) continue;
      return invalid(
          fmt::format("{} is LEANATTN_STRIDE_EXPANDED, but what is written has memory for each of {} entries",
                      dimension.name, dimension.extent),
          "Give memory that is not expanded.");
    }
    if (dimension.stride < row.columns) [[unlikely]] {
      return invalid(
          fmt::format("{} is {} elements, less than {}, {}", dimension.name, dimension.stride, row.name, row.columns),
          "Strides count elements; leave it 0 for the dense stride.");
    }
    if (static_cast<std::uint64_t>(dimension.stride) * static_cast<unsigned>(row.element_bytes) % row.alignment != 0)
        [[unlikely]] {
      return invalid(fmt::format("{} is {} elements, not a multiple of {} ({} bytes)", dimension.name, dimension.stride,
                                 row.alignment / static_cast<unsigned>(row.element_bytes), row.alignment),
                     fmt::format("Pad rows to {} bytes.", row.alignment));
    }
    std::int64_t span = 0;
    if (__builtin_mul_overflow(dimension.stride, dimension.extent - 1, &span) ||
        __builtin_add_overflow(last, span, &last)) [[unlikely]] {
      return invalid(fmt::format("{} is {} elements, and {} of them overflow 64 bits", dimension.name, dimension.stride,
                                 dimension.extent),
                     "Strides count elements, not bytes.");
    }
    if (span > widest_span) widest = dimension.name, widest_span = span;
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(last, row.element_bytes, &bytes)) [[unlikely]] {
    return invalid(fmt::format("{} reaches {} elements, whose bytes overflow 64 bits", widest, last),
                   "Strides count elements, not bytes.");
  }
  return {};
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
