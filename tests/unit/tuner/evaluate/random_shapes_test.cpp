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

}  // namespace
}  // namespace leanattn
