// problem_test.cpp -- valid ranges, canonical JSON, and the bytes of a step.
#include "runtime/problem.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <vector>

#include "runtime/lookup/key.hpp"

namespace leanattn {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
constexpr int kLargestInt = std::numeric_limits<int>::max();

ErrorCode code_of(const Result<void>& result) { return result ? ErrorCode::ok : result.error().code; }

TEST(Problem, DefaultsAreValid) { EXPECT_TRUE(validate(DecodeProblem{}, Shape{})); }

TEST(Problem, EveryGroupFrom1To128IsValidAnd129IsUnsupported) {
  for (int group = 1; group <= 128; ++group)
    EXPECT_TRUE(validate(DecodeProblem{.q_heads = 3 * group, .kv_heads = 3})) << group;
  EXPECT_EQ(code_of(validate(DecodeProblem{.q_heads = 129, .kv_heads = 1})), ErrorCode::unsupported);
}

TEST(Problem, HeadDimsAreMultiplesOf16UpTo512AndOthersAreUnsupportedWithThat) {
  for (int head_dim = 16; head_dim <= 512; head_dim += 16) {
    EXPECT_TRUE(validate(DecodeProblem{.head_dim = head_dim})) << head_dim;
    EXPECT_TRUE(validate(DecodeProblem{.features = {.v_head_dim = head_dim}})) << head_dim;
  }
  for (const int head_dim : {8, 72, 100, 520, 528, 1024}) {
    const auto refused = validate(DecodeProblem{.head_dim = head_dim});
    ASSERT_EQ(code_of(refused), ErrorCode::unsupported) << head_dim;
    EXPECT_EQ(refused.error().message, "head_dim " + std::to_string(head_dim) + " is not supported");
    EXPECT_NE(refused.error().hint.find("multiples of 16 up to 512"), std::string::npos);
    const auto of_v = validate(DecodeProblem{.features = {.v_head_dim = head_dim}});
    ASSERT_EQ(code_of(of_v), ErrorCode::unsupported) << head_dim;
    EXPECT_EQ(of_v.error().message, "v_head_dim " + std::to_string(head_dim) + " is not supported");
  }
}

TEST(Problem, OfASelectionTheBytesAreWhatAllQueryTokensSelect) {
  const DecodeProblem problem{.features = {.page_size = 16, .q_len = 3, .selection_block = 16}};
  EXPECT_TRUE(validate(problem));
  EXPECT_EQ(problem_from_json(to_json(problem)).value(), problem);
  const std::int64_t token = 8 * 2 * 128 * 2;
  EXPECT_EQ(kv_bytes(problem, {.batch = 2, .longest_context = 2048}), 2 * 3 * 2048 * token);
  const std::vector<int> selected{2048, 160};
  EXPECT_EQ(kv_bytes(problem, RequestLengths{.context_lengths = selected}), 3 * (2048 + 160) * token);
}

TEST(Problem, ALatentCacheHasWiderKeysAndCountsThemOnce) {
  const DecodeProblem latent{
      .q_heads = 128, .kv_heads = 1, .head_dim = 576, .features = {.v_head_dim = 512, .latent = true}};
  EXPECT_TRUE(validate(latent));
  EXPECT_EQ(canonical(latent), latent);
  EXPECT_EQ(problem_from_json(to_json(latent)).value(), latent);
  const Shape shape{.batch = 3, .longest_context = 100};
  EXPECT_EQ(kv_bytes(latent, shape), 3 * 100 * 576 * 2);
  DecodeProblem bytes = latent;
  bytes.features.kv_format = KvFormat::int8, bytes.features.kv_scale = KvScale::token;
  const std::vector<int> lengths(3, 100);
  EXPECT_EQ(kv_scale_bytes(bytes, RequestLengths{.context_lengths = lengths}), 3 * 100 * 4);
  EXPECT_EQ(validate(DecodeProblem{.q_heads = 8, .kv_heads = 1, .head_dim = 576}).error().message,
            "head_dim 576 is not supported");
  DecodeProblem wide = latent;
  wide.head_dim = 656;
  EXPECT_EQ(code_of(validate(wide)), ErrorCode::unsupported);
  wide = latent, wide.head_dim = 256;
  EXPECT_EQ(validate(wide).error().message, "v_head_dim is 512, and the latent cache has 256 columns (head_dim)");
  wide = latent, wide.features.v_head_dim = 0;
  EXPECT_EQ(validate(wide).error().message, "v_head_dim 576 is not supported");
  DecodeProblem whole{.q_heads = 8, .kv_heads = 1, .head_dim = 128, .features = {.v_head_dim = 128, .latent = true}};
  EXPECT_TRUE(validate(whole));
  EXPECT_EQ(canonical(whole).features.v_head_dim, 0);
}

TEST(Problem, RowsWhoseScalesLieBehindThoseOfAPageAreCountedWithThemAndNeedPages) {
  DecodeProblem rows{
      .q_heads = 64,
      .kv_heads = 1,
      .head_dim = 512,
      .features = {.page_size = 64, .kv_format = KvFormat::fp8_ds_v4, .v_head_dim = 512, .latent = true}};
  EXPECT_TRUE(validate(rows));
  EXPECT_EQ(problem_from_json(to_json(rows)).value(), canonical(rows));
  EXPECT_EQ(kv_bytes(rows, {.batch = 3, .longest_context = 128}), 3 * 128 * 584);
  for (const auto& [page, what] : {std::pair(0, "without pages"), std::pair(3, "with pages of 3 tokens")}) {
    rows.features.page_size = page;
    const auto ok = validate(rows);
    EXPECT_EQ(code_of(ok), ErrorCode::unsupported);
    EXPECT_EQ(ok.error().message, fmt::format("a cache of fp8_ds_v4 {}", what));
  }
}

TEST(Problem, RowsWithAFormatOfTheirOwnAreCountedWithTheirScalesAndGoWithALatentCacheOfTheirColumns) {
  const DecodeProblem rows{.q_heads = 128,
                           .kv_heads = 1,
                           .head_dim = 576,
                           .features = {.kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true}};
  EXPECT_TRUE(validate(rows));
  EXPECT_EQ(canonical(rows), rows);
  EXPECT_EQ(problem_from_json(to_json(rows)).value(), rows);
  EXPECT_EQ(kv_bytes(rows, {.batch = 3, .longest_context = 100}), 3 * 100 * 656);
  const std::vector<int> lengths(3, 100);
  EXPECT_EQ(kv_scale_bytes(rows, RequestLengths{.context_lengths = lengths}), 0) << "rows hold their scales";
  const auto refused = [&](auto change) {
    DecodeProblem changed = rows;
    change(changed);
    const auto ok = validate(changed);
    EXPECT_EQ(code_of(ok), ErrorCode::unsupported);
    return ok ? std::string() : ok.error().message + ". " + ok.error().hint;
  };
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.latent = false, p.head_dim = 512; }),
            "a cache of fp8_ds_mla that is not latent. Its rows hold K and V: set latent, and give no v.");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.head_dim = 560; }),
            "a cache of fp8_ds_mla with head_dim 560 and v_head_dim 512. Its rows have 576 columns, of which the first "
            "512 are V.");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.v_head_dim = 256; }),
            "a cache of fp8_ds_mla with head_dim 576 and v_head_dim 256. Its rows have 576 columns, of which the first "
            "512 are V.");
  EXPECT_EQ(
      refused([](DecodeProblem& p) { p.dtype = DType::fp16; }),
      "a cache of fp8_ds_mla with fp16 queries. Its rotated columns are bf16, and so must q be: give dtype bf16.");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.kv_scale = KvScale::token; }),
            "a cache of fp8_ds_mla with a scale per token. Its rows hold the scales: leave kv_scale out.");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.context_parallel = 2, p.features.replicate_output = true; }),
            "a cache of fp8_ds_mla with context_parallel 2. Kernels of a group do not have it yet: leave it out, or "
            "give one GPU the context.");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.context_ranks = 4; }),
            "a cache of fp8_ds_mla with context_parallel 4. Kernels of a group do not have it yet: leave it out, or "
            "give one GPU the context.");
  for (const int page : {0, 1, 16, 64, 256, 48}) {
    for (const int q_len : {1, 4}) {
      DecodeProblem good = rows;
      good.features.page_size = page, good.features.q_len = q_len;
      good.lse = good.pdl = good.features.sink_logits = good.features.batch_invariant = true;
      EXPECT_TRUE(validate(good)) << page;
      if (page == 0) continue;
      good.features.selection_block = 1, good.features.selection_in_pool = true;
      EXPECT_TRUE(validate(good)) << page;
    }
  }
}

TEST(Problem, ItsFeaturesAreCheckedWithIt) {
  EXPECT_TRUE(validate(DecodeProblem{.q_heads = 128, .kv_heads = 1, .features = {.q_len = 16}}));
  const auto refused = validate(DecodeProblem{.features = {.sink_tokens = 4}});
  ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("sink_tokens is 4"), std::string::npos);
}

TEST(Problem, AllThatMayBringPrefillAreOneProblem) {
  const DecodeProblem most{.features = {.q_len = kMostPrefillTokens, .ragged_q = true}};
  EXPECT_EQ(canonical({.features = {.q_len = 17, .ragged_q = true}}), most);
  EXPECT_EQ(canonical({.features = {.q_len = 8192, .ragged_q = true}}), most);
  for (const Features& features :
       {Features{.q_len = 16, .ragged_q = true}, Features{.q_len = 16}, Features{.q_len = 100, .mask = QueryMask::full},
        Features{.q_len = 100, .ragged_q = true, .mask = QueryMask::full, .batch_invariant = true}})
    EXPECT_EQ(canonical({.features = features}).features, features) << features_name(features);
  EXPECT_EQ(code_of(validate(canonical({.features = {.q_len = kMostPrefillTokens + 1, .ragged_q = true}}))),
            ErrorCode::unsupported);
  // A launch says how many query tokens there are, and not each request's most.
  EXPECT_TRUE(validate(most, {.batch = 4096, .longest_context = 1 << 20}));
}

TEST(Problem, FeaturesThatChangeNothingHaveTheirDefaultsWhenCanonical) {
  const DecodeProblem repeats{.features = {.mask = QueryMask::full, .kv_scale = KvScale::token, .v_head_dim = 128}};
  EXPECT_EQ(canonical(repeats), DecodeProblem{});
  EXPECT_EQ(problem_from_json(to_json(repeats)).value(), DecodeProblem{});
  const DecodeProblem several{.features = {.q_len = 2,
                                           .mask = QueryMask::full,
                                           .kv_format = KvFormat::int8,
                                           .kv_scale = KvScale::token,
                                           .v_head_dim = 64}};
  EXPECT_EQ(canonical(several), several);
  EXPECT_EQ(v_head_dim(several), 64);
  EXPECT_EQ(v_head_dim(DecodeProblem{}), 128);
}

TEST(Problem, NonsenseIsAnInvalidArgumentThatNamesFieldAndValue) {
  const std::pair<DecodeProblem, const char*> cases[] = {
      {{.q_heads = 0}, "q_heads is 0"},
      {{.q_heads = -32}, "q_heads is -32"},
      {{.kv_heads = 0}, "kv_heads is 0"},
      {{.kv_heads = -8}, "kv_heads is -8"},
      {{.head_dim = 0}, "head_dim is 0"},
      {{.head_dim = -128}, "head_dim is -128"},
      {{.q_heads = 32, .kv_heads = 7}, "32 query heads cannot be shared by 7 KV heads"},
      {{.q_heads = 4, .kv_heads = 8}, "4 query heads"},
  };
  for (const auto& [problem, words] : cases) {
    const auto refused = validate(problem);
    ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument) << words;
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
    EXPECT_FALSE(refused.error().hint.empty()) << words;
  }
}

TEST(Shape, NonsenseIsAnInvalidArgumentThatNamesFieldAndValue) {
  const std::pair<Shape, const char*> cases[] = {
      {{.batch = 0}, "batch is 0"},
      {{.batch = -1}, "batch is -1"},
      {{.batch = 4, .max_batch = 3}, "max_batch is 3"},
      {{.batch = 4, .max_batch = -1}, "max_batch is -1"},
      {{.longest_context = 0}, "longest_context is 0"},
      {{.longest_context = -5}, "longest_context is -5"},
      {{.longest_context = std::int64_t{1} << 31}, "longest_context is 2147483648"},
      {{.batch = 2, .longest_context = 100, .total_context = 99}, "total_context is 99"},
      {{.batch = 2, .longest_context = 100, .total_context = 201}, "total_context is 201"},
      {{.batch = 2, .longest_context = 100, .total_context = -1}, "total_context is -1"},
  };
  for (const auto& [shape, words] : cases) {
    const auto refused = validate(DecodeProblem{}, shape);
    ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument) << words;
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  }
}

TEST(Shape, SizesThatOverflowAreRefusedNotWrapped) {
  const DecodeProblem wide{.q_heads = 64, .kv_heads = 64, .head_dim = 256};
  EXPECT_EQ(code_of(validate(wide, Shape{.batch = kLargestInt})), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(validate(wide, Shape{.batch = 1, .max_batch = kLargestInt / 64 + 1})), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(validate(wide, Shape{.batch = kLargestInt / 64, .longest_context = kLargestInt})),
            ErrorCode::invalid_argument);
  EXPECT_EQ(kv_bytes(wide, Shape{.batch = kLargestInt, .longest_context = kLargestInt}), kLargest);
  EXPECT_TRUE(validate(wide, Shape{.batch = kLargestInt / 64, .longest_context = 1}));
}

TEST(Shape, RowsOfSeveralQueryTokensCountTowardsThirtyTwoBits) {
  const DecodeProblem one{.q_heads = 128, .kv_heads = 8};
  const DecodeProblem several{.q_heads = 128, .kv_heads = 8, .features = {.q_len = 16}};
  const Shape shape{.batch = kLargestInt / 128 / 2, .longest_context = 1};
  EXPECT_TRUE(validate(one, shape));
  const auto refused = validate(several, shape);
  ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("128 query heads of 16 tokens"), std::string::npos) << refused.error().message;
}

TEST(Shape, TheWholeCacheMustFitEvenWhereAWindowHidesMostOfIt) {
  const DecodeProblem windowed{.q_heads = 64, .kv_heads = 64, .head_dim = 256, .features = {.window = 1}};
  EXPECT_EQ(code_of(validate(windowed, Shape{.batch = kLargestInt / 64, .longest_context = kLargestInt})),
            ErrorCode::invalid_argument);
}

std::int64_t visible_tokens(const DecodeProblem& problem, const Shape& shape) {
  return total_tokens(visible_shape(problem, shape));
}

TEST(VisibleTokens, AreThoseOfSinksAndWindowOfTheFirstQueryToken) {
  const DecodeProblem windowed{.features = {.q_len = 4, .window = 100, .sink_tokens = 10}};  // 113 tokens
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 113}), 113);
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 114}), 113);
  EXPECT_EQ(visible_tokens(windowed, {.batch = 7, .longest_context = 1 << 20}), 7 * 113);
  EXPECT_EQ(visible_tokens(DecodeProblem{}, {.batch = 7, .longest_context = 1000}), 7000);
  // The 31 other requests have 3100 tokens together; all may be short, or one of them long.
  EXPECT_EQ(visible_tokens(windowed, {.batch = 32, .longest_context = 5000, .total_context = 8100}), 113 + 3100);
  EXPECT_EQ(visible_tokens(windowed, {.batch = 32, .longest_context = 5000, .total_context = 15000}), 32 * 113);
}

TEST(VisibleTokens, OfAGroupAreThoseOfTheRankThatHasMostOfTheWindow) {
  DecodeProblem windowed{.features = {.q_len = 4, .window = 100, .sink_tokens = 10, .context_parallel = 4}};
  const std::vector<int> contexts{1000, 20};
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 5000}), 113) << "one part may have all of it";
  EXPECT_EQ(kv_bytes(windowed, RequestLengths{.context_lengths = contexts}), (113 + 20) * 4096);
  windowed.features.context_interleave = 1;
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 5000}), 26 + 3);
  windowed.features.context_interleave = 16;  // of 103 tokens a round of 64, and 16 of the others
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 5000}), 32 + 10);
  EXPECT_EQ(kv_bytes(windowed, RequestLengths{.context_lengths = contexts}), (42 + 20) * 4096);
  windowed.features.context_interleave = 256;
  EXPECT_EQ(visible_tokens(windowed, {.batch = 1, .longest_context = 5000}), 113);
}

TEST(Problem, ACacheOfFourBitElementsIsRefusedByWhatItCannotBe) {
  const DecodeProblem nibbles{.features = {.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}};
  EXPECT_TRUE(validate(nibbles));
  const auto refused = [&](auto change) {
    DecodeProblem changed = nibbles;
    change(changed);
    const auto ok = validate(changed);
    EXPECT_EQ(code_of(ok), ErrorCode::unsupported);
    return ok ? std::string() : ok.error().message;
  };
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.kv_scale = KvScale::tensor; }),
            "a cache of int4 with a scale per tensor");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.kv_scale = KvScale::head; }),
            "a cache of int4 with a scale per head");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.head_dim = 96; }), "a cache of int4 with head_dim 96 and v_head_dim 96");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.v_head_dim = 80; }),
            "a cache of int4 with head_dim 128 and v_head_dim 80");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.latent = true, p.kv_heads = 1; }),
            "a cache of int4 that is latent");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.append = true, p.features.context_parallel = 2; }),
            "a cache whose scales travel with its rows with context_parallel 2");
}

TEST(Problem, ACacheOfFourBitFloatsIsRefusedByWhatItCannotBe) {
  const DecodeProblem blocks{.features = {.page_size = 16, .kv_format = KvFormat::nvfp4}};
  for (const int head_dim : {64, 128, 256}) {
    DecodeProblem other = blocks;
    other.head_dim = head_dim;
    EXPECT_TRUE(validate(other)) << head_dim;
    other.features.kv_scale = KvScale::head, other.features.append = other.features.sink_logits = true;
    EXPECT_TRUE(validate(other)) << head_dim;
  }
  const auto refused = [&](auto change) {
    DecodeProblem changed = blocks;
    change(changed);
    const auto ok = validate(changed);
    EXPECT_EQ(code_of(ok), ErrorCode::unsupported);
    return ok ? std::string() : ok.error().message;
  };
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.kv_scale = KvScale::token; }),
            "a cache of nvfp4 with a scale per token");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.kv_scale = KvScale::in_row; }),
            "a cache of nvfp4 with a scale per in_row");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.head_dim = 96; }), "a cache of nvfp4 with head_dim 96 and v_head_dim 96");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.v_head_dim = 64; }),
            "a cache of nvfp4 with head_dim 128 and v_head_dim 64");
  EXPECT_EQ(refused([](DecodeProblem& p) { p.features.latent = true, p.kv_heads = 1; }),
            "a cache of nvfp4 that is latent");
  EXPECT_EQ(refused([](DecodeProblem& p) {
              p.features.page_size = 0, p.features.packed_kv = p.features.ragged_q = true, p.features.q_len = 4;
            }),
            "a cache of nvfp4 with packed_kv");
}

TEST(Problem, WhereNothingSaysWhatHasAScaleTheFormatDoes) {
  const auto scale_of = [](KvFormat format, KvScale asked) {
    return canonical(DecodeProblem{.features = {.kv_format = format, .kv_scale = asked}}).features.kv_scale;
  };
  EXPECT_EQ(scale_of(KvFormat::int4, {}), KvScale::in_row);
  EXPECT_EQ(scale_of(KvFormat::int4, KvScale::token), KvScale::token);
  EXPECT_EQ(scale_of(KvFormat::int4, KvScale::head), KvScale::head);  // which is refused
  for (const KvFormat format :
       {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8, KvFormat::fp8_ds_mla, KvFormat::nvfp4})
    EXPECT_EQ(scale_of(format, {}), KvScale::tensor) << to_string(format);
  // Every interface asks by it.
  const DecodeProblem nibbles{.features = {.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}};
  const auto read =
      problem_from_json(R"({"q_heads":32,"kv_heads":8,"head_dim":128,"dtype":"bf16","layout":"contiguous","lse":false,)"
                        R"("features":{"kv_format":"int4"}})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->features, nibbles.features);
}

TEST(KvBytes, FollowFormatWidthsAndWindow) {
  const Shape shape{.batch = 2, .longest_context = 1000};
  const std::int64_t rows = 2 * 1000 * 8;
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.page_size = 16, .q_len = 8}}, shape), rows * 2 * 256);
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.kv_format = KvFormat::fp8_e5m2}}, shape), rows * 256);
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.kv_format = KvFormat::int4, .kv_scale = KvScale::token}}, shape),
            rows * 128);
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.kv_format = KvFormat::nvfp4}}, shape), rows * 128);
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.v_head_dim = 64}}, shape), rows * 2 * (128 + 64));
  EXPECT_EQ(kv_bytes(DecodeProblem{.features = {.window = 100, .kv_format = KvFormat::int8}}, shape),
            2 * 100 * 8 * 256);
}

TEST(KvBytes, OfKnownLengthsAreThoseOfTheShapeWhereItSaysTheSame) {
  const std::vector<int> uniform(7, 4096);
  const Shape shape{.batch = 7, .longest_context = 4096};
  for (const DecodeProblem& problem :
       {DecodeProblem{}, DecodeProblem{.features = {.kv_format = KvFormat::fp8_e4m3}},
        DecodeProblem{.features = {.page_size = 16, .q_len = 4, .window = 100, .sink_tokens = 10}},
        DecodeProblem{.head_dim = 192, .features = {.v_head_dim = 128}}}) {
    EXPECT_EQ(kv_bytes(problem, RequestLengths{.context_lengths = uniform}), kv_bytes(problem, shape))
        << to_json(problem);
  }
}

TEST(KvBytes, OfKnownLengthsLeaveOutWhatEveryWindowHides) {
  const std::vector<int> contexts{50, 5000, 0, -3}, query_tokens{1, 4, 0, 2};
  const std::int64_t token = 8 * 2 * 256;
  const DecodeProblem plain, windowed{.features = {.q_len = 4, .ragged_q = true, .window = 100, .sink_tokens = 10}};
  EXPECT_EQ(kv_bytes(plain, RequestLengths{.context_lengths = contexts}), 5050 * token);
  EXPECT_EQ(kv_bytes(windowed, RequestLengths{.context_lengths = contexts, .query_tokens = query_tokens}),
            (50 + 103 + 10) * token);
}

TEST(KvBytes, CountWhatRequestsShareOnce) {
  const std::vector<int> contexts{3000, 1000, 500};
  const std::int64_t token = 8 * 2 * 256;
  const DecodeProblem paged{.features = {.page_size = 16}};
  EXPECT_EQ(kv_bytes(paged, RequestLengths{.context_lengths = contexts}), 4500 * token);
  EXPECT_EQ(kv_bytes(paged, RequestLengths{.context_lengths = contexts, .shared_tokens = 800}),
            (800 + 2200 + 200) * token);
  // The windows of the last two requests are tokens 900 to 999 and 400 to 499, and the first 960 tokens are shared.
  const DecodeProblem windowed{.features = {.page_size = 16, .window = 100, .sink_tokens = 10}};
  EXPECT_EQ(kv_bytes(windowed, RequestLengths{.context_lengths = contexts, .shared_tokens = 960}),
            (10 + 100 + 60 + 40 + 100) * token);
}

TEST(KvBytes, OfScalesAreTwoFloatsForEachTokenAndHeadOrOneByteForEachBlock) {
  const std::vector<int> contexts{100, 28};
  const RequestLengths lengths{.context_lengths = contexts};
  const DecodeProblem by_token{.features = {.kv_format = KvFormat::int8, .kv_scale = KvScale::token}};
  EXPECT_EQ(kv_scale_bytes(by_token, lengths), 128 * 8 * 8);
  const DecodeProblem in_rows{.features = {.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}};
  EXPECT_EQ(kv_scale_bytes(in_rows, lengths), 128 * 8 * 8);
  EXPECT_EQ(kv_scale_bytes({.features = {.kv_format = KvFormat::nvfp4}}, lengths), 128 * 8 * 2 * 8);
  EXPECT_EQ(kv_scale_bytes({.features = {.kv_format = KvFormat::int8}}, lengths), 0);
  EXPECT_EQ(kv_scale_bytes({}, lengths), 0);
}

TEST(KvBytes, OverMicrosecondsAreGigabytesASecond) {
  EXPECT_DOUBLE_EQ(gb_per_s(4'000'000, 1000), 4);
  EXPECT_EQ(gb_per_s(1, 0), 0);
}

TEST(KvBytes, CountEveryKeyAndValueOnce) {
  const DecodeProblem llama{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(kv_bytes(llama, Shape{.batch = 1, .longest_context = 1024}), 4 << 20);
  EXPECT_EQ(kv_bytes(llama, Shape{.batch = 16, .longest_context = 4096}), 256 << 20);
  EXPECT_EQ(kv_bytes(llama, Shape{.batch = 32, .longest_context = 131072, .total_context = 131072 + 31 * 1024}),
            std::int64_t{131072 + 31 * 1024} * 8 * 128 * 2 * 2);
}

TEST(Canonical, ShapesOfEqualMeaningAreEqual) {
  const Shape plain{.batch = 4, .longest_context = 1000};
  EXPECT_EQ(canonical(Shape{.batch = 4, .max_batch = 4, .longest_context = 1000, .total_context = 4000}), plain);
  EXPECT_EQ(to_json(Shape{.batch = 4, .max_batch = 4, .longest_context = 1000, .total_context = 4000}), to_json(plain));
  const Shape ragged{.batch = 4, .max_batch = 8, .longest_context = 1000, .total_context = 3000};
  EXPECT_EQ(canonical(ragged), ragged);
  EXPECT_EQ(total_tokens(plain), 4000);
  EXPECT_EQ(total_tokens(ragged), 3000);
}

const DecodeProblem kPrefill = canonical({.features = {.q_len = 17, .ragged_q = true}});

/// 64 decodes of 4096 tokens beside a chunk of 2048 tokens at the end of 8192.
Shape mixed_step() {
  std::vector<int> lengths(64, 4096), tokens(64, 1);
  lengths.push_back(8192), tokens.push_back(2048);
  return shape_of(kPrefill, {lengths, tokens});
}

TEST(Mix, IsTheDecodesTheChunksAndTheirPairs) {
  const Shape shape = mixed_step();
  EXPECT_EQ(shape.batch, 65);
  EXPECT_EQ(shape.longest_context, 8192);
  EXPECT_EQ(total_tokens(shape), 64 * 4096 + 8192);
  EXPECT_EQ(shape.mix, (QueryMix{.query_tokens = 64 + 2048,
                                 .chunks = 1,
                                 .chunk_context = 8192,
                                 .chunk_pairs = 2048 * 6144 + 2048 * 2049 / 2}));
  EXPECT_EQ(chunk_tokens(shape), 2048);
  EXPECT_TRUE(validate(kPrefill, shape));
  // Requests that bring nothing, more than their context has, or no context.
  const std::vector<int> lengths{100, 0, 10, -1}, tokens{0, 5, 20, 1};
  const Shape odd = shape_of(kPrefill, {lengths, tokens});
  EXPECT_EQ(odd.mix, (QueryMix{.query_tokens = 13, .chunks = 1, .chunk_context = 10, .chunk_pairs = 55}));
  EXPECT_TRUE(validate(kPrefill, odd));
}

TEST(Mix, OfOneQueryTokenEachOrWithoutPrefillThereIsNone) {
  const std::vector<int> lengths{100, 200}, ones{1, 1}, several{4, 2};
  const Shape decodes{.batch = 2, .longest_context = 200, .total_context = 300};
  EXPECT_EQ(shape_of(kPrefill, {lengths, ones}), decodes);
  EXPECT_EQ(shape_of(kPrefill, {lengths}), decodes);
  EXPECT_EQ(shape_of({.features = {.q_len = 16, .ragged_q = true}}, {lengths, several}), decodes);
  EXPECT_EQ(canonical({.batch = 2, .longest_context = 200, .mix = {.query_tokens = 2}}).mix, QueryMix{});
  Shape mixed = decodes;
  mixed.mix.query_tokens = 6;
  const auto refused = validate(DecodeProblem{}, mixed);
  ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("query_tokens is 6"), std::string::npos) << refused.error().message;
}

TEST(Mix, OfALimitOfQueryTokensTheChunksAreAsFewAsCanHaveThem) {
  const auto mix_of = [](Shape shape) {
    EXPECT_TRUE(validate(kPrefill, shape));
    EXPECT_EQ(canonical(canonical(shape)), canonical(shape));
    EXPECT_TRUE(validate(kPrefill, canonical(shape)));
    return canonical(shape).mix;
  };
  const Shape step{.batch = 65, .longest_context = 8192, .mix = {.query_tokens = 64 + 2048}};
  EXPECT_EQ(mix_of(step), mixed_step().mix);
  EXPECT_EQ(mix_of({.batch = 4, .longest_context = 100, .mix = {.query_tokens = 203}}),
            (QueryMix{.query_tokens = 203, .chunks = 3, .chunk_context = 300, .chunk_pairs = 13500}));
  // No more than the contexts have.
  EXPECT_EQ(
      mix_of({.batch = 2, .longest_context = 100, .total_context = 150, .mix = {.query_tokens = 8192}}),
      (QueryMix{.query_tokens = 150, .chunks = 2, .chunk_context = 150, .chunk_pairs = 150 * 150 / 2 - 150 * 148 / 4}));
  EXPECT_EQ(mix_of({.batch = 2, .longest_context = 1, .mix = {.query_tokens = 8192}}), QueryMix{});
  // Keys are made of shapes before these are checked.
  for (const Shape& wrong : {Shape{.batch = 1, .longest_context = 1, .total_context = 50, .mix = {.query_tokens = 10}},
                             Shape{.batch = -1, .longest_context = -5, .mix = {.query_tokens = 10}},
                             Shape{.batch = 0, .longest_context = 9, .total_context = 50, .mix = {.query_tokens = 10}}})
    EXPECT_EQ(canonical_mix(wrong), QueryMix{});
  const Shape most{.batch = 1 << 10, .longest_context = kLargestInt, .mix = {.query_tokens = kLargestInt}};
  EXPECT_GT(mix_of(most).chunk_pairs, 0);
}

TEST(Mix, NonsenseIsAnInvalidArgumentThatNamesFieldAndValue) {
  const std::pair<QueryMix, const char*> cases[] = {
      {{.query_tokens = -1}, "query_tokens is -1"},
      {{.query_tokens = 100, .chunks = 5}, "chunks is 5"},
      {{.query_tokens = 100, .chunk_context = 50}, "chunk_context is 50"},
      {{.query_tokens = 4, .chunks = 1}, "query_tokens is 4"},        // of 4 requests
      {{.query_tokens = 1100, .chunks = 1}, "query_tokens is 1100"},  // in a context of 1000
      {{.query_tokens = 103, .chunks = 1, .chunk_context = 99}, "chunk_context is 99"},
      {{.query_tokens = 103, .chunks = 1, .chunk_context = 1001}, "chunk_context is 1001"},
      {{.query_tokens = 103, .chunks = 1, .chunk_pairs = 99}, "chunk_pairs is 99"},
      {{.query_tokens = 103, .chunks = 1, .chunk_pairs = 100001}, "chunk_pairs is 100001"},
  };
  for (const auto& [mix, words] : cases) {
    const auto refused = validate(kPrefill, {.batch = 4, .longest_context = 1000, .mix = mix});
    ASSERT_EQ(code_of(refused), ErrorCode::invalid_argument) << words;
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  }
}

TEST(Mix, IsPartOfAShapesTextOnlyWhereThereIsOne) {
  const std::string text = to_json(mixed_step());
  EXPECT_EQ(text,
            R"({"batch":65,"longest_context":8192,"max_batch":0,"mix":{"chunk_context":8192,"chunk_pairs":14681088,)"
            R"("chunks":1,"query_tokens":2112},"total_context":270336})");
  EXPECT_EQ(shape_from_json(text).value(), mixed_step());
  EXPECT_EQ(to_json(Shape{.batch = 2, .longest_context = 200, .mix = {.query_tokens = 2}}),
            to_json(Shape{.batch = 2, .longest_context = 200}));
  for (const char* wrong : {R"("mix":7)", R"("mix":{"chunks":1})",
                            R"("mix":{"chunk_context":1,"chunk_pairs":1,"chunks":1,"query_tokens":1})"})
    EXPECT_FALSE(shape_from_json(std::string(R"({"batch":2,"longest_context":9,"max_batch":0,)") + wrong +
                                 R"(,"total_context":0})"))
        << wrong;
}

TEST(Mix, AWindowHidesMoreOfDecodesThanOfChunks) {
  DecodeProblem windowed = kPrefill;
  windowed.features.window = 1000;
  const Shape visible = visible_shape(windowed, mixed_step());
  EXPECT_EQ(visible.mix, (QueryMix{.query_tokens = 2112, .chunks = 1, .chunk_context = 3047, .chunk_pairs = 2048000}));
  EXPECT_EQ(total_tokens(visible), 64 * 1000 + 3047);
  EXPECT_TRUE(validate(windowed, visible));
  DecodeProblem full = kPrefill;
  full.features.mask = QueryMask::full;
  EXPECT_EQ(visible_shape(full, mixed_step()).mix.chunk_pairs, 2048 * 8192);
}

TEST(Mix, OtherMixesOfTheSameContextsAreOtherKeys) {
  const Shape chunk = mixed_step();
  Shape none = chunk, more = chunk, same = chunk;
  none.mix = {}, more.mix.query_tokens += 1, same.mix = {.query_tokens = 2112};
  EXPECT_FALSE(make_lookup_key(kPrefill, chunk) == make_lookup_key(kPrefill, none));
  EXPECT_FALSE(make_lookup_key(kPrefill, chunk) == make_lookup_key(kPrefill, more));
  EXPECT_TRUE(make_lookup_key(kPrefill, chunk) == make_lookup_key(kPrefill, same));
  more.mix = {.query_tokens = 65};
  EXPECT_TRUE(make_lookup_key(kPrefill, more) == make_lookup_key(kPrefill, none));
}

TEST(Json, IsOneLineWithSortedKeys) {
  EXPECT_EQ(to_json(DecodeProblem{}),
            R"({"dtype":"bf16","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"q_heads":32})");
  EXPECT_EQ(to_json(Shape{.batch = 16, .longest_context = 65536}),
            R"({"batch":16,"longest_context":65536,"max_batch":0,"total_context":0})");
  const auto config = to_json(Config{.spec = {}, .grid = 132});
  EXPECT_TRUE(config.starts_with(R"({"grid":132,"spec":{"arch":"sm_90a",)")) << config;
  EXPECT_EQ(config.find('\n'), std::string::npos);
}

TEST(Json, AProblemSaysPdlOnlyWhenItHasIt) {
  const DecodeProblem dependent{.pdl = true};
  const std::string key = to_json(dependent);
  EXPECT_EQ(
      key, R"({"dtype":"bf16","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"pdl":true,"q_heads":32})");
  EXPECT_EQ(problem_from_json(key).value(), dependent);
  EXPECT_FALSE(problem_from_json(to_json(DecodeProblem{})).value().pdl);
  const auto refused = problem_from_json(
      R"({"dtype":"bf16","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"pdl":1,"q_heads":32})");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("'pdl'"), std::string::npos) << refused.error().message;
}

TEST(Json, TheLinkOfAGroupIsPartOfItsKeyAndNothingElseHasOne) {
  DecodeProblem group{.features = {.context_parallel = 2}};
  EXPECT_EQ(to_json(group).find("group_link"), std::string::npos) << "what is not known is not written";
  for (const GroupLink link : {GroupLink::nvlink, GroupLink::pcie, GroupLink::same_gpu}) {
    group.group_link = link;
    const std::string key = to_json(group);
    EXPECT_NE(key.find("\"group_link\":\"" + std::string(to_string(link)) + "\""), std::string::npos) << key;
    EXPECT_EQ(problem_from_json(key).value(), group);
    EXPECT_EQ(without_group(group), DecodeProblem{});
    DecodeProblem alone;
    alone.group_link = link;
    EXPECT_EQ(canonical(alone), DecodeProblem{});
  }
  const auto refused = problem_from_json(
      R"({"dtype":"bf16","features":{"context_parallel":2},"group_link":"wire","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"q_heads":32})");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("nvlink, pcie, same_gpu"), std::string::npos) << refused.error().hint;
}

TEST(Json, AProblemSaysFeaturesOnlyWhenItHasThem) {
  const DecodeProblem paged{.features = {.page_size = 16, .window = 4096}};
  const std::string key = to_json(paged);
  EXPECT_EQ(
      key,
      R"({"dtype":"bf16","features":{"page_size":16,"window":4096},"head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"q_heads":32})");
  EXPECT_EQ(problem_from_json(key).value(), paged);
  for (const char* const wrong :
       {R"("features":[])", R"("features":{"page_size":-1})", R"("features":{"q_len":"2"})"}) {
    const auto refused = problem_from_json(
        std::string(R"({"dtype":"bf16","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"q_heads":32,)") +
        wrong + "}");
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument) << wrong;
  }
}

DecodeProblem any_problem() {
  DecodeProblem problem;
  problem.kv_heads = *rc::gen::inRange(1, 257);
  problem.q_heads = problem.kv_heads * *rc::gen::inRange(1, 129);
  problem.head_dim = 16 * *rc::gen::inRange(1, 33);
  problem.features.page_size = *rc::gen::element(0, 0, 1, 16, 64);
  problem.features.q_len = *rc::gen::element(1, 1, 4, 16);
  problem.features.window = *rc::gen::element(0, 0, 1, 4096);
  problem.features.sink_tokens = problem.features.window > 0 ? *rc::gen::element(0, 4) : 0;
  problem.features.soft_cap = *rc::gen::element(0.0, 0.0, 15.25);
  problem.features.kv_format = *rc::gen::element(KvFormat::same, KvFormat::fp8_e4m3, KvFormat::int8);
  if (problem.features.kv_format != KvFormat::same)
    problem.features.kv_scale = *rc::gen::element(KvScale::tensor, KvScale::head, KvScale::token);
  problem.dtype = *rc::gen::element(DType::bf16, DType::fp16);
  problem.layout = *rc::gen::element(KvLayout::contiguous, KvLayout::strided);
  problem.lse = *rc::gen::arbitrary<bool>();
  problem.pdl = *rc::gen::arbitrary<bool>();
  return problem;
}

Shape any_shape() {
  Shape shape;
  shape.batch = *rc::gen::inRange(1, 4097);
  shape.max_batch = *rc::gen::element(0, shape.batch, 2 * shape.batch);
  shape.longest_context = *rc::gen::inRange<std::int64_t>(1, std::int64_t{1} << 24);
  shape.total_context = *rc::gen::element(std::int64_t{0}, shape.longest_context, shape.batch * shape.longest_context);
  return shape;
}

RC_GTEST_PROP(Mix, OfAnyRequestsIsAValidShapeThatReadsBackEqual, ()) {
  DecodeProblem problem = kPrefill;
  problem.features.window = *rc::gen::element(0, 1, 100, 5000);
  const auto count = *rc::gen::inRange<std::size_t>(1, 40);
  const auto lengths = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-2, 9000));
  const auto tokens = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-2, 9000));
  const Shape shape = shape_of(problem, {lengths, tokens});
  RC_ASSERT(validate(problem, shape).has_value());
  RC_ASSERT(shape_from_json(to_json(shape)).value() == shape);
  RC_ASSERT(validate(problem, visible_shape(problem, shape)).has_value());
  RC_ASSERT(total_tokens(visible_shape(problem, shape)) <= total_tokens(shape));
}

RC_GTEST_PROP(Json, OfAnyValidProblemReadsBackEqual, ()) {
  const auto problem = any_problem();
  RC_ASSERT(validate(problem).has_value());
  const auto read = problem_from_json(to_json(problem));
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == problem);
  RC_ASSERT(to_json(*read) == to_json(problem));
}

RC_GTEST_PROP(Json, OfAnyValidShapeReadsBackWithTheSameMeaning, ()) {
  const auto shape = any_shape();
  const auto problem = any_problem();
  const Shape visible = visible_shape(problem, shape);
  RC_ASSERT(validate(DecodeProblem{}, visible).has_value());
  RC_ASSERT(total_tokens(visible) <= total_tokens(shape));
  RC_ASSERT(validate(DecodeProblem{}, shape).has_value());
  const auto read = shape_from_json(to_json(shape));
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == canonical(shape));
  RC_ASSERT(total_tokens(*read) == total_tokens(shape));
  RC_ASSERT(kv_bytes(DecodeProblem{}, *read) == kv_bytes(DecodeProblem{}, shape));
}

RC_GTEST_PROP(Json, OfAnyValidConfigReadsBackEqual, ()) {
  Config config;
  config.grid = *rc::gen::inRange<std::int64_t>(1, std::int64_t{1} << 31);
  config.spec.group = *rc::gen::inRange(1, 65);
  config.spec.load = *rc::gen::element(LoadPath::cp_async, LoadPath::bulk);
  config.spec.fixup = *rc::gen::element(FixUp::ticket, FixUp::wait);
  config.spec.lse = *rc::gen::arbitrary<bool>();
  RC_PRE(validate(config.spec).has_value());
  const auto read = config_from_json(to_json(config));
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == config);
}

RC_GTEST_PROP(Json, ArbitraryTextIsRefusedNeverFatal, (const std::string& text)) {
  RC_ASSERT(!problem_from_json(text).has_value());
  RC_ASSERT(!shape_from_json(text).has_value());
  RC_ASSERT(!config_from_json(text).has_value());
}

RC_GTEST_PROP(Json, AShapesTextMeansTheSameHoweverItIsSpaced, ()) {
  const auto number = [] {
    return *rc::gen::element<std::string>("0", "1", "7", "07", "-1", "-0", "+1", "2147483647", "2147483648",
                                          "9223372036854775807", "9223372036854775808", "1.0", "1e2", "", "x", "4096");
  };
  const std::string written = "{\"batch\":" + number() + ",\"longest_context\":" + number() +
                              ",\"max_batch\":" + number() + ",\"total_context\":" + number() +
                              *rc::gen::element<std::string>("}", "", "}}");
  const auto read = shape_from_json(written), spaced = shape_from_json(" " + written);
  RC_ASSERT(read.has_value() == spaced.has_value());
  if (read) RC_ASSERT(*read == *spaced);
  if (!read) RC_ASSERT(read.error().message == spaced.error().message);
}

TEST(Json, UnknownKeysAreIgnored) {
  EXPECT_TRUE(shape_from_json(R"({"batch":2,"longest_context":10,"max_batch":0,"total_context":0,"later":[1,{}]})"));
}

TEST(Json, MissingIllTypedAndOutOfRangeValuesNameTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"longest_context":10,"max_batch":0,"total_context":0})", "'batch'"},
      {R"({"batch":"2","longest_context":10,"max_batch":0,"total_context":0})", "'batch'"},
      {R"({"batch":2.5,"longest_context":10,"max_batch":0,"total_context":0})", "'batch'"},
      {R"({"batch":4294967298,"longest_context":10,"max_batch":0,"total_context":0})", "4294967298"},
      {R"({"batch":2,"longest_context":18446744073709551615,"max_batch":0,"total_context":0})", "'longest_context'"},
      {R"({"batch":0,"longest_context":10,"max_batch":0,"total_context":0})", "batch is 0"},
      {R"([])", "not a JSON object"},
  };
  for (const auto& [json, words] : cases) {
    const auto read = shape_from_json(json);
    ASSERT_FALSE(read) << json;
    EXPECT_EQ(read.error().code, ErrorCode::invalid_argument) << json;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
  }
}

TEST(Json, AnUnknownNameListsTheChoices) {
  const auto read = problem_from_json(
      R"({"dtype":"fp64","head_dim":128,"kv_heads":8,"layout":"contiguous","lse":false,"q_heads":32})");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(read.error().message.find("fp64"), std::string::npos) << read.error().message;
}

TEST(Json, AConfigSaysItsL2PromotionOnlyWhereItIsNotTheUsualOne) {
  Config config{.spec = {.load = LoadPath::tensor, .stages = 3}, .grid = 132};
  const std::string usual = to_json(config);
  EXPECT_EQ(usual.find("l2_promotion"), std::string::npos) << "rows of older databases have no such key";
  EXPECT_EQ(config_from_json(usual).value().l2_promotion, 128);
  config.l2_promotion = 256;
  const std::string promoted = to_json(config);
  EXPECT_TRUE(promoted.starts_with(R"({"grid":132,"l2_promotion":256,"spec":)")) << promoted;
  EXPECT_EQ(config_from_json(promoted).value(), config);
  for (const char* impossible : {"64", "0", "-1", "512"}) {
    std::string text = promoted;
    text.replace(text.find("256"), 3, impossible);
    const auto refused = config_from_json(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().message.find("l2_promotion"), std::string::npos) << refused.error().message;
  }
  config.spec.load = LoadPath::bulk;
  const auto refused = config_from_json(to_json(config));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message.find("bulk"), std::string::npos) << refused.error().message;
}

TEST(Json, AConfigWithAnImpossibleGridOrSpecIsRefused) {
  const auto good = to_json(Config{.spec = {}, .grid = 132});
  ASSERT_TRUE(config_from_json(good));
  auto grid = good;
  grid.replace(grid.find("132"), 3, "0");
  EXPECT_EQ(config_from_json(grid).error().code, ErrorCode::invalid_argument);
  auto spec = good;
  spec.replace(spec.find("\"warps\":4"), 9, "\"warps\":0");
  EXPECT_FALSE(config_from_json(spec));
}

}  // namespace
}  // namespace leanattn
