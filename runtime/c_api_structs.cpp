// c_api_structs.cpp -- conversions of the C ABI's structs and the errors of their sizes.
#include "runtime/c_api_structs.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {
namespace detail {

Error null_argument(const char* name) {
  return {ErrorCode::invalid_argument, fmt::format("{} is null", name), "Give a pointer to one.", {}};
}

Error bad_struct_size(const char* name, std::size_t given, std::size_t expected) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}.struct_size is {}, not {}", name, given, expected),
          fmt::format("Make the struct with leanattn_{}_init.", name),
          {}};
}

Error unknown_fields(const char* name, std::size_t given, std::size_t known) {
  return {ErrorCode::invalid_argument,
          fmt::format("{} sets fields beyond its first {} bytes (struct_size {}), which leanattn {} does not know",
                      name, known, given, leanattn_version()),
          "Use a newer library, or leave those fields zero.",
          {}};
}

Result<void> read_problem(const leanattn_problem* problem, DecodeProblem& out) {
  leanattn_problem storage;
  const auto found = read_struct("problem", problem, storage);
  if (!found) [[unlikely]]
    return tl::unexpected(found.error());
  const leanattn_problem& read = **found;
  if (read.dtype != LEANATTN_BF16 && read.dtype != LEANATTN_FP16) [[unlikely]] {
    return fail(ErrorCode::invalid_argument, fmt::format("dtype is {}", read.dtype),
                "Give LEANATTN_BF16 (0) or LEANATTN_FP16 (1).");
  }
  if (read.kv_layout != LEANATTN_KV_CONTIGUOUS && read.kv_layout != LEANATTN_KV_STRIDED) [[unlikely]] {
    return fail(ErrorCode::invalid_argument, fmt::format("kv_layout is {}", read.kv_layout),
                "Give LEANATTN_KV_CONTIGUOUS (0) or LEANATTN_KV_STRIDED (1).");
  }
  if (read.reserved != 0) [[unlikely]] {
    return fail(ErrorCode::invalid_argument, fmt::format("problem.reserved is {}", read.reserved),
                "Leave it 0; leanattn_problem_init does.");
  }
  out = {.q_heads = read.q_heads,
         .kv_heads = read.kv_heads,
         .head_dim = read.head_dim,
         .dtype = read.dtype == LEANATTN_BF16 ? DType::bf16 : DType::fp16,
         .layout = read.kv_layout == LEANATTN_KV_CONTIGUOUS ? KvLayout::contiguous : KvLayout::strided,
         .lse = read.lse != 0,
         .pdl = read.pdl != 0};
  return {};
}

Result<void> read_shape(const leanattn_shape* shape, Shape& out) {
  leanattn_shape storage;
  const auto found = read_struct("shape", shape, storage);
  if (!found) [[unlikely]]
    return tl::unexpected(found.error());
  const leanattn_shape& read = **found;
  out = {.batch = read.batch,
         .max_batch = read.max_batch,
         .longest_context = read.longest_context,
         .total_context = read.total_context};
  return {};
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
