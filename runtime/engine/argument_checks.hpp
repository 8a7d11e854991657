// argument_checks.hpp -- checks of the pointers and strides of a launch by their values. Internal to this folder. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "leanattn/error.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The bytes of one load instruction. Tensors and their strides must be aligned to it.
inline constexpr unsigned kVectorBytes = 16;

tl::unexpected<Error> invalid(std::string message, std::string hint = {});

/// The error with which check_pointer() refuses a pointer.
Error bad_pointer(const char* name, const void* pointer, std::uintptr_t alignment);

/// `alignment` is a power of two. Errors: invalid_argument (null or misaligned).
inline Result<void> check_pointer(const char* name, const void* pointer, std::uintptr_t alignment) {
  if (pointer != nullptr && (reinterpret_cast<std::uintptr_t>(pointer) & (alignment - 1)) == 0) [[likely]]
    return {};
  return tl::unexpected(bad_pointer(name, pointer, alignment));
}

/// One dimension of a tensor: how many elements there are from one of its entries to the next, and how many entries.
struct Dimension {
  const char* name;
  std::int64_t stride;
  std::int64_t extent;
};

/// The innermost dimension of a tensor.
struct Row {
  const char* name;      ///< the name of its width
  std::int64_t columns;  ///< in elements, as strides
  int element_bytes;
  bool written = false;               ///< then entries of a dimension must not be the same memory
  unsigned alignment = kVectorBytes;  ///< of rows, in bytes; a multiple of element_bytes
};

/// Checks that kernels can follow the strides and that 64 bits hold the byte offset of the last element. The stride of
/// a dimension of one entry, or none, may be anything, because it is never used. Errors: invalid_argument, with the
/// name of the dimension.
Result<void> check_strides(const Row& row, std::initializer_list<Dimension> dimensions);

/// a * b for positive sizes; -1 where 64 bits overflow, or b is a stride of 0, which has no dense stride around it.
/// check_strides() refuses -1.
inline std::int64_t stride_product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return b == 0 || __builtin_mul_overflow(a, b, &result) ? std::int64_t{-1} : result;
}

/// The stride as kernels take it: the one that the caller gave, the dense one where it gave 0, or 0 where it said that
/// the dimension is expanded.
inline std::int64_t or_dense(std::int64_t stride, std::int64_t dense) {
  if (stride == LEANATTN_STRIDE_EXPANDED) [[unlikely]]
    return 0;
  return stride != 0 ? stride : dense;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
