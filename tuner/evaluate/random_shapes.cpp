// random_shapes.cpp -- draws until there are enough shapes, or problems, that differ.
#include "tuner/evaluate/random_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>

namespace leanattn {
inline namespace v1 {
namespace {

/// mt19937_64 gives the same numbers everywhere. The standard distributions do not.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed) {}
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  std::int64_t log_uniform(double low, double high) { return std::lround(low * std::pow(high / low, uniform())); }
  bool one_of(int several) { return uniform() * several < 1; }
  int any(std::initializer_list<int> values) {
    return values.begin()[static_cast<std::size_t>(uniform() * static_cast<double>(values.size()))];
  }

 private:
  std::mt19937_64 random_;
};

DecodeProblem draw_problem(Draws& draws) {
  DecodeProblem problem;
  const int group = static_cast<int>(draws.log_uniform(1, 128));
  problem.kv_heads = static_cast<int>(draws.log_uniform(1, std::max(1, 128 / group)));
  problem.q_heads = group * problem.kv_heads;
  problem.head_dim = draws.any({64, 80, 96, 128, 128, 128, 192, 256, 512});
  problem.dtype = draws.one_of(5) ? DType::fp16 : DType::bf16;
  problem.pdl = draws.one_of(4);
  problem.features.page_size = draws.any({0, 0, 1, 16, 16, 16, 64});
  if (problem.features.page_size > 0 && draws.one_of(2)) problem.layout = KvLayout::strided;
  if (draws.one_of(4)) problem.features.kv_format = KvFormat::fp8_e4m3;
  return canonical(std::move(problem));
}

}  // namespace

std::vector<Shape> random_shapes(const DecodeProblem& problem, std::size_t count, std::uint64_t seed, bool with_ragged,
                                 const std::vector<Shape>& known, const ShapeRanges& ranges) {
  Draws draws(seed);
  std::vector<Shape> shapes;
  for (int tries = 0; shapes.size() < count && tries < 1000 * static_cast<int>(count); ++tries) {
    Shape shape{.batch = static_cast<int>(draws.log_uniform(1, ranges.most_batch)),
                .max_batch = 0,
                .longest_context = draws.log_uniform(static_cast<double>(ranges.fewest_tokens),
                                                     static_cast<double>(ranges.most_tokens))};
    const bool ragged = with_ragged && shapes.size() % 5 == 4;
    if (ragged && shape.batch == 1) continue;
    if (ragged) {
      // One request is long, and all others have the same shorter context.
      const std::int64_t others =
          draws.log_uniform(static_cast<double>(std::min<std::int64_t>(64, ranges.fewest_tokens)),
                            static_cast<double>(shape.longest_context));
      shape.total_context = shape.longest_context + (shape.batch - 1) * others;
    }
    shape = canonical(shape);
    const auto same = [&](const Shape& other) { return canonical(other) == shape; };
    if (!validate(problem, shape) || kv_bytes(problem, shape) > kMostRandomKvBytes ||
        kv_bytes(problem, shape) < ranges.fewest_kv_bytes || std::any_of(known.begin(), known.end(), same) ||
        std::any_of(shapes.begin(), shapes.end(), same))
      continue;
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<DecodeProblem> random_problems(std::size_t count, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<DecodeProblem> problems;
  while (problems.size() < count) {
    const DecodeProblem problem = draw_problem(draws);
    if (validate(problem) && std::find(problems.begin(), problems.end(), problem) == problems.end())
      problems.push_back(problem);
  }
  return problems;
}

}  // namespace v1
}  // namespace leanattn
