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
          fmt::format("{} sets fields beyond its first {} bytes (struct_size {}), which leanattn {} does not know", name,
                      known, given, leanattn_version()),
          "Use a newer library, or leave those fields zero.",
          {}};
}

Result<DecodeProblem> read_problem(const leanattn_problem* problem) {
  const auto read = read_struct("problem", problem);
  if (!read) return tl::unexpected(read.error());
  DecodeProblem result;
  result.q_heads = read->q_heads;
  result.kv_heads = read->kv_heads;
  result.head_dim = read->head_dim;
  switch (read->dtype) {
    case LEANATTN_BF16: result.dtype = DType::bf16; break;
    case LEANATTN_FP16: result.dtype = DType::fp16; break;
    default:
      return fail(ErrorCode::invalid_argument, fmt::format("dtype is {}", read->dtype),
                  "Give LEANATTN_BF16 (0) or LEANATTN_FP16 (1).");
  }
  switch (read->kv_layout) {
    case LEANATTN_KV_CONTIGUOUS: result.layout = KvLayout::contiguous; break;
    case LEANATTN_KV_STRIDED: result.layout = KvLayout::strided; break;
    default:
      return fail(ErrorCode::invalid_argument, fmt::format("kv_layout is {}", read->kv_layout),
                  "Give LEANATTN_KV_CONTIGUOUS (0) or LEANATTN_KV_STRIDED (1).");
  }
  result.lse = read->lse != 0;
  return result;
}

Result<Shape> read_shape(const leanattn_shape* shape) {
  const auto read = read_struct("shape", shape);
  if (!read) return tl::unexpected(read.error());
  return Shape{.batch = read->batch,
               .max_batch = read->max_batch,
               .longest_context = read->longest_context,
               .total_context = read->total_context};
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
