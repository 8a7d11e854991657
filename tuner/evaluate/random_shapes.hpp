// random_shapes.hpp -- the shapes of which `leanattn evaluate regret` looks up the answers. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// At most `count` different shapes of this problem, none of which is among `known`. Batch and context are log-uniform,
/// and K and V take at most kMostRandomKvBytes. with_ragged: every fifth shape has one long request among shorter ones.
/// The same arguments always give the same shapes.
std::vector<Shape> random_shapes(const DecodeProblem& problem, std::size_t count, std::uint64_t seed, bool with_ragged,
                                 const std::vector<Shape>& known);
inline constexpr std::int64_t kMostRandomKvBytes = std::int64_t{4} << 30;

}  // namespace v1
}  // namespace leanattn
