// argument_checks.hpp -- pointers and strides of a launch, checked by value. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// What one load instruction takes: the alignment of tensors and of their strides, in bytes.
inline constexpr unsigned kVectorBytes = 16;

tl::unexpected<Error> invalid(std::string message, std::string hint = {});

/// Why check_pointer() refuses it.
Error bad_pointer(const char* name, const void* pointer, std::uintptr_t alignment);

/// `alignment` is a power of two. Errors: invalid_argument (null, or not a multiple of it).
inline Result<void> check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer != nullptr && (reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1)) == 0) [[likely]]
    return {};
  return tl::unexpected(bad_pointer(name, pointer, alignment));
}

/// One dimension of a tensor: how far apart its elements lie, and how many there are.
struct Dimension {
  const char* name;
  std::int64_t stride;
  std::int64_t extent;
};

/// The innermost dimension of a tensor.
struct Row {
  const char* name;      ///< what its width is called
  std::int64_t columns;  ///< a multiple of 16 bytes, as head_dim is
  int element_bytes;
};

/// Strides that kernels can follow, and a last element whose byte offset 64 bits hold. A dimension of one element is
/// never stepped along, so its stride may be anything. Errors: invalid_argument, naming the dimension.
Result<void> check_strides(const Row& row, std::initializer_list<Dimension> dimensions);

/// For sizes that were checked to be positive: -1 where 64 bits overflow, which no check lets pass as a stride.
inline std::int64_t stride_product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::int64_t{-1} : result;
}

inline std::int64_t or_dense(std::int64_t stride, std::int64_t dense) { return stride != 0 ? stride : dense; }

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
