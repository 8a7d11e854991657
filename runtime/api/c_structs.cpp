// c_structs.cpp -- conversions of the structs of the C ABI, and the errors about their sizes.
#include "runtime/api/c_structs.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>

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

namespace {

static_assert(static_cast<int>(QueryMask::causal) == LEANATTN_MASK_CAUSAL &&
              static_cast<int>(QueryMask::tree) == LEANATTN_MASK_TREE &&
              static_cast<int>(QueryMask::full) == LEANATTN_MASK_FULL);
static_assert(static_cast<int>(KvFormat::same) == LEANATTN_KV_SAME &&
              static_cast<int>(KvFormat::fp8_e4m3) == LEANATTN_KV_FP8_E4M3 &&
              static_cast<int>(KvFormat::fp8_e5m2) == LEANATTN_KV_FP8_E5M2 &&
              static_cast<int>(KvFormat::int8) == LEANATTN_KV_INT8 &&
              static_cast<int>(KvFormat::fp8_ds_mla) == LEANATTN_KV_FP8_DS_MLA);
static_assert(static_cast<int>(Rope::none) == LEANATTN_ROPE_NONE &&
              static_cast<int>(Rope::half_split) == LEANATTN_ROPE_HALF_SPLIT &&
              static_cast<int>(Rope::interleaved) == LEANATTN_ROPE_INTERLEAVED);
static_assert(static_cast<int>(KvScale::tensor) == LEANATTN_SCALE_TENSOR &&
              static_cast<int>(KvScale::head) == LEANATTN_SCALE_HEAD &&
              static_cast<int>(KvScale::token) == LEANATTN_SCALE_TOKEN);

/// An enumerator from 0 to `last`. Errors: invalid_argument, with `choices`.
Result<void> check_enumerator(const char* name, std::int32_t value, std::int32_t last, const char* choices) {
  if (value >= 0 && value <= last) [[likely]]
    return {};
  return fail(ErrorCode::invalid_argument, fmt::format("{} is {}", name, value), fmt::format("Give {}.", choices));
}

Result<void> read_features(const leanattn_problem& read, Features& out) {
  if (auto ok = check_enumerator("query_mask", read.query_mask, LEANATTN_MASK_FULL,
                                 "LEANATTN_MASK_CAUSAL (0), LEANATTN_MASK_TREE (1) or LEANATTN_MASK_FULL (2)");
      !ok) [[unlikely]]
    return ok;
  if (auto ok = check_enumerator("kv_format", read.kv_format, LEANATTN_KV_FP8_DS_MLA,
                                 "LEANATTN_KV_SAME (0), LEANATTN_KV_FP8_E4M3 (1), LEANATTN_KV_FP8_E5M2 (2), "
                                 "LEANATTN_KV_INT8 (3) or LEANATTN_KV_FP8_DS_MLA (4)");
      !ok) [[unlikely]]
    return ok;
  if (auto ok = check_enumerator("kv_scale", read.kv_scale, LEANATTN_SCALE_TOKEN,
                                 "LEANATTN_SCALE_TENSOR (0), LEANATTN_SCALE_HEAD (1) or LEANATTN_SCALE_TOKEN (2)");
      !ok) [[unlikely]]
    return ok;
  if (auto ok = check_enumerator("rope", read.rope, LEANATTN_ROPE_INTERLEAVED,
                                 "LEANATTN_ROPE_NONE (0), LEANATTN_ROPE_HALF_SPLIT (1) or LEANATTN_ROPE_INTERLEAVED "
                                 "(2)");
      !ok) [[unlikely]]
    return ok;
  out.page_size = read.page_size;
  out.q_len = read.q_len != 0 ? read.q_len : 1;
  out.ragged_q = read.ragged_q != 0;
  out.mask = static_cast<QueryMask>(read.query_mask);
  out.window = read.window;
  out.sink_tokens = read.sink_tokens;
  out.sink_logits = read.sink_logits != 0;
  out.soft_cap = read.soft_cap;
  out.alibi = read.alibi != 0;
  if (read.score != nullptr) out.score = read.score;
  out.kv_format = static_cast<KvFormat>(read.kv_format);
  out.kv_scale = static_cast<KvScale>(read.kv_scale);
  out.v_head_dim = read.v_head_dim;
  out.batch_invariant = read.batch_invariant != 0;
  out.append = read.append != 0;
  out.rope = static_cast<Rope>(read.rope);
  out.rope_dim = read.rope_dim;
  out.latent = read.latent != 0;
  out.selection_block = read.selection_block;
  out.selection_in_pool = read.selection_in_pool != 0;
  out.second_cache = read.second_cache != 0;
  out.context_parallel = read.context_parallel != 0 ? read.context_parallel : 1;
  out.context_interleave = read.context_interleave;
  out.replicate_output = read.replicate_output != 0;
  return {};
}

/// Whether all fields of features are zero. Compares whole words, because this runs for every plan() of every decode
/// step.
bool says_nothing_of_features(const leanattn_problem& read) {
  constexpr std::size_t kFirst = offsetof(leanattn_problem, page_size);
  std::array<std::uint64_t, (sizeof(leanattn_problem) - kFirst) / sizeof(std::uint64_t)> words;
  static_assert(kFirst + sizeof words == sizeof(leanattn_problem));
  std::memcpy(words.data(), reinterpret_cast<const char*>(&read) + kFirst, sizeof words);
  std::uint64_t any = 0;
  for (const std::uint64_t word : words) any |= word;
  return any == 0;
}

}  // namespace

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
  out.q_heads = read.q_heads;
  out.kv_heads = read.kv_heads;
  out.head_dim = read.head_dim;
  out.dtype = read.dtype == LEANATTN_BF16 ? DType::bf16 : DType::fp16;
  out.layout = read.kv_layout == LEANATTN_KV_CONTIGUOUS ? KvLayout::contiguous : KvLayout::strided;
  out.lse = read.lse != 0;
  out.pdl = read.pdl != 0;
  out.features = Features{};
  if (says_nothing_of_features(read)) [[likely]]
    return {};
  if (auto ok = read_features(read, out.features); !ok) [[unlikely]]
    return ok;
  out = canonical(std::move(out));
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
