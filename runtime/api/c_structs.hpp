// c_structs.hpp -- the structs of the C ABI in all of their versions, and as the types of this library. Internal to
// this folder. Pure functions; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include "leanattn/error.hpp"
#include "leanattn/leanattn.h"
#include "leanattn/recurrent.h"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// The sizes of the structs when they were first released; smaller ones were never valid. They are literals because
/// sizeof grows with versions.
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
inline constexpr std::size_t kFirstSize<leanattn_group_options> = 24;
template <>
inline constexpr std::size_t kFirstSize<leanattn_nccl_options> = 24;
template <>
inline constexpr std::size_t kFirstSize<leanattn_merge_args> = 192;
template <>
inline constexpr std::size_t kFirstSize<leanattn_tune_options> = 64;
template <>
inline constexpr std::size_t kFirstSize<leanattn_tuned_shape> = 64;

template <>
inline constexpr std::size_t kFirstSize<leanattn_recurrent_layer> = 64;
template <>
inline constexpr std::size_t kFirstSize<leanattn_recurrent_args> = 424;

/// Beyond this a struct_size is garbage, not a newer version.
inline constexpr std::size_t kLargestStruct = 4096;

Error null_argument(const char* name);
Error bad_struct_size(const char* name, std::size_t given, std::size_t expected);
Error unknown_fields(const char* name, std::size_t given, std::size_t known);

/// `in` as this library's version of the struct: `in` itself where the sizes agree, else a copy in `storage`. The
/// smaller struct of an older program is completed with zeros. In the larger struct of a newer program, all that this
/// library does not know must be zero, because it could not act on it. Errors: invalid_argument.
template <class T>
Result<const T*> read_struct(const char* name, const T* in, T& storage) {
  static_assert(kFirstSize<T> > 0 && sizeof(T) >= kFirstSize<T>);
  if (in == nullptr) return tl::unexpected(null_argument(name));
  const std::size_t size = in->struct_size;
  if (size == sizeof(T)) [[likely]]
    return in;
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

/// Writes as much of `value` as the struct of the caller has room for. Its struct_size stays. Errors: invalid_argument.
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

/// The problem is canonical() and owns its score expression. Heads, sizes and the ranges of features are checked later,
/// by validate(). Errors: invalid_argument (null, a wrong struct_size, an enumerator that this library does not know).
Result<void> read_problem(const leanattn_problem* problem, DecodeProblem& out);
/// Without the mix where the problem has no prefill. Errors: invalid_argument (null, a wrong struct_size).
Result<void> read_shape(const leanattn_shape* shape, const DecodeProblem& problem, Shape& out);

/// Copies a text, which is cut to fit and always terminated.
template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  const std::size_t length = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
