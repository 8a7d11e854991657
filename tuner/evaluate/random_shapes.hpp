// random_shapes.hpp -- the shapes and problems of which `leanattn evaluate regret` looks up the answers. Pure
// functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

inline constexpr std::int64_t kMostRandomKvBytes = std::int64_t{4} << 30;

/// What random shapes are drawn from, log-uniform.
struct ShapeRanges {
  int most_batch = 64;
  std::int64_t fewest_tokens = 256, most_tokens = 131072;  ///< of the longest context
  std::int64_t fewest_kv_bytes = 0;
};
/// All shapes that engines meet. A step that reads less than a megabyte takes hardly longer than an empty launch.
inline constexpr ShapeRanges kAnyShape{
    .most_batch = 4096, .fewest_tokens = 16, .most_tokens = 1 << 20, .fewest_kv_bytes = 1 << 20};

/// At most `count` different shapes of this problem, none of which is among `known`. K and V take at most
/// kMostRandomKvBytes. with_ragged: every fifth shape has one long request among shorter ones. The same arguments
/// always give the same shapes.
std::vector<Shape> random_shapes(const DecodeProblem& problem, std::size_t count, std::uint64_t seed, bool with_ragged,
                                 const std::vector<Shape>& known, const ShapeRanges& ranges = {});

/// `count` different problems of one query token: 1 to 128 query heads for each KV head and at most 128 in all, head
/// sizes of 64 to 512, dense caches and pages of 1 to 64 tokens, also as engines lay them out, some with fp8 caches,
/// fp16 or dependent launches. The same arguments always give the same problems.
std::vector<DecodeProblem> random_problems(std::size_t count, std::uint64_t seed);

}  // namespace v1
}  // namespace leanattn
