// feature_arguments_test.cpp -- the arguments of features: defaults are filled in, and every bad value is named.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/unit/runtime/arguments_fixture.hpp"

namespace leanattn {
namespace {

class FeatureArguments : public ArgumentsTest {
 protected:
  Features& features() { return limits.problem.features; }

  void make_paged() {
    features().page_size = 16;
    args.context_capacity = 0;
    args.page_table = at<std::int32_t>(0x7004);
    args.max_pages = 100;
    args.pool_pages = 1000;
  }
  void make_scaled_per_token() {
    features().kv_format = KvFormat::int8;
    features().kv_scale = KvScale::token;
    args.k_scale = at<float>(0x8004);
    args.v_scale = at<float>(0x9004);
  }

  Result<LeanDecodeArgs> bind() { return bind_arguments(limits, args, at(0x10000)); }
  LeanDecodeArgs bound() {
    const auto block = bind();
    EXPECT_TRUE(block) << (block ? "" : block.error().message);
    return block.value_or(LeanDecodeArgs{});
  }

  /// Expects that binding fails after `change`, with a message that contains `what`, and succeeds before and without
  /// it.
  void refuses(const std::string& what, const std::function<void()>& change,
               ErrorCode code = ErrorCode::invalid_argument) {
    const auto args_before = args;
    const auto limits_before = limits;
    ASSERT_TRUE(bind()) << bind().error().message;
    change();
    const auto block = bind();
    args = args_before;
    limits = limits_before;
    ASSERT_FALSE(block) << what;
    EXPECT_EQ(block.error().code, code) << what;
    EXPECT_NE(block.error().message.find(what), std::string::npos) << block.error().message;
    EXPECT_FALSE(block.error().hint.empty()) << what;
  }
};

// ---- Arrays ----

TEST_F(FeatureArguments, EveryFeaturesArrayMustBeThereAndAligned) {
  refuses("q_offsets is null", [&] { features().ragged_q = true; });
  refuses("q_offsets is 0x7002", [&] { features().ragged_q = true, args.q_offsets = at<std::int32_t>(0x7002); });
  refuses("tree_mask is null", [&] { features().q_len = 4, features().mask = QueryMask::tree; });
  refuses("spans is null", [&] {
    features().q_len = 4, features().ragged_q = features().spans = true, args.q_offsets = at<std::int32_t>(0x7004);
  });
  refuses("spans is 0x7204, which is not a multiple of 8", [&] {
    features().q_len = 4, features().ragged_q = features().spans = true, args.q_offsets = at<std::int32_t>(0x7004);
    args.spans = at<std::int32_t>(0x7204);
  });
  refuses("alibi_slopes is null", [&] { features().alibi = true; });
  refuses("alibi_slopes is 0x7001", [&] { features().alibi = true, args.alibi_slopes = at<float>(0x7001); });
  refuses("sink_logits is null", [&] { features().sink_logits = true; });
  refuses("k_scale is 0x8002", [&] { features().kv_format = KvFormat::fp8_e4m3, args.k_scale = at<float>(0x8002); });
  make_paged();
  refuses("page_table is null", [&] { args.page_table = nullptr; });
  refuses("page_table is 0x7002", [&] { args.page_table = at<std::int32_t>(0x7002); });
}

TEST_F(FeatureArguments, AnArrayOfAFeatureThatTheProblemHasNotIsRefused) {
  refuses("page_table is given", [&] { args.page_table = at<std::int32_t>(0x7000); });
  refuses("q_offsets is given", [&] { args.q_offsets = at<std::int32_t>(0x7000); });
  refuses("tree_mask is given", [&] { args.tree_mask = at<std::uint32_t>(0x7000); });
  refuses("spans is given", [&] { args.spans = at<std::int32_t>(0x7000); });
  refuses("alibi_slopes is given", [&] { args.alibi_slopes = at<float>(0x7000); });
  refuses("sink_logits is given", [&] { args.sink_logits = at<float>(0x7000); });
  refuses("k_scale is given", [&] { args.k_scale = at<float>(0x7000); });
  refuses("v_scale is given", [&] { args.v_scale = at<float>(0x7000); });
}

TEST_F(FeatureArguments, ValuesOfAFeatureThatTheProblemHasNotAreRefused) {
  refuses("pool_pages is 5", [&] { args.pool_pages = 5; });
  refuses("max_pages is 5", [&] { args.max_pages = 5; });
  refuses("page_table_stride is 5", [&] { args.page_table_stride = 5; });
  refuses("kv_scale_stride_batch is 5", [&] { args.kv_scale_stride_batch = 5; });
  features().kv_format = KvFormat::int8;
  features().kv_scale = KvScale::head;
  refuses("kv_scale_stride_head is 5", [&] { args.kv_scale_stride_head = 5; });
  refuses("kv_scale_stride_token is 5", [&] { args.kv_scale_stride_token = 5; });
  refuses("query_tokens is 5", [&] { args.query_tokens = 5; });
}

TEST_F(FeatureArguments, ArraysArriveWhereTheKernelLooks) {
  make_paged();
  features().q_len = 4;
  features().ragged_q = true;
  features().mask = QueryMask::tree;
  features().alibi = features().sink_logits = true;
  features().kv_format = KvFormat::int8;
  args.q_offsets = at<std::int32_t>(0x7104);
  args.tree_mask = at<std::uint32_t>(0x7204);
  args.alibi_slopes = at<float>(0x7304);
  args.sink_logits = at<float>(0x7404);
  args.k_scale = at<float>(0x7504);
  args.v_scale = at<float>(0x7604);
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.page_table, at<int>(0x7004));
  EXPECT_EQ(block.q_offsets, at<int>(0x7104));
  EXPECT_EQ(block.tree_mask, at<unsigned>(0x7204));
  EXPECT_EQ(block.alibi_slopes, at<float>(0x7304));
  EXPECT_EQ(block.sink_logits, at<float>(0x7404));
  EXPECT_EQ(block.k_scale, at<float>(0x7504));
  EXPECT_EQ(block.v_scale, at<float>(0x7604));
}

TEST_F(FeatureArguments, PackedKeysAndValuesHaveOneStrideAndOffsetsInPlaceOfLengths) {
  refuses("kv_offsets is given, but this plan's problem has not packed_kv",
          [&] { args.kv_offsets = at<std::int32_t>(0x7104); });
  features().packed_kv = true;
  args.context_lengths = nullptr, args.kv_offsets = at<std::int32_t>(0x7104);
  refuses("kv_offsets is null", [&] { args.kv_offsets = nullptr; });
  refuses("kv_offsets is 0x7102", [&] { args.kv_offsets = at<std::int32_t>(0x7102); });
  refuses("context_lengths is given, but this plan's problem has packed_kv",
          [&] { args.context_lengths = at<std::int32_t>(0x7204); });
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.context_lengths, at<int>(0x7104));
  EXPECT_EQ(block.k_stride_batch, block.k_stride_token);
  EXPECT_EQ(block.v_stride_batch, block.v_stride_token);
  EXPECT_EQ(block.context_capacity, args.context_capacity);
}

TEST_F(FeatureArguments, SpansReachTheKernelThatHasThem) {
  features().q_len = 4, features().ragged_q = features().spans = true;
  args.q_offsets = at<std::int32_t>(0x7104), args.spans = at<std::int32_t>(0x7208);
  EXPECT_EQ(bound().spans, at<LeanSpan>(0x7208));
}

// ---- Pages ----

TEST_F(FeatureArguments, DensePagesAreHeadMajorOrTokenMajorByLayout) {
  make_paged();
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.k_stride_token, 128);
  EXPECT_EQ(block.k_stride_head, 16 * 128);
  EXPECT_EQ(block.k_stride_batch, 8 * 16 * 128);
  EXPECT_EQ(block.page_table_stride, 100);
  EXPECT_EQ(block.pool_pages, 1000);
  EXPECT_EQ(block.context_capacity, 1600);
  limits.problem.layout = KvLayout::strided;
  block = bound();
  EXPECT_EQ(block.v_stride_token, 8 * 128);
  EXPECT_EQ(block.v_stride_head, 128);
  EXPECT_EQ(block.v_stride_batch, 8 * 16 * 128);
}

TEST_F(FeatureArguments, KAndVMayBeInterleavedInOnePool) {
  make_paged();
  args.k_stride_batch = args.v_stride_batch = 2 * 8 * 16 * 128;
  EXPECT_EQ(bound().k_stride_batch, 2 * 8 * 16 * 128);
}

TEST_F(FeatureArguments, TheCapacityOfAPagedCacheFollowsFromItsPageTable) {
  make_paged();
  args.context_capacity = 1600;
  EXPECT_EQ(bound().context_capacity, 1600);
  refuses("context_capacity is 1601", [&] { args.context_capacity = 1601; });
  refuses("context_capacity is -1", [&] { args.context_capacity = -1; });
  args.context_capacity = 0;
  refuses("max_pages is 0", [&] { args.max_pages = 0; });
  refuses("max_pages is -1", [&] { args.max_pages = -1; });
  refuses(
      "max_pages is 67108865", [&] { args.max_pages = (1 << 26) + 1; }, ErrorCode::unsupported);
  refuses(
      "max_pages is 2147483647", [&] { args.max_pages = std::numeric_limits<int>::max(); }, ErrorCode::unsupported);
  args.max_pages = 1 << 24;
  EXPECT_EQ(bound().context_capacity, 1 << 28);
}

TEST_F(FeatureArguments, PoolsHaveOneToTwoToThe31Pages) {
  make_paged();
  refuses("pool_pages is 0", [&] { args.pool_pages = 0; });
  refuses("pool_pages is -7", [&] { args.pool_pages = -7; });
  refuses("pool_pages is 2147483648", [&] { args.pool_pages = std::int64_t{1} << 31; });
  args.pool_pages = std::numeric_limits<int>::max();
  EXPECT_EQ(bound().pool_pages, std::numeric_limits<int>::max()) << "more than 2^31 elements are fine";
  args.k_stride_batch = std::int64_t{1} << 28;
  refuses("k_stride_batch", [&] { args.k_stride_batch = std::int64_t{1} << 50; });
}

TEST_F(FeatureArguments, RowsOfThePageTableMustNotOverlapOrOverflow) {
  make_paged();
  args.page_table_stride = 128;
  EXPECT_EQ(bound().page_table_stride, 128);
  args.page_table_stride = LEANATTN_STRIDE_EXPANDED;
  EXPECT_EQ(bound().page_table_stride, 0) << "requests may share a row";
  refuses("page_table_stride is 99", [&] { args.page_table_stride = 99; });
  refuses("page_table_stride is -100", [&] { args.page_table_stride = -100; });
  refuses("page_table_stride is 4611686018427387904", [&] { args.page_table_stride = std::int64_t{1} << 62; });
  args.batch = 1;
  args.page_table_stride = 1;
  EXPECT_TRUE(bind()) << "the stride is not used for one request";
}

TEST_F(FeatureArguments, APageOfOneTokenHasNoTokenStrideToFollow) {
  make_paged();
  features().page_size = 1;
  args.k_stride_token = 12345;
  EXPECT_TRUE(bind()) << bind().error().message;
  features().page_size = 2;
  EXPECT_FALSE(bind());
}

// ---- Query tokens ----

TEST_F(FeatureArguments, QueryTokensFollowEachOtherUnlessStridesSayOtherwise) {
  features().q_len = 4;
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.q_stride_head, 128);
  EXPECT_EQ(block.q_stride_token, 32 * 128);
  EXPECT_EQ(block.q_stride_batch, 4 * 32 * 128);
  EXPECT_EQ(block.o_stride_token, 32 * 128);
  EXPECT_EQ(block.o_stride_batch, 4 * 32 * 128);
  args.q_stride_token = 48 * 128;  // of a fused QKV projection
  block = bound();
  EXPECT_EQ(block.q_stride_token, 48 * 128);
  EXPECT_EQ(block.q_stride_batch, 4 * 48 * 128);
  EXPECT_EQ(block.o_stride_batch, 4 * 32 * 128);
  refuses("q_stride_token is 132", [&] { args.q_stride_token = 132; });
  refuses("q_stride_token is 64 elements, less than head_dim", [&] { args.q_stride_token = 64; });
  refuses("o_stride_token is -4096", [&] { args.o_stride_token = -4096, args.o_stride_batch = 1 << 20; });
  refuses("q_stride_token", [&] { args.q_stride_token = std::int64_t{1} << 62, args.q_stride_batch = 1 << 20; });
}

TEST_F(FeatureArguments, OfOneQueryTokenTheTokenStrideMayBeAnything) {
  args.q_stride_token = args.o_stride_token = 3;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.q_stride_batch, 32 * 128);
  EXPECT_EQ(block.o_stride_batch, 32 * 128);
}

TEST_F(FeatureArguments, RaggedQueriesUseTheTokenStrideAlone) {
  features().q_len = 4;
  features().ragged_q = true;
  args.q_offsets = at<std::int32_t>(0x7000);
  args.q_stride_batch = 3;  // not used
  EXPECT_TRUE(bind()) << bind().error().message;
  refuses("q_stride_token is 132", [&] { args.q_stride_token = 132; });
  features().q_len = 1;
  refuses("o_stride_token is 132", [&] { args.o_stride_token = 132; });
  refuses("query_tokens is -1", [&] { args.query_tokens = -1; });
  args.q_stride_token = 132;
  args.query_tokens = 1;
  EXPECT_TRUE(bind()) << "a stride that is not followed";
}

TEST_F(FeatureArguments, TheQueryTokensOfALaunchWithPrefillBoundItsLine) {
  features() = {.q_len = kMostPrefillTokens, .ragged_q = true};
  args.q_offsets = at<std::int32_t>(0x7000);
  limits.size.batch = 4096;
  limits.row_blocks = kMostPrefillTokens * 4 / 128, limits.rows = 128, limits.tile = 128;
  args.batch = 1 << 9;
  args.context_capacity = 1 << 17;  // 2^10 LeanTiles
  // (tokens * 4 / 128 + 2^9) x 8 heads x 2^10 tiles
  args.query_tokens = ((1 << 17) - (1 << 9)) * 32 - 1;
  EXPECT_EQ(bound().query_tokens, args.query_tokens);
  refuses(
      "may need 2^30 LeanTiles", [&] { args.query_tokens += 1; }, ErrorCode::unsupported);
  refuses("query_tokens is 0, which means 67108864", [&] { args.query_tokens = 0; });
  limits.segment_cost = 1;  // lies on the line, too
  EXPECT_FALSE(bind());
  // Requests of few tokens have an output tile each.
  limits.segment_cost = 0;
  args.batch = 4096, args.query_tokens = 4096;
  EXPECT_TRUE(bind()) << bind().error().message;
  refuses(
      "may need 2^30 LeanTiles", [&] { args.context_capacity <<= 8; }, ErrorCode::unsupported);
}

TEST_F(FeatureArguments, AKvHeadOfARequestHasAtMostTwoToThe20OutputTiles) {
  features() = {.q_len = kMostPrefillTokens, .ragged_q = true};
  limits.problem.q_heads = 1024;
  args.q_offsets = at<std::int32_t>(0x7000);
  limits.row_blocks = kMostPrefillTokens * 16, limits.rows = 8;
  args.batch = 1, args.context_capacity = 16, args.query_tokens = 1 << 16;
  ASSERT_FALSE(bind());
  EXPECT_EQ(bind().error().message, "1048577 output tiles a request, more than 2^20");
  args.query_tokens -= 1;
  EXPECT_TRUE(bind()) << bind().error().message;
}

// ---- New tokens ----

TEST_F(FeatureArguments, NewTokensAreDenseUnlessStridesSayOtherwise) {
  features().append = true;
  features().v_head_dim = 64;
  args.k_new = at(0xa000);
  args.v_new = at(0xb000);
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.k_new, at(0xa000));
  EXPECT_EQ(block.v_new, at(0xb000));
  EXPECT_EQ(block.k_new_stride_head, 128);
  EXPECT_EQ(block.k_new_stride_batch, 8 * 128);
  EXPECT_EQ(block.v_new_stride_batch, 8 * 64);
  features().q_len = 4;
  block = bound();
  EXPECT_EQ(block.k_new_stride_token, 8 * 128);
  EXPECT_EQ(block.k_new_stride_batch, 4 * 8 * 128);
  args.v_new_stride_token = 48 * 64;
  EXPECT_EQ(bound().v_new_stride_batch, 4 * 48 * 64);
  refuses("k_new is null", [&] { args.k_new = nullptr; });
  refuses("v_new is 0xb008", [&] { args.v_new = at(0xb008); });
  refuses("k_new_stride_head is 132", [&] { args.k_new_stride_head = 132; });
  refuses("v_new_stride_token is 32 elements, less than v_head_dim",
          [&] { args.v_new_stride_token = 32, args.v_new_stride_batch = 4096; });
  refuses("v_new_stride_batch is -64", [&] { args.v_new_stride_batch = -64; });
  args.k_new_stride_head = args.k_new_stride_batch = LEANATTN_STRIDE_EXPANDED;
  EXPECT_EQ(bound().k_new_stride_head, 0) << "new rows are only read";
  refuses("k_stride_head is LEANATTN_STRIDE_EXPANDED", [&] { args.k_stride_head = LEANATTN_STRIDE_EXPANDED; });
  refuses("v_stride_batch is LEANATTN_STRIDE_EXPANDED", [&] { args.v_stride_batch = LEANATTN_STRIDE_EXPANDED; });
}

TEST_F(FeatureArguments, NewTokensAndRotationsThatTheProblemHasNotAreRefused) {
  refuses("k_new is given", [&] { args.k_new = at(0xa000); });
  refuses("v_new is given", [&] { args.v_new = at(0xa000); });
  refuses("rope_table is given", [&] { args.rope_table = at<float>(0xa000); });
  refuses("k_new_stride_head is 128", [&] { args.k_new_stride_head = 128; });
  refuses("v_new_stride_batch is 128", [&] { args.v_new_stride_batch = 128; });
  refuses("rope_table is null", [&] { features().rope = Rope::half_split; });
  features().rope = Rope::half_split;
  args.rope_table = at<float>(0xa004);
  EXPECT_EQ(bound().rope_table, at<float>(0xa004));
}

// ---- Widths and formats ----

TEST_F(FeatureArguments, VAndOHaveTheirOwnWidth) {
  features().v_head_dim = 64;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.q_stride_head, 128);
  EXPECT_EQ(block.k_stride_batch, 8 * 8192 * 128);
  EXPECT_EQ(block.v_stride_token, 64);
  EXPECT_EQ(block.v_stride_head, 8192 * 64);
  EXPECT_EQ(block.v_stride_batch, 8 * 8192 * 64);
  EXPECT_EQ(block.o_stride_head, 64);
  EXPECT_EQ(block.o_stride_batch, 32 * 64);
  refuses("v_stride_token is 128, but the problem's KV layout is contiguous: 64", [&] { args.v_stride_token = 128; });
  refuses("o_stride_head is 32 elements, less than v_head_dim, 64", [&] { args.o_stride_head = 32; });
}

TEST_F(FeatureArguments, OfALatentCacheVIsThePartOfKAtItsBeginning) {
  limits.problem.kv_heads = 1, limits.problem.head_dim = 576;
  features().v_head_dim = 512, features().latent = true;
  args.v = nullptr, args.scale = 0.125f;
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.v, args.k);
  EXPECT_EQ(block.k_stride_token, 576);
  EXPECT_EQ(block.v_stride_token, 576);
  EXPECT_EQ(block.v_stride_batch, 8192 * 576);
  EXPECT_EQ(block.o_stride_head, 512);
  refuses("v is given", [&] { args.v = at(0x3000); });
  refuses("k is null", [&] { args.k = nullptr; });
  refuses("v_stride_token is 576", [&] { args.v_stride_token = 576, args.max_pages = 0; });
  refuses("v_scale is given", [&] {
    features().kv_format = KvFormat::fp8_e4m3;
    args.v_scale = at<float>(0x7000);
  });
  refuses("scale is 0, and a latent problem has no default", [&] { args.scale = 0; });

  limits.problem.layout = KvLayout::strided;
  args.k_stride_token = 640;  // rows with room between them
  args.k_stride_batch = 8192 * 640;
  features().kv_format = KvFormat::fp8_e4m3;
  args.k_scale = at<float>(0x7000);
  block = bound();
  EXPECT_EQ(block.v_stride_token, 640);
  EXPECT_EQ(block.v_stride_batch, 8192 * 640);
  EXPECT_EQ(block.v_scale, args.k_scale) << "a row has one scale";

  features().kv_format = KvFormat::same, args.k_scale = nullptr;
  features().append = true;
  args.k_new = at(0x6000);
  EXPECT_EQ(bound().k_new_stride_token, 576);
  refuses("v_new is given", [&] { args.v_new = at(0x6000); });
  refuses("v_new_stride_token is 512", [&] { args.v_new_stride_token = 512; });
}

TEST_F(FeatureArguments, StridesOfRowsWithAFormatOfTheirOwnCountBytes) {
  limits.problem.kv_heads = 1, limits.problem.head_dim = 576;
  features().v_head_dim = 512, features().latent = true, features().kv_format = KvFormat::fp8_ds_mla;
  args.v = nullptr, args.scale = 0.125f;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.v, args.k);
  EXPECT_EQ(block.k_stride_token, 656);
  EXPECT_EQ(block.k_stride_batch, 8192 * 656);
  EXPECT_EQ(block.q_stride_head, 576);
  EXPECT_EQ(block.o_stride_head, 512);
  refuses("k_scale is given", [&] { args.k_scale = at<float>(0x7000); });
  refuses("k_stride_token is 672, but the problem's KV layout is contiguous: 656", [&] { args.k_stride_token = 672; });
  refuses("k_stride_batch is 640 elements, less than a row of the kv_format, 656", [&] { args.k_stride_batch = 640; });
  limits.problem.layout = KvLayout::strided;
  refuses("k_stride_token is 664 elements, not a multiple of 16 (16 bytes)", [&] { args.k_stride_token = 664; });
  args.k_stride_token = 768;
  args.k_stride_batch = 8192 * 768;
  EXPECT_EQ(bound().k_stride_token, 768);

  // New rows are given in q's type, as for other latent caches.
  features().append = true;
  args.k_new = at(0x6000);
  EXPECT_EQ(bound().k_new_stride_token, 576);
  EXPECT_EQ(bound().k_new, args.k_new);
  refuses("k_new is null", [&] { args.k_new = nullptr; });
  refuses("v_new is given", [&] { args.v_new = at(0x6000); });
  refuses("k_new_stride_batch is 570 elements", [&] { args.k_new_stride_batch = 570; });
}

TEST_F(FeatureArguments, PagesWhoseScalesLieBehindTheRowsHaveRoomForThem) {
  limits.problem.kv_heads = 1, limits.problem.head_dim = 512;
  make_paged();
  features().v_head_dim = 512, features().latent = true, features().kv_format = KvFormat::fp8_ds_v4;
  args.v = nullptr, args.scale = 0.125f;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.k_stride_token, 576);
  EXPECT_EQ(block.k_stride_batch, 16 * 584);
  args.k_stride_batch = 17 * 576;
  EXPECT_EQ(bound().k_stride_batch, 17 * 576);
  refuses("k_stride_batch is 9328, with pages of 9344 bytes", [&] { args.k_stride_batch = 16 * 583; });
  refuses("k_stride_batch is 9352", [&] { args.k_stride_batch = 16 * 584 + 8; });
  refuses("k_stride_token is 584, with pages of 9344 bytes", [&] { args.k_stride_token = 584; });
  limits.problem.layout = KvLayout::strided;
  refuses("k_stride_token is 592, with pages of 9344 bytes", [&] { args.k_stride_token = 592; });
}

TEST_F(FeatureArguments, RowsWithScalesInThemHoldAllFourPartsBehindEachOther) {
  // The rows of vLLM: K, its scale, V, and its scale, of each head.
  constexpr int kRow = 64 + 4 + 64 + 4, kHeads = 8;
  make_paged();
  limits.problem.layout = KvLayout::strided;
  features().kv_format = KvFormat::int4, features().kv_scale = KvScale::in_row;
  args.k = at(0x20000), args.k_scale = at<float>(0x20000 + 64);
  args.v = at(0x20000 + 68), args.v_scale = at<float>(0x20000 + 132);
  args.k_stride_head = args.v_stride_head = kRow;
  args.k_stride_token = args.v_stride_token = kHeads * kRow;
  args.k_stride_batch = args.v_stride_batch = 16 * kHeads * kRow;
  args.kv_scale_stride_head = kRow / 4, args.kv_scale_stride_token = kHeads * kRow / 4;
  args.kv_scale_stride_batch = 16 * kHeads * kRow / 4;
  features().page_size = 16;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.v, at(0x20000 + 68));
  EXPECT_EQ(block.k_stride_token, kHeads * kRow);
  EXPECT_EQ(block.kv_scale_stride_batch, 16 * kHeads * kRow / 4);
  refuses("v is 0x20046", [&] { args.v = at(0x20000 + 70); });
  refuses("k_stride_head is 140 elements, not a multiple of 8 (8 bytes)", [&] { args.k_stride_head = 140; });
  refuses("k_stride_head is 128 elements, less than a row of the kv_format, 136", [&] { args.k_stride_head = 128; });
  refuses("k_scale is null", [&] { args.k_scale = nullptr; });
  refuses("v_scale is null", [&] { args.v_scale = nullptr; });
  refuses("v is 0x20044, which is not a multiple of 16 bytes", [&] { features().kv_scale = KvScale::token; });
  // Each part has its place.
  refuses("k_scale is at 0x20048, not 64 bytes behind k", [&] { args.k_scale = at<float>(0x20000 + 72); });
  refuses("v is at 0x20088, not 68 bytes behind k", [&] { args.v = at(0x20000 + 136); });
  refuses("v_scale is at 0x8004, not 132 bytes behind k", [&] { args.v_scale = at<float>(0x8004); });
  refuses("v_stride_token is 1096 bytes, but that of k is 1088", [&] { args.v_stride_token = kHeads * kRow + 8; });
  refuses("kv_scale_stride_head is 140 bytes, but that of k is 136", [&] { args.kv_scale_stride_head = 35; });
  refuses("k_stride_batch is 17416 bytes, not a multiple of 16", [&] {
    args.k_stride_batch = args.v_stride_batch = 16 * kHeads * kRow + 8;
    args.kv_scale_stride_batch = args.k_stride_batch / 4;
  });

  // Elements of one byte likewise, with the strides of dense rows.
  features().kv_format = KvFormat::fp8_e4m3;
  args.k_stride_head = args.k_stride_token = args.k_stride_batch = 0;
  args.v_stride_head = args.v_stride_token = args.v_stride_batch = 0;
  args.kv_scale_stride_head = args.kv_scale_stride_token = args.kv_scale_stride_batch = 0;
  args.k_scale = at<float>(0x20000 + 128), args.v = at(0x20000 + 132), args.v_scale = at<float>(0x20000 + 260);
  EXPECT_EQ(bound().v_stride_token, kHeads * 264);
  EXPECT_EQ(bound().kv_scale_stride_token, kHeads * 264 / 4);
  refuses("v_scale is null", [&] { args.v_scale = nullptr; });
}

TEST_F(FeatureArguments, PagesOfFourBitFloatsHoldTheScalesOfBlocksBesideKAndV) {
  // As vLLM and FlashInfer lay them: of all heads and slots K, its scales, V, and its scales.
  constexpr int kHeads = 8, kSlots = 16 * kHeads, kSide = kSlots * (64 + 8);
  make_paged();
  features().kv_format = KvFormat::nvfp4, features().page_size = 16;
  args.k = at(0x20000), args.k_block_scales = at(0x20000 + kSlots * 64);
  args.v = at(0x20000 + kSide), args.v_block_scales = at(0x20000 + kSide + kSlots * 64);
  args.k_stride_batch = args.v_stride_batch = args.kv_scale_stride_batch = 2 * kSide;
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.k_stride_token, 64);
  EXPECT_EQ(block.v_stride_head, 16 * 64);
  EXPECT_EQ(block.kv_scale_stride_token, 8);
  EXPECT_EQ(block.kv_scale_stride_head, 16 * 8);
  EXPECT_EQ(block.kv_scale_stride_batch, 2 * kSide);
  EXPECT_EQ(block.k_block_scales, args.k_block_scales);
  EXPECT_EQ(block.v_block_scales, args.v_block_scales);
  refuses("k_block_scales is null", [&] { args.k_block_scales = nullptr; });
  refuses("v_block_scales is null", [&] { args.v_block_scales = nullptr; });
  refuses("v_block_scales is 0x20008, which is not a multiple of 16 bytes", [&] { args.v_block_scales = at(0x20008); });
  refuses("v is 0x20008, which is not a multiple of 16 bytes", [&] { args.v = at(0x20008); });
  refuses("kv_scale_stride_token is 4 elements, less than the scales of a row, 8",
          [&] { args.kv_scale_stride_token = 4; });
  refuses("kv_scale_stride_head is 136 elements, not a multiple of 16 (16 bytes)",
          [&] { args.kv_scale_stride_head = 136; });
  refuses("kv_scale_stride_token is 16, but the problem's KV layout is contiguous: 8",
          [&] { args.kv_scale_stride_token = 16; });
  // Those that are not adjacent are copied by lanes, eight bytes at a time.
  limits.problem.layout = KvLayout::strided;
  EXPECT_EQ(bound().kv_scale_stride_token, 8 * kHeads);
  EXPECT_EQ(bound().kv_scale_stride_head, 8);
  args.kv_scale_stride_token = 72, args.v_block_scales = at(0x30008);
  EXPECT_EQ(bound().kv_scale_stride_token, 72);
  refuses("kv_scale_stride_token is 76 elements, not a multiple of 8 (8 bytes)",
          [&] { args.kv_scale_stride_token = 76; });
  limits.problem.layout = KvLayout::contiguous, features().page_size = 8, args.kv_scale_stride_token = 16;
  EXPECT_EQ(bound().kv_scale_stride_token, 16);
  limits.problem.layout = KvLayout::contiguous, features().page_size = 16, args.kv_scale_stride_token = 0;
  args.v_block_scales = at(0x20000 + kSide + kSlots * 64);
  args.k_scale = at<float>(0x8004), args.v_scale = at<float>(0x9004);  // may be null or not
  EXPECT_EQ(bound().k_scale, args.k_scale);
  features().kv_format = KvFormat::fp8_e4m3;
  args.k_stride_batch = args.v_stride_batch = args.kv_scale_stride_batch = 0;
  args.k_block_scales = args.v_block_scales = nullptr;
  refuses("k_block_scales is given, but this plan's problem has not the kv_format nvfp4",
          [&] { args.k_block_scales = at(0x20000); });
}

TEST_F(FeatureArguments, DenseRowsOfFourBitElementsAreHalfAsManyBytes) {
  features().kv_format = KvFormat::int4, features().kv_scale = KvScale::token;
  args.k_scale = at<float>(0x8004), args.v_scale = at<float>(0x9004);
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.k_stride_token, 64);
  EXPECT_EQ(block.v_stride_head, block.context_capacity * 64);
  EXPECT_EQ(block.q_stride_head, 128);
  EXPECT_EQ(block.o_stride_head, 128);
  EXPECT_EQ(block.kv_scale_stride_token, 1);
}

// ---- Selections ----

TEST_F(FeatureArguments, ASecondCacheHasPagesAndLengthsOfItsOwnAndTheStridesOfTheFirst) {
  make_paged();
  features().selection_block = 64, features().q_len = 3;
  args.selection = at<std::int32_t>(0x7104), args.selected_counts = at<std::int32_t>(0x7204);
  args.selection_capacity = 20;
  refuses("second_k is given, but this plan's problem has not second_cache", [&] { args.second_k = at(0x8000); });
  refuses("second_max_pages is 2, but this plan's problem has not second_cache", [&] { args.second_max_pages = 2; });
  refuses("decode_args.reserved3 is 1", [&] { args.reserved3 = 1; });
  features().second_cache = true;
  args.second_k = at(0x8000), args.second_v = at(0x9000);
  args.second_page_table = at<std::int32_t>(0x7304), args.second_lengths = at<std::int32_t>(0x7404);
  args.second_pool_pages = 9, args.second_max_pages = 2;
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.second_k, at(0x8000));
  EXPECT_EQ(block.second_v, at(0x9000));
  EXPECT_EQ(block.second_page_table, at<int>(0x7304));
  EXPECT_EQ(block.second_lengths, at<int>(0x7404));
  EXPECT_EQ(block.second_page_table_stride, 2);
  EXPECT_EQ(block.second_pool_pages, 9);
  EXPECT_EQ(block.second_capacity, 2 * features().page_size);
  refuses("second_k is null", [&] { args.second_k = nullptr; });
  refuses("second_v is null", [&] { args.second_v = nullptr; });
  refuses("second_k is 0x8008", [&] { args.second_k = at(0x8008); });
  refuses("second_page_table is null", [&] { args.second_page_table = nullptr; });
  refuses("second_lengths is null", [&] { args.second_lengths = nullptr; });
  refuses("second_lengths is 0x7402", [&] { args.second_lengths = at<std::int32_t>(0x7402); });
  refuses("second_max_pages is 0", [&] { args.second_max_pages = 0; });
  refuses(
      "second_max_pages is 2147483647: with pages of", [&] { args.second_max_pages = 0x7fffffff; },
      ErrorCode::unsupported);
  refuses("second_pool_pages is 0", [&] { args.second_pool_pages = 0; });
  refuses(
      "second_pool_pages is 1073741824: pools of pages of", [&] { args.second_pool_pages = 1 << 30; },
      ErrorCode::unsupported);
  args.batch = 2;
  refuses("second_page_table_stride is 1, with rows of 2 entries", [&] { args.second_page_table_stride = 1; });
  args.second_page_table_stride = 5;
  EXPECT_EQ(bound().second_page_table_stride, 5);
  // A first cache of one page steps along no pages, but the second does, by the same strides.
  args.pool_pages = 1;
  refuses("k_stride_batch is 8 elements", [&] { args.k_stride_batch = 8; });
  refuses("v_stride_batch is 8 elements", [&] { args.v_stride_batch = 8; });
  refuses(
      "second_pool_pages is 9223372036854775807", [&] { args.second_pool_pages = INT64_MAX; }, ErrorCode::unsupported);
}

TEST_F(FeatureArguments, ASelectionBringsListsAndTheirCounts) {
  make_paged();
  features().selection_block = 64, features().q_len = 3;
  args.selection = at<std::int32_t>(0x7104), args.selected_counts = at<std::int32_t>(0x7204);
  args.selection_capacity = 50;
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.selection, at<int>(0x7104));
  EXPECT_EQ(block.selected_counts, at<int>(0x7204));
  EXPECT_EQ(block.selection_capacity, 50);
  EXPECT_EQ(block.selection_stride_head, 50);
  EXPECT_EQ(block.selection_stride_token, 8 * 50);
  EXPECT_EQ(block.selection_stride_batch, 3 * 8 * 50);
  EXPECT_EQ(block.context_capacity, 1600) << "what the page table has room for";
  EXPECT_EQ(block.request_lengths, nullptr) << "which a launch fills in";

  args.selection_heads = 1, args.selection_stride_token = 60;
  block = bound();
  EXPECT_EQ(block.selection_stride_head, 0) << "all KV heads share a list";
  EXPECT_EQ(block.selection_stride_token, 60);
  EXPECT_EQ(block.selection_stride_batch, 3 * 60);

  args.selection_stride_batch = LEANATTN_STRIDE_EXPANDED;
  EXPECT_EQ(bound().selection_stride_batch, 0) << "requests may share lists";
  refuses("selection_stride_batch is -1",
          [&] { args.selection_stride_token = LEANATTN_STRIDE_EXPANDED, args.selection_stride_batch = 0; });
  args.selection_stride_batch = 0;

  refuses("selection is null", [&] { args.selection = nullptr; });
  refuses("selected_counts is 0x7202", [&] { args.selected_counts = at<std::int32_t>(0x7202); });
  refuses("selection_capacity is 0", [&] { args.selection_capacity = 0; });
  refuses(
      "selection_capacity is 16777217", [&] { args.selection_capacity = (1 << 24) + 1; }, ErrorCode::unsupported);
  refuses("selection_heads is 4", [&] { args.selection_heads = 4; });
  refuses("selection_stride_token is 49", [&] { args.selection_stride_token = 49; });
  refuses("selection_stride_batch is -1", [&] { args.selection_stride_batch = -1; });
  refuses(
      "more than 2^31 tokens", [&] { args.pool_pages = 1 << 27; }, ErrorCode::unsupported);
  refuses("page_table is null", [&] { args.page_table = nullptr; });
  refuses("context_lengths is null", [&] { args.context_lengths = nullptr; });
}

TEST_F(FeatureArguments, AListOfBlocksOfThePoolNeedsNeitherPagesNorLengthsOfRequests) {
  make_paged();
  features().selection_block = 1, features().selection_in_pool = true;
  args.page_table = nullptr, args.max_pages = 0, args.context_lengths = nullptr;
  args.selection = at<std::int32_t>(0x7104), args.selected_counts = at<std::int32_t>(0x7204);
  args.selection_capacity = 2048;
  EXPECT_EQ(bound().pool_pages, 1000);
  refuses("page_table is given", [&] { args.page_table = at<std::int32_t>(0x7000); });
  refuses("max_pages is 5", [&] { args.max_pages = 5; });
  refuses("pool_pages is 0", [&] { args.pool_pages = 0; });
  refuses("selected_counts is null", [&] { args.selected_counts = nullptr; });
}

TEST_F(FeatureArguments, ListsOfAProblemWithoutASelectionAreRefused) {
  refuses("selection is given", [&] { args.selection = at<std::int32_t>(0x7000); });
  refuses("selected_counts is given", [&] { args.selected_counts = at<std::int32_t>(0x7000); });
  refuses("selection_capacity is 5", [&] { args.selection_capacity = 5; });
  refuses("selection_heads is 1", [&] { args.selection_heads = 1; });
  refuses("selection_stride_head is 5", [&] { args.selection_stride_head = 5; });
}

TEST_F(FeatureArguments, StridesOfOneByteCachesAreMultiplesOfSixteenElements) {
  limits.problem.layout = KvLayout::strided;
  args.k_stride_token = 1032;
  EXPECT_TRUE(bind()) << bind().error().message;
  args.k_stride_token = 0;
  features().kv_format = KvFormat::fp8_e4m3;
  EXPECT_TRUE(bind()) << "scales may be null, which means 1";
  refuses("k_stride_token is 1032 elements, not a multiple of 16", [&] { args.k_stride_token = 1032; });
  args.q_stride_head = 136;  // q and o still have two bytes
  EXPECT_TRUE(bind()) << bind().error().message;
}

TEST_F(FeatureArguments, ScalesPerTokenAreDenseByRequestOrByPage) {
  make_scaled_per_token();
  LeanDecodeArgs block = bound();
  EXPECT_EQ(block.kv_scale_stride_token, 1);
  EXPECT_EQ(block.kv_scale_stride_head, 8192);
  EXPECT_EQ(block.kv_scale_stride_batch, 8 * 8192);
  args.kv_scale_stride_token = 8, args.kv_scale_stride_head = 1;  // [batch, context, kv_heads]
  block = bound();
  EXPECT_EQ(block.kv_scale_stride_token, 8);
  EXPECT_EQ(block.kv_scale_stride_head, 1);
  refuses("kv_scale_stride_token is -1", [&] { args.kv_scale_stride_token = -1; });
  refuses("kv_scale_stride_batch is -5", [&] { args.kv_scale_stride_batch = -5; });
  args.kv_scale_stride_token = args.kv_scale_stride_head = 0;
  make_paged();
  block = bound();
  EXPECT_EQ(block.kv_scale_stride_head, 16);
  EXPECT_EQ(block.kv_scale_stride_batch, 8 * 16);
}

TEST_F(FeatureArguments, KernelsThatTransformScoresGetTheScaleApartFromTheBase) {
  const double log2_e = std::log2(std::exp(1.0));
  args.scale = 0.5f;
  EXPECT_NEAR(bound().scale_log2, 0.5 * log2_e, 1e-7);
  for (const Features& transforming : {Features{.soft_cap = 30}, Features{.score = "score"}}) {
    features() = transforming;
    EXPECT_NEAR(bound().scale_log2, log2_e, 1e-7);
    EXPECT_EQ(bound().score_scale, 0.5f);
  }
  args.scale = 0;
  EXPECT_NEAR(bound().score_scale, 1 / std::sqrt(128.0), 1e-7);
}

TEST_F(FeatureArguments, AServersStepBindsAsTheExampleSays) {
  // As in examples/serve.cpp: q, k and v of the new tokens lie side by side, and pages of K and V alternate.
  constexpr int kRow = 128, kToken = 48 * kRow, kPage = 8 * 16 * kRow;
  make_paged();
  features().append = true;
  features().rope = Rope::half_split;
  args.q_stride_batch = kToken;
  args.k_new = at(0x1000 + 32 * kRow * 2), args.k_new_stride_batch = kToken;
  args.v_new = at(0x1000 + 40 * kRow * 2), args.v_new_stride_batch = kToken;
  args.k_stride_batch = args.v_stride_batch = 2 * kPage;
  args.v = at(0x2000 + kPage * 2);
  args.rope_table = at<float>(0xa000);
  const LeanDecodeArgs block = bound();
  EXPECT_EQ(block.q_stride_batch, kToken);
  EXPECT_EQ(block.q_stride_head, kRow);
  EXPECT_EQ(block.k_new_stride_batch, kToken);
  EXPECT_EQ(block.k_new_stride_head, kRow);
  EXPECT_EQ(block.v_new_stride_head, kRow);
  EXPECT_EQ(block.k_stride_batch, 2 * kPage);
  EXPECT_EQ(block.k_stride_head, 16 * kRow);
  EXPECT_EQ(block.k_stride_token, kRow);
  EXPECT_EQ(block.context_capacity, 1600);
}

TEST_F(FeatureArguments, ABatchInvariantWorkspaceHoldsTheContextsItWasMadeFor) {
  features().batch_invariant = true;
  limits.size.context_capacity = 8192;
  refuses("contexts of up to 8193", [&] { args.context_capacity = 8193; });
}

}  // namespace
}  // namespace leanattn
