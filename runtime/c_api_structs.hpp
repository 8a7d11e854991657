// c_api_structs.hpp -- the C ABI's structs across versions, and as the types of this library. Pure functions; any
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "leanattn/error.hpp"
#include "leanattn/leanattn.h"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Sizes of the structs as first released: no smaller one was ever valid. Literals, because sizeof grows with versions.
template <class T>
inline constexpr std::size_t kFirstSize = 0;
template <>
inline constexpr std::size_t kFirstSize<leanattn_engine_options> = 24;
template <>
inline constexpr std::size_t kFirstSize<leanattn_problem> = 32;
template <>
inline constexpr std::size_t kFirstSize<leanattn_shape> = 32;
template <>
inline constexpr std::size_t kFirstSize<leanattn_plan_options> = 16;
template <>
inline constexpr std::size_t kFirstSize<leanattn_choice> = 208;
template <>
inline constexpr std::size_t kFirstSize<leanattn_plan_info> = 88;
template <>
inline constexpr std::size_t kFirstSize<leanattn_decode_args> = 152;
template <>
inline constexpr std::size_t kFirstSize<leanattn_merge_args> = 192;

Error null_argument(const char* name);
Error bad_struct_size(const char* name, std::size_t given, std::size_t expected);
Error unknown_fields(const char* name, std::size_t given, std::size_t known);

/// `in` as this library's struct: itself where the sizes agree, else completed in `storage`. An older program's smaller
/// one gets zeros; of a newer program's larger one everything this library does not know must be zero, since it could
/// not be heeded. Errors: invalid_argument.
template <class T>
Result<const T*> read_struct(const char* name, const T* in, T& storage) {
  static_assert(kFirstSize<T> > 0 && sizeof(T) >= kFirstSize<T>);
  if (in == nullptr) return tl::unexpected(null_argument(name));
  const std::size_t size = in->struct_size;
  if (size == sizeof(T)) [[likely]]
    return in;
  constexpr std::size_t kLargestStruct = 4096;  // beyond this the size is garbage, not a newer version
  if (size < kFirstSize<T> || size > kLargestStruct) return tl::unexpected(bad_struct_size(name, size, sizeof(T)));
  if (size > sizeof(T)) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(in);
    if (std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; }))
      return tl::unexpected(unknown_fields(name, size, sizeof(T)));
  }
  storage = T{};
  std::memcpy(&storage, in, std::min(size, sizeof(T)));
  storage.struct_size = sizeof(T);
  return &storage;
}

/// Writes as much of `value` as the caller's struct has room for, and leaves its struct_size. Errors: invalid_argument.
template <class T>
Result<void> write_struct(const char* name, const T& value, T* out) {
  static_assert(kFirstSize<T> > 0 && sizeof(T) >= kFirstSize<T>);
  if (out == nullptr) return tl::unexpected(null_argument(name));
  const std::size_t size = out->struct_size;
  if (size < kFirstSize<T>) return tl::unexpected(bad_struct_size(name, size, sizeof(T)));
  std::memcpy(out, &value, std::min(size, sizeof(T)));
  out->struct_size = size;
  return {};
}

/// Errors: invalid_argument (null, size, or an enumerator this library does not know). Heads, sizes and the domains of
/// features are checked later, by validate(). The problem is canonical() and owns its score expression.
Result<void> read_problem(const leanattn_problem* problem, DecodeProblem& out);
Result<void> read_shape(const leanattn_shape* shape, Shape& out);

/// Cut to fit, always terminated.
template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  const std::size_t length = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
