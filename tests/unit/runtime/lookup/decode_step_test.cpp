// decode_step_test.cpp -- what follows from a problem and a shape on a device.
#include "runtime/lookup/decode_step.hpp"

#include <gtest/gtest.h>

#include "runtime/lookup/specs.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

TEST(DecodeStep, HasOneFormOfAllProblemsAndShapesThatMeanTheSame) {
  const DeviceFacts gpu = fictional_gpu();
  DecodeProblem spelled_out;
  spelled_out.features.v_head_dim = spelled_out.head_dim;
  spelled_out.group_link = GroupLink::pcie;
  const DecodeStep step(gpu, spelled_out, {.batch = 4, .max_batch = 4, .longest_context = 1000, .total_context = 4000});
  EXPECT_EQ(step.problem, DecodeProblem{});
  EXPECT_EQ(step.shape, (Shape{.batch = 4, .longest_context = 1000}));
  EXPECT_EQ(step.base, base_spec(gpu.arch, DecodeProblem{}));
  EXPECT_EQ(step.bytes, std::int64_t{4000} * 8 * 2 * 128 * 2);
}

TEST(DecodeStep, IsRaggedByItsVisibleTokens) {
  const DeviceFacts gpu = fictional_gpu();
  const Shape shape{.batch = 8, .longest_context = 8192, .total_context = 8192 + 7 * 1024};
  const DecodeStep all(gpu, {}, shape);
  EXPECT_DOUBLE_EQ(all.average_tokens, 1920);
  EXPECT_NEAR(all.raggedness, 2.09, 0.01);
  EXPECT_TRUE(all.ragged());
  const DecodeStep windowed(gpu, {.features = {.window = 512}}, shape);
  EXPECT_EQ(windowed.visible, (Shape{.batch = 8, .longest_context = 512}));
  EXPECT_EQ(windowed.raggedness, 0);
  EXPECT_FALSE(windowed.ragged());
}

}  // namespace
}  // namespace leanattn
