// engine_arguments_test.cpp -- bind_arguments() names every bad value, and makes the kernel's argument block of good
// ones.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/unit/runtime/arguments_fixture.hpp"

namespace leanattn {
namespace {

class Arguments : public ArgumentsTest {
 protected:
  Result<LeanDecodeArgs> bind() { return bind_arguments(limits, args, workspace); }

  /// Expects that binding fails after `change`, with a message that contains `what`.
  void refuses(const std::string& what, const std::function<void()>& change) {
    const auto before = args;
    const auto limits_before = limits;
    void* const workspace_before = workspace;
    change();
    const auto bound = bind();
    ASSERT_FALSE(bound) << what;
    EXPECT_EQ(bound.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(bound.error().message.find(what), std::string::npos) << bound.error().message;
    args = before;
    limits = limits_before;
    workspace = workspace_before;
    EXPECT_TRUE(bind());
  }

  void* workspace = at(0x10000);
};

TEST_F(Arguments, ALineOfTwoToThe30TilesIsRefused) {
  limits.size.batch = 1 << 20;
  limits.tile = 16;
  args.batch = (1 << 13) - 1;
  args.context_capacity = 1 << 18;  // 2^13 requests x 8 heads x 2^14 tiles
  EXPECT_TRUE(bind()) << bind().error().message;
  args.batch = 1 << 13;
  const auto refused = bind();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
  EXPECT_NE(refused.error().message.find("8192"), std::string::npos) << refused.error().message;
  args.batch = (1 << 13) - 1;
  limits.segment_cost = 3;  // segment costs lie on the line, too
  EXPECT_FALSE(bind());
  args.batch = 1;
  args.context_capacity = (1 << 30) + 1;
  ASSERT_FALSE(bind());
  EXPECT_EQ(bind().error().code, ErrorCode::unsupported);
}

TEST_F(Arguments, MoreOutputTilesThanTheScheduleCanDivideExactlyAreRefused) {
  limits.row_blocks = (1 << 20) / 8;
  args.context_capacity = 16;
  EXPECT_TRUE(bind()) << bind().error().message;
  limits.row_blocks += 1;
  ASSERT_FALSE(bind());
  EXPECT_EQ(bind().error().code, ErrorCode::unsupported);
}

TEST_F(Arguments, ZeroStridesAreTheDenseOnesOfAContiguousCache) {
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->q_stride_head, 128);
  EXPECT_EQ(bound->q_stride_batch, 32 * 128);
  EXPECT_EQ(bound->o_stride_head, 128);
  EXPECT_EQ(bound->o_stride_batch, 32 * 128);
  EXPECT_EQ(bound->k_stride_token, 128);
  EXPECT_EQ(bound->k_stride_head, 8192 * 128);
  EXPECT_EQ(bound->k_stride_batch, 8 * 8192 * 128);
  EXPECT_EQ(bound->v_stride_token, 128);
  EXPECT_EQ(bound->v_stride_head, 8192 * 128);
  EXPECT_EQ(bound->v_stride_batch, 8 * 8192 * 128);
}

TEST_F(Arguments, ZeroStridesAreTheDenseOnesOfAStridedCache) {
  limits.problem.layout = KvLayout::strided;
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->k_stride_token, 8 * 128);
  EXPECT_EQ(bound->k_stride_head, 128);
  EXPECT_EQ(bound->k_stride_batch, 8 * 8192 * 128);
}

TEST_F(Arguments, PointersLengthsAndWorkspaceArriveWhereTheKernelLooks) {
  limits.problem.lse = true;
  args.lse = at<float>(0x6004);
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->q, at(0x1000));
  EXPECT_EQ(bound->k, at(0x2000));
  EXPECT_EQ(bound->v, at(0x3000));
  EXPECT_EQ(bound->o, at(0x4000));
  EXPECT_EQ(bound->lse, at<float>(0x6004));
  EXPECT_EQ(bound->context_lengths, at<int>(0x5004));
  EXPECT_EQ(bound->tickets, at<unsigned>(0x10000));
  EXPECT_EQ(bound->partials, at<float>(0x10000 + 1024));
  EXPECT_EQ(bound->batch, 2);
  EXPECT_EQ(bound->kv_heads, 8);
  EXPECT_EQ(bound->context_capacity, 8192);
}

TEST_F(Arguments, TheScaleIsInBaseTwoAndDefaultsToTheInverseRootOfHeadDim) {
  EXPECT_NEAR(bind()->scale_log2, std::log2(std::exp(1.0)) / std::sqrt(128.0), 1e-7);
  args.scale = 0.5f;
  EXPECT_NEAR(bind()->scale_log2, 0.5 * std::log2(std::exp(1.0)), 1e-7);
}

TEST_F(Arguments, NullPointersAreRefusedByName) {
  refuses("q is null", [&] { args.q = nullptr; });
  refuses("k is null", [&] { args.k = nullptr; });
  refuses("v is null", [&] { args.v = nullptr; });
  refuses("o is null", [&] { args.o = nullptr; });
  refuses("context_lengths is null", [&] { args.context_lengths = nullptr; });
  refuses("workspace is null", [&] { workspace = nullptr; });
  refuses("lse is null", [&] { limits.problem.lse = true; });
}

TEST_F(Arguments, MisalignedPointersAreRefusedWithTheirValue) {
  refuses("q is 0x1008", [&] { args.q = at(0x1008); });
  refuses("k is 0x2001", [&] { args.k = at(0x2001); });
  refuses("v is 0x3002", [&] { args.v = at(0x3002); });
  refuses("o is 0x4004", [&] { args.o = at(0x4004); });
  refuses("context_lengths is 0x5002", [&] { args.context_lengths = at<std::int32_t>(0x5002); });
  refuses("workspace is 0x10080", [&] { workspace = at(0x10080); });
  refuses("lse is 0x6002", [&] {
    limits.problem.lse = true;
    args.lse = at<float>(0x6002);
  });
}

TEST_F(Arguments, AnLseThatThePlanDoesNotWriteIsRefused) {
  refuses("lse is given", [&] { args.lse = at<float>(0x6000); });
}

TEST_F(Arguments, SizesOutOfRangeAreRefusedWithTheirValue) {
  refuses("batch is -3", [&] { args.batch = -3; });
  refuses("batch is 5, this plan takes 0 to 4", [&] { args.batch = 5; });
  refuses("context_capacity is 0", [&] { args.context_capacity = 0; });
  refuses("context_capacity is -1", [&] { args.context_capacity = -1; });
  refuses("reserved is 1", [&] { args.reserved = 1; });
}

TEST_F(Arguments, AnEmptyBatchNeedsNoMemoryButIsCheckedAllTheSame) {
  args.batch = 0;
  args.q = args.k = args.v = args.o = nullptr;
  args.context_lengths = nullptr;
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->batch, 0);
  limits.problem.lse = true;
  EXPECT_TRUE(bind());
  limits.problem.lse = false;
  refuses("context_capacity is 0", [&] { args.context_capacity = 0; });
  refuses("scale is -0.5", [&] { args.scale = -0.5f; });
  refuses("q is 0x1008", [&] { args.q = at(0x1008); });
  refuses("lse is given", [&] { args.lse = at<float>(0x6000); });
  refuses("k_stride_head is 132", [&] { args.k_stride_head = 132; });
}

TEST_F(Arguments, AScaleThatIsNoPositiveNumberIsRefused) {
  refuses("scale is -0.5", [&] { args.scale = -0.5f; });
  refuses("scale is nan", [&] { args.scale = std::numeric_limits<float>::quiet_NaN(); });
  refuses("scale is inf", [&] { args.scale = std::numeric_limits<float>::infinity(); });
}

TEST_F(Arguments, StridesThatLoadsCannotFollowAreRefused) {
  refuses("q_stride_head is 132", [&] { args.q_stride_head = 132; });
  refuses("q_stride_head is 64 elements, less than head_dim", [&] { args.q_stride_head = 64; });
  refuses("o_stride_batch is -4096", [&] { args.o_stride_batch = -4096; });
  refuses("k_stride_head is 1000001", [&] { args.k_stride_head = 1000001; });
  refuses("v_stride_batch is 8388612", [&] { args.v_stride_batch = 8388612; });
}

TEST_F(Arguments, WhatIsReadMayBeExpandedAndWhatIsWrittenMayNot) {
  args.q_stride_batch = args.q_stride_head = LEANATTN_STRIDE_EXPANDED;
  args.k_stride_head = args.v_stride_batch = LEANATTN_STRIDE_EXPANDED;
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->q_stride_batch, 0);
  EXPECT_EQ(bound->q_stride_head, 0);
  EXPECT_EQ(bound->k_stride_head, 0);
  EXPECT_EQ(bound->k_stride_batch, 8 * 8192 * 128);
  EXPECT_EQ(bound->v_stride_batch, 0);
  refuses("o_stride_batch is LEANATTN_STRIDE_EXPANDED", [&] { args.o_stride_batch = LEANATTN_STRIDE_EXPANDED; });
  refuses("o_stride_head is LEANATTN_STRIDE_EXPANDED", [&] { args.o_stride_head = LEANATTN_STRIDE_EXPANDED; });
  refuses("k_stride_token is 0, but the problem's KV layout is contiguous",
          [&] { args.k_stride_token = LEANATTN_STRIDE_EXPANDED; });
  limits.problem.layout = KvLayout::strided;
  args.k_stride_token = LEANATTN_STRIDE_EXPANDED;
  EXPECT_TRUE(bind());
}

TEST_F(Arguments, AContiguousCacheHasAdjacentTokens) {
  refuses("k_stride_token is 1024", [&] { args.k_stride_token = 1024; });
  refuses("v_stride_token is 1024", [&] { args.v_stride_token = 1024; });
  limits.problem.layout = KvLayout::strided;
  args.k_stride_token = args.v_stride_token = 2048;
  EXPECT_TRUE(bind());
}

TEST_F(Arguments, ExtentsThatOverflow64BitsAreRefused) {
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max() / 8 * 8;
  refuses("k_stride_batch", [&] { args.k_stride_batch = kHuge; });
  refuses("v_stride_head", [&] { args.v_stride_head = kHuge / 7 / 8 * 8; });
  refuses("q_stride_head", [&] { args.q_stride_head = kHuge / 16 / 8 * 8; });
}

TEST_F(Arguments, AStrideThatIsNeverFollowedMayBeAnything) {
  args.batch = 1;
  args.q_stride_batch = 3;
  args.k_stride_batch = -5;
  EXPECT_TRUE(bind());
}

TEST_F(Arguments, AMillionTokensOfManyHeadsArePastThirtyTwoBitsAndFine) {
  limits.problem = {.q_heads = 128, .kv_heads = 128, .head_dim = 256};
  limits.size.batch = 64;
  args.batch = 64;
  args.context_capacity = 1 << 20;
  const auto bound = bind();
  ASSERT_TRUE(bound) << bound.error().message;
  EXPECT_EQ(bound->k_stride_batch, std::int64_t{128} * (1 << 20) * 256);
}

TEST_F(Arguments, TheLargestSizesThatPassTheirChecksDoNotOverflowTheDenseStrides) {
  limits.problem = {
      .q_heads = std::numeric_limits<int>::max(), .kv_heads = std::numeric_limits<int>::max(), .head_dim = 256};
  args.context_capacity = std::numeric_limits<int>::max();
  const auto bound = bind();
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code, ErrorCode::invalid_argument);
}

TEST(Workspace, MustBeThereAlignedAndLargeEnough) {
  const WorkspaceLayout layout{.partials_offset = 256, .tickets_offset = 0, .total_bytes = 4096};
  EXPECT_TRUE(check_workspace(layout, at(0x1000), 4096));
  EXPECT_TRUE(check_workspace(layout, at(0x1000), 5000));
  EXPECT_FALSE(check_workspace(layout, nullptr, 4096));
  EXPECT_FALSE(check_workspace(layout, at(0x1010), 4096));
  const auto small = check_workspace(layout, at(0x1000), 4095);
  ASSERT_FALSE(small);
  EXPECT_NE(small.error().message.find("4095"), std::string::npos);
  EXPECT_NE(small.error().message.find("4096"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
