// key.hpp -- LookupKey: a (problem, shape) as six words, which hash and compare without branches. Plain data; any
// thread.
#pragma once

#include <array>
#include <cstdint>

#include "generator/feature_table.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// Two keys are equal when their problems are equal and their shapes mean the same (canonical()). Features beside the
/// plain ones, and a mix, are represented by a hash of 64 bits.
struct LookupKey {
  std::array<std::uint64_t, 6> words{};

  bool operator==(const LookupKey&) const = default;
};

/// The bit of the second word that says pdl.
inline constexpr std::uint64_t kKeyPdl = std::uint64_t{1} << 49;

namespace detail {
/// A word is folded in by a full product of 64 x 64 -> 128 bits, the step on which wyhash and XXH3 are built.
inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const auto product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}
inline constexpr std::uint64_t kFoldA = 0xa0761d6478bd642f, kFoldB = 0xe7037ed1a0b428db, kFoldC = 0x8ebc6af09c88c6e3;
}  // namespace detail

/// 64 well mixed bits of a shape's mix, which means the same as another one's if these are equal.
inline std::uint64_t mix_hash(const Shape& shape) noexcept {
  using namespace detail;
  const QueryMix mix = canonical_mix(shape);
  if (mix == QueryMix{}) return 0;
  return fold(
      fold(static_cast<std::uint64_t>(mix.query_tokens) ^ kFoldA, static_cast<std::uint64_t>(mix.chunks) ^ kFoldB) ^
          static_cast<std::uint64_t>(mix.chunk_context),
      static_cast<std::uint64_t>(mix.chunk_pairs) ^ kFoldC);
}

inline LookupKey make_lookup_key(const DecodeProblem& problem, const Shape& shape) noexcept {
  const auto low = [](int value) { return static_cast<std::uint64_t>(static_cast<std::uint32_t>(value)); };
  const auto pair = [&](int first, int second) { return low(first) | low(second) << 32; };
  // As canonical() does it, but without its checks, because this runs for every plan() of every decode step.
  const std::int64_t uniform = static_cast<std::int64_t>(static_cast<std::uint64_t>(shape.batch) *
                                                         static_cast<std::uint64_t>(shape.longest_context));
  const int max_batch = shape.max_batch == shape.batch ? 0 : shape.max_batch;
  const std::int64_t total = shape.total_context == uniform ? 0 : shape.total_context;
  const std::uint64_t kind = static_cast<std::uint64_t>(problem.dtype) << 32 |
                             static_cast<std::uint64_t>(problem.layout) << 40 |
                             static_cast<std::uint64_t>(problem.lse) << 48 | (problem.pdl ? kKeyPdl : 0) |
                             static_cast<std::uint64_t>(problem.group_link) << 50;
  return {{pair(problem.q_heads, problem.kv_heads), low(problem.head_dim) | kind, pair(shape.batch, max_batch),
           static_cast<std::uint64_t>(shape.longest_context), static_cast<std::uint64_t>(total),
           (is_plain_fast(problem.features) ? 0 : features_hash(problem.features)) ^
               (shape.mix.query_tokens > shape.batch ? mix_hash(shape) : 0)}};
}

/// 64 well mixed bits. This is enough for six words of which the last one is a hash already.
inline std::uint64_t hash(const LookupKey& key) noexcept {
  using namespace detail;
  const auto& w = key.words;
  return fold(fold(w[0] ^ kFoldA, w[1] ^ kFoldB) ^ fold(w[2] ^ kFoldB, w[3] ^ kFoldC) ^ w[5], w[4] ^ kFoldA);
}

}  // namespace v1
}  // namespace leanattn
