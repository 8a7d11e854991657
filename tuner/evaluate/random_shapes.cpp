// random_shapes.cpp -- draws until there are enough shapes that differ.
#include "tuner/evaluate/random_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace leanattn {
inline namespace v1 {

std::vector<Shape> random_shapes(const DecodeProblem& problem, std::size_t count, std::uint64_t seed, bool with_ragged,
                                 const std::vector<Shape>& known) {
  // mt19937_64 gives the same numbers everywhere. The standard distributions do not.
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto log_uniform = [&](double low, double high) { return std::lround(low * std::pow(high / low, uniform())); };
  std::vector<Shape> shapes;
  for (int tries = 0; shapes.size() < count && tries < 1000 * static_cast<int>(count); ++tries) {
    Shape shape{
        .batch = static_cast<int>(log_uniform(1, 64)), .max_batch = 0, .longest_context = log_uniform(256, 131072)};
    const bool ragged = with_ragged && shapes.size() % 5 == 4;
    if (ragged && shape.batch == 1) continue;
    if (ragged) {
      // One request is long, and all others have the same shorter context.
      const std::int64_t others = log_uniform(64, static_cast<double>(shape.longest_context));
      shape.total_context = shape.longest_context + (shape.batch - 1) * others;
    }
    shape = canonical(shape);
    const auto same = [&](const Shape& other) { return canonical(other) == shape; };
    if (!validate(problem, shape) || kv_bytes(problem, shape) > kMostRandomKvBytes ||
        std::any_of(known.begin(), known.end(), same) || std::any_of(shapes.begin(), shapes.end(), same))
      continue;
    shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace v1
}  // namespace leanattn
