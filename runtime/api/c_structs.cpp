// c_structs.cpp -- conversions of the structs of the C ABI, and the errors about their sizes.
#include "runtime/api/c_structs.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>

#include "generator/feature_table.hpp"

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

/// Such as "LEANATTN_BF16 (0), LEANATTN_FP16 (1) or LEANATTN_FP32 (2)".
template <class Enum>
std::string choices() {
  std::string text;
  for (std::size_t i = 0, last = std::size(Enumeration<Enum>::kAll) - 1; i <= last; ++i) {
    std::string name = Enumeration<Enum>::kAll[i].name;
    for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
    text += fmt::format("{}{}{} ({})", i == 0 ? "" : i == last ? " or " : ", ", Enumeration<Enum>::kPrefix, name, i);
  }
  return text;
}

Result<void> read_features(const leanattn_problem& read, Features& out) {
  std::optional<Error> unknown;
  for_each_feature([&]<class T>(const Feature<T>& row) {
    if (row.c_member == nullptr) return;
    const auto value = read.*row.c_member;
    T& to = out.*row.member;
    if constexpr (std::is_same_v<T, std::string>) {
      if (value != nullptr) to = value;
    } else if constexpr (std::is_enum_v<T>) {
      if (value >= 0 && value < std::ssize(Enumeration<T>::kAll)) [[likely]] {
        to = static_cast<T>(value);
      } else if (!unknown) {
        unknown = Error{ErrorCode::invalid_argument,
                        fmt::format("{} is {}", row.c_name(), value),
                        fmt::format("Give {}.", choices<T>()),
                        {}};
      }
    } else {
      to = static_cast<T>(value != 0 ? value : row.extras.usual);
    }
  });
  if (unknown) return tl::unexpected(*std::move(unknown));
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

Result<void> read_shape(const leanattn_shape* shape, const DecodeProblem& problem, Shape& out) {
  leanattn_shape storage;
  const auto found = read_struct("shape", shape, storage);
  if (!found) [[unlikely]]
    return tl::unexpected(found.error());
  const leanattn_shape& read = **found;
  out = {.batch = read.batch,
         .max_batch = read.max_batch,
         .longest_context = read.longest_context,
         .total_context = read.total_context};
  const bool has_mix = (read.query_tokens | read.chunks | read.chunk_context | read.chunk_pairs) != 0;
  if (has_mix && has_prefill(problem.features))
    out.mix = {.query_tokens = read.query_tokens,
               .chunks = read.chunks,
               .chunk_context = read.chunk_context,
               .chunk_pairs = read.chunk_pairs};
  return {};
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
