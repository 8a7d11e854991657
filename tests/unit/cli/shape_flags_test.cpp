// shape_flags_test.cpp -- the flags of a shape describe a problem and its shapes.
#include "cli/flags/shape_flags.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

ShapeFlags llama_shape() {
  ShapeFlags flags;
  flags.model = "llama-3-8b";
  return flags;
}

TEST(ShapeFlags, ShapesAreEveryBatchWithEveryContextBatchMajor) {
  ShapeFlags flags = llama_shape();
  flags.batch = "1,16";
  flags.context = "1k,64k";
  const auto workload = resolve(flags, "1", "8k");
  ASSERT_TRUE(workload.has_value()) << workload.error().message;
  ASSERT_EQ(workload->shapes.size(), 4u);
  EXPECT_EQ(workload->shapes[0].batch, 1);
  EXPECT_EQ(workload->shapes[0].longest_context, 1024);
  EXPECT_EQ(workload->shapes[1].longest_context, 65536);
  EXPECT_EQ(workload->shapes[2].batch, 16);
}

TEST(ShapeFlags, DefaultsAreThoseOfTheCommand) {
  const auto workload = resolve(llama_shape(), "2", "3k");
  ASSERT_TRUE(workload.has_value());
  ASSERT_EQ(workload->shapes.size(), 1u);
  EXPECT_EQ(workload->shapes[0].batch, 2);
  EXPECT_EQ(workload->shapes[0].longest_context, 3072);
}

TEST(ShapeFlags, HeadFlagsOverrideTheModel) {
  ShapeFlags flags = llama_shape();
  flags.kv_heads = "32";
  const auto workload = resolve(flags, "1", "8k");
  ASSERT_TRUE(workload.has_value());
  EXPECT_EQ(workload->problem.q_heads, 32);
  EXPECT_EQ(workload->problem.kv_heads, 32);
}

TEST(ShapeFlags, PdlIsOffUnlessAskedFor) {
  ShapeFlags flags = llama_shape();
  EXPECT_FALSE(resolve(flags, "1", "8k")->problem.pdl);
  flags.pdl = true;
  const auto workload = resolve(flags, "1", "8k");
  ASSERT_TRUE(workload.has_value()) << workload.error().message;
  EXPECT_TRUE(workload->problem.pdl);
  EXPECT_EQ(describe(workload->problem), "32/8 heads x 128, bf16, pdl");
}

TEST(ShapeFlags, WithoutKvHeadsEveryQueryHeadHasItsOwn) {
  ShapeFlags flags;
  flags.heads = "12";
  flags.head_dim = "64";
  const auto workload = resolve(flags, "1", "8k");
  ASSERT_TRUE(workload.has_value()) << workload.error().message;
  EXPECT_EQ(workload->problem.kv_heads, 12);
}

TEST(ShapeFlags, TheModelsDtypeHoldsUntilAFlagSaysOtherwise) {
  ShapeFlags flags;
  flags.model = "opt-6.7b";
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.dtype, DType::fp16);
  flags.dtype = "bf16";
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.dtype, DType::bf16);
}

TEST(ShapeFlags, ShapesWhoseSizeOverflowsAreRefused) {
  ShapeFlags flags = llama_shape();
  flags.batch = "2147483647";
  flags.context = "2147483647";
  flags.heads = "2147483647";
  flags.kv_heads = "2147483647";
  EXPECT_FALSE(resolve(flags, "1", "8k").has_value());
}

TEST(ShapeFlags, ARaggedShapeIsNamedAsOne) {
  EXPECT_EQ(describe(Shape{.batch = 2, .longest_context = 1024}), "batch 2, context 1k");
  EXPECT_EQ(describe(Shape{.batch = 2, .longest_context = 1024, .total_context = 2048}), "batch 2, context 1k");
  EXPECT_EQ(describe(Shape{.batch = 2, .longest_context = 1024, .total_context = 1100}),
            "batch 2, context up to 1k, 1100 tokens in all");
}

TEST(ShapeFlags, WhatIsMissingOfTheHeadsIsNamed) {
  ShapeFlags flags;
  EXPECT_EQ(resolve(flags, "1", "8k").error().message, "no model was given");
  flags.heads = "32";
  EXPECT_EQ(resolve(flags, "1", "8k").error().message, "--heads 32 was given without --head-dim");
  flags.heads = "", flags.kv_heads = "8";
  EXPECT_EQ(resolve(flags, "1", "8k").error().message, "--kv-heads 8 was given without --heads and --head-dim");
}

TEST(ShapeFlags, LayersWithAWindowAreAProblemOfTheirOwn) {
  ShapeFlags flags;
  flags.model = "gpt-oss-20b";
  auto workload = resolve(flags, "1", "8k");
  EXPECT_EQ(workload->problem.features, Features{.sink_logits = true});
  EXPECT_EQ(workload->notes.size(), 1u);
  flags.layers = "full";
  EXPECT_TRUE(resolve(flags, "1", "8k")->notes.empty());
  flags.layers = "window";
  workload = resolve(flags, "1", "8k");
  EXPECT_EQ(workload->problem.features, (Features{.window = 128, .sink_logits = true}));
  EXPECT_TRUE(workload->notes.empty());
  flags.features["--window"] = "256";  // A flag replaces the model's value.
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.features.window, 256);
  flags.model = "llama-3-8b";
  EXPECT_FALSE(resolve(flags, "1", "8k").has_value());
}

}  // namespace
}  // namespace leanattn
