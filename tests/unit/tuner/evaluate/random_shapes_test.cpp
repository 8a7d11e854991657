// random_shapes_test.cpp -- random shapes are valid, new and repeatable.
#include "tuner/evaluate/random_shapes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace leanattn {
namespace {

TEST(RandomShapes, AreDifferentValidNewAndTheSameForTheSameSeed) {
  const DecodeProblem problem;
  const std::vector<Shape> known = random_shapes(problem, 20, 1, true, {});
  const std::vector<Shape> shapes = random_shapes(problem, 50, 1, true, known);
  ASSERT_EQ(shapes.size(), 50u);
  EXPECT_EQ(shapes, random_shapes(problem, 50, 1, true, known));
  EXPECT_NE(shapes, random_shapes(problem, 50, 2, true, known));
  std::set<std::string> texts;
  int ragged = 0;
  for (const Shape& shape : shapes) {
    EXPECT_TRUE(validate(problem, shape));
    EXPECT_LE(kv_bytes(problem, shape), kMostRandomKvBytes);
    EXPECT_EQ(std::count(known.begin(), known.end(), shape), 0);
    texts.insert(to_json(shape));
    ragged += shape.total_context != 0;
  }
  EXPECT_EQ(texts.size(), 50u);
  EXPECT_GE(ragged, 5);
  for (const Shape& shape : random_shapes(problem, 50, 1, false, {})) EXPECT_EQ(shape.total_context, 0);
}

TEST(RandomShapes, OfAnyShapeReachFromFewTokensToMany) {
  int large_batches = 0, short_contexts = 0, long_contexts = 0;
  for (const Shape& shape : random_shapes(DecodeProblem{}, 200, 3, false, {}, kAnyShape)) {
    EXPECT_GE(kv_bytes(DecodeProblem{}, shape), 1 << 20);
    EXPECT_LE(kv_bytes(DecodeProblem{}, shape), kMostRandomKvBytes);
    large_batches += shape.batch > 512, short_contexts += shape.longest_context < 128;
    long_contexts += shape.longest_context > 200000;
  }
  EXPECT_GE(large_batches, 10);
  EXPECT_GE(short_contexts, 10);
  EXPECT_GE(long_contexts, 2);
}

TEST(RandomProblems, AreDifferentValidAndTheSameForTheSameSeed) {
  const std::vector<DecodeProblem> problems = random_problems(200, 5);
  ASSERT_EQ(problems.size(), 200u);
  EXPECT_EQ(problems, random_problems(200, 5));
  EXPECT_NE(problems, random_problems(200, 6));
  std::set<std::string> texts;
  std::set<int> head_dims, page_sizes;
  int wide_groups = 0, one_byte = 0, dependent = 0;
  for (const DecodeProblem& problem : problems) {
    EXPECT_TRUE(validate(problem)) << to_json(problem);
    EXPECT_LE(problem.q_heads, 128);
    EXPECT_EQ(problem, canonical(problem));
    EXPECT_FALSE(random_shapes(problem, 1, 1, false, {}, kAnyShape).empty()) << to_json(problem);
    texts.insert(to_json(problem)), head_dims.insert(problem.head_dim), page_sizes.insert(problem.features.page_size);
    wide_groups += problem.q_heads / problem.kv_heads > 16;
    one_byte += problem.features.kv_format != KvFormat::same, dependent += problem.pdl;
  }
  EXPECT_EQ(texts.size(), 200u);
  EXPECT_EQ(head_dims, (std::set<int>{64, 80, 96, 128, 192, 256, 512}));
  EXPECT_EQ(page_sizes, (std::set<int>{0, 1, 16, 64}));
  for (const int some : {wide_groups, one_byte, dependent}) EXPECT_GE(some, 20);
}

}  // namespace
}  // namespace leanattn
