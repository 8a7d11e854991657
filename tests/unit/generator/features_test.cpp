// features_test.cpp -- Features: domains, names, hashes, JSON.
#include "generator/features.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "generator/feature_table.hpp"

namespace leanattn {
namespace {

ErrorCode code_of(const Result<void>& result) { return result ? ErrorCode::ok : result.error().code; }

/// Most fields at their defaults, as in life.
Features any_features() {
  const auto sometimes = [](auto generator, auto otherwise) {
    return *rc::gen::inRange(0, 3) == 0 ? *generator : otherwise;
  };
  Features f;
  f.page_size = sometimes(rc::gen::element(1, 16, 24, 64, 256, 1 << 20), 0);
  f.q_len = sometimes(rc::gen::inRange(1, 17), 1);
  f.ragged_q = sometimes(rc::gen::arbitrary<bool>(), false);
  f.mask = sometimes(rc::gen::element(QueryMask::causal, QueryMask::tree, QueryMask::full), QueryMask::causal);
  f.packed_kv = sometimes(rc::gen::arbitrary<bool>(), false);
  f.spans = sometimes(rc::gen::arbitrary<bool>(), false);
  f.window = sometimes(rc::gen::element(1, 100, 4096, 1 << 30), 0);
  f.sink_tokens = sometimes(rc::gen::element(1, 4, 128), 0);
  f.sink_logits = sometimes(rc::gen::arbitrary<bool>(), false);
  f.soft_cap = sometimes(rc::gen::element(0.001, 15.5, 30.0, 50.0, 1e6), 0.0);
  f.alibi = sometimes(rc::gen::arbitrary<bool>(), false);
  f.score = sometimes(rc::gen::element<std::string>("score * 2", "score - 0.1f * (q_index - kv_index)"), std::string());
  f.kv_format = sometimes(rc::gen::element(KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8, KvFormat::fp8_ds_mla,
                                           KvFormat::int4, KvFormat::nvfp4),
                          KvFormat::same);
  f.kv_scale = sometimes(rc::gen::element(KvScale::head, KvScale::token, KvScale::in_row), KvScale::tensor);
  f.v_head_dim = sometimes(rc::gen::element(16, 64, 512), 0);
  f.append = sometimes(rc::gen::arbitrary<bool>(), false);
  f.rope = sometimes(rc::gen::element(Rope::half_split, Rope::interleaved), Rope::none);
  if (f.rope != Rope::none) f.rope_dim = *rc::gen::element(0, 64);
  f.latent = sometimes(rc::gen::arbitrary<bool>(), false);
  f.batch_invariant = sometimes(rc::gen::arbitrary<bool>(), false);
  if (*rc::gen::inRange(0, 8) == 0) {
    f = {.page_size = *rc::gen::element(0, 1, 64), .q_len = f.q_len, .window = *rc::gen::element(0, 0, 0, 9)};
    f.selection_block = *rc::gen::element(0, 1, 16, 128);
    f.selection_in_pool = *rc::gen::arbitrary<bool>();
    f.second_cache = *rc::gen::arbitrary<bool>();
  }
  return f;
}

TEST(Features, DefaultsAreValidAndPlain) {
  EXPECT_TRUE(validate(Features{}));
  EXPECT_TRUE(is_plain(Features{}));
  EXPECT_FALSE(transforms_scores(Features{}));
  EXPECT_EQ(features_name(Features{}), "");
  EXPECT_EQ(features_hash(Features{}), 0u);
  EXPECT_EQ(to_json(Features{}), "{}");
  EXPECT_EQ(query_rows(Features{}, 7), 7);
  EXPECT_EQ(query_rows(Features{.q_len = 16}, 128), 2048);
}

TEST(Features, PrefillIsMoreQueryTokensThanDecodeHasOfEachRequestItsOwnNumber) {
  EXPECT_TRUE(has_prefill({.q_len = 17, .ragged_q = true}));
  EXPECT_TRUE(has_prefill({.q_len = 17, .ragged_q = true, .mask = QueryMask::full}));
  EXPECT_FALSE(has_prefill({.q_len = 16, .ragged_q = true}));
  EXPECT_FALSE(has_prefill({.q_len = 17, .mask = QueryMask::full}));
  EXPECT_FALSE(has_prefill({.q_len = 17, .ragged_q = true, .mask = QueryMask::full, .batch_invariant = true}));
  EXPECT_EQ(query_rows({.q_len = kMostPrefillTokens, .ragged_q = true}, 128), 1 << 24);
}

TEST(Features, ALatentCacheTurnsTheDimsBehindV) {
  EXPECT_EQ(features_name({.v_head_dim = 512, .latent = true}), "_v512_latent");
  EXPECT_EQ(to_json(Features{.v_head_dim = 512, .latent = true}), R"({"latent":true,"v_head_dim":512})");
  const Features latent{.v_head_dim = 512, .latent = true, .rope = Rope::interleaved};
  EXPECT_EQ(first_turning_dim(latent, 576), 512);
  EXPECT_EQ(turning_dims(latent, 576), 64);
  EXPECT_EQ(first_turning_dim({.v_head_dim = 64}, 128), 0);
  EXPECT_EQ(turning_dims({.v_head_dim = 64}, 128), 128);
  EXPECT_TRUE(validate_for_head({.v_head_dim = 512, .latent = true, .rope = Rope::interleaved, .rope_dim = 64}, 576));
  EXPECT_EQ(
      code_of(validate_for_head({.v_head_dim = 512, .latent = true, .rope = Rope::interleaved, .rope_dim = 80}, 576)),
      ErrorCode::invalid_argument);
  EXPECT_EQ(code_of(validate_for_head({.latent = true, .rope = Rope::interleaved}, 512)), ErrorCode::invalid_argument);
  EXPECT_TRUE(validate_for_head({.latent = true}, 512));
}

TEST(Features, EachQueryTokenWithASelectionHasRowsOfItsOwn) {
  const Features features{.page_size = 64, .q_len = 4, .selection_block = 16, .selection_in_pool = true};
  EXPECT_TRUE(has_selection(features));
  EXPECT_EQ(query_rows(features, 8), 8);
  EXPECT_EQ(features_name(features), "_p64_q4_sel16p");
  EXPECT_EQ(to_json(features), R"({"page_size":64,"q_len":4,"selection_block":16,"selection_in_pool":true})");
  EXPECT_EQ(features_from_json(to_json(features)).value(), features);
}

TEST(Features, AGroupHasANameAHashAndJson) {
  const Features features{.context_parallel = 4, .context_interleave = 16, .replicate_output = true};
  EXPECT_EQ(features_name(features), "_cp4i16r");
  EXPECT_EQ(features_name({.context_parallel = 2}), "_cp2");
  EXPECT_EQ(to_json(features), R"({"context_interleave":16,"context_parallel":4,"replicate_output":true})");
  EXPECT_EQ(features_from_json(to_json(features)).value(), features);
  EXPECT_FALSE(is_plain(features));
  std::set<std::uint64_t> hashes;
  for (const Features& f : {features, Features{.context_parallel = 4}, Features{.context_parallel = 2},
                            Features{.context_parallel = 4, .context_interleave = 16},
                            Features{.context_parallel = 4, .replicate_output = true}, Features{}})
    EXPECT_TRUE(hashes.insert(features_hash(f)).second) << features_name(f);
}

TEST(Features, APartOfAContextMayHaveItsResultsMergedElsewhere) {
  const Features part{.window = 9, .context_interleave = 16, .context_ranks = 4};
  EXPECT_TRUE(validate(part)) << validate(part).error().message;
  EXPECT_FALSE(in_group(part) || is_plain(part));
  EXPECT_TRUE(has_part_of_context(part) && needs_positions(part));
  EXPECT_EQ(features_name(part), "_win9_of4i16");
  EXPECT_EQ(features_name({.context_parallel = 2, .context_ranks = 4}), "_cp2_of4");
  EXPECT_EQ(features_from_json(to_json(part)).value(), part);
  EXPECT_EQ(ranks_of_context({.context_parallel = 2}), 2);
  EXPECT_EQ(ranks_of_context({.context_parallel = 2, .context_ranks = 4}), 4);
  EXPECT_NE(features_hash(part), features_hash({.window = 9, .context_interleave = 16, .context_ranks = 8}));
}

TEST(Features, WhatDependsOnPositionsAsksAGroupForThem) {
  EXPECT_FALSE(needs_positions({.context_parallel = 2}));
  EXPECT_FALSE(needs_positions({.q_len = 4}));
  EXPECT_TRUE(needs_positions({.q_len = 4, .context_parallel = 2}));
  EXPECT_FALSE(needs_positions({.q_len = 4, .mask = QueryMask::full, .context_parallel = 2}));
  EXPECT_FALSE(needs_positions({.window = 9}));
  EXPECT_TRUE(needs_positions({.window = 9, .context_parallel = 2}));
  EXPECT_TRUE(needs_positions({.append = true, .context_parallel = 2}));
  EXPECT_FALSE(needs_indices({.append = true, .context_parallel = 2}));
  for (const Features& f :
       {Features{.alibi = true}, Features{.score = "score * kv_index"}, Features{.rope = Rope::interleaved}}) {
    Features of_group = f;
    of_group.context_parallel = 2;
    EXPECT_FALSE(needs_positions(f) || needs_indices(f));
    EXPECT_TRUE(needs_positions(of_group) && needs_indices(of_group));
  }
  EXPECT_FALSE(needs_indices({.q_len = 4, .window = 9, .soft_cap = 30, .context_parallel = 2}));
}

TEST(Features, LimitsAreTheLastValuesThatPass) {
  const Features good[] = {
      {.page_size = 1},
      {.page_size = 1 << 20},
      {.q_len = 16},
      {.ragged_q = true},
      {.q_len = 1 << 17, .ragged_q = true},
      {.q_len = 1 << 17, .ragged_q = true, .mask = QueryMask::full},
      {.q_len = 16, .ragged_q = true, .mask = QueryMask::tree},
      {.q_len = 1024, .ragged_q = true, .mask = QueryMask::full, .batch_invariant = true},
      {.q_len = 2, .mask = QueryMask::tree},
      {.window = 1},
      {.window = 1 << 30},
      {.window = 1, .sink_tokens = 1 << 30},
      {.soft_cap = 1e-3},
      {.soft_cap = 1e6},
      {.q_len = 4, .window = 8},
      {.q_len = 4, .mask = QueryMask::full, .window = 8},
      {.packed_kv = true, .q_len = 1 << 17, .ragged_q = true, .kv_format = KvFormat::int8, .kv_scale = KvScale::head},
      {.q_len = 1 << 17, .ragged_q = true, .spans = true, .window = 8, .append = true},
      {.q_len = 1 << 17, .ragged_q = true, .mask = QueryMask::full, .window = 8, .sink_tokens = 2},
      {.page_size = 1, .selection_block = 1},
      {.page_size = 24, .q_len = 16, .selection_block = 128, .selection_in_pool = true},
      {.context_parallel = 8, .context_interleave = 256, .replicate_output = true},
      {.page_size = 16, .q_len = 16, .ragged_q = true, .soft_cap = 30, .context_parallel = 2},
      {.page_size = 16, .q_len = 16, .window = 9, .sink_tokens = 4, .context_parallel = 2, .context_interleave = 16},
  };
  for (const Features& f : good) EXPECT_TRUE(validate(f)) << features_name(f) << validate(f).error().message;
}

TEST(Features, ValuesOutOfTheirDomainAreRefusedWithTheirNameAndAWayOut) {
  struct Case {
    Features features;
    ErrorCode code;
    const char* named;
  };
  const Case cases[] = {
      {{.page_size = -1}, ErrorCode::invalid_argument, "page_size is -1"},
      {{.page_size = (1 << 20) + 1}, ErrorCode::invalid_argument, "page_size is 1048577"},
      {{.q_len = 0}, ErrorCode::invalid_argument, "q_len is 0"},
      {{.q_len = -4}, ErrorCode::invalid_argument, "q_len is -4"},
      {{.q_len = 17}, ErrorCode::unsupported, "q_len is 17"},
      {{.q_len = 1025, .mask = QueryMask::full}, ErrorCode::unsupported, "q_len is 1025"},
      {{.q_len = (1 << 17) + 1, .ragged_q = true}, ErrorCode::unsupported, "q_len is 131073"},
      {{.q_len = 17, .ragged_q = true, .mask = QueryMask::tree}, ErrorCode::unsupported, "q_len is 17"},
      {{.q_len = 17, .ragged_q = true, .batch_invariant = true}, ErrorCode::unsupported, "q_len is 17"},
      {{.q_len = 17, .ragged_q = true, .context_parallel = 2}, ErrorCode::unsupported, "q_len is 17"},
      {{.q_len = 17, .ragged_q = true, .context_ranks = 2}, ErrorCode::unsupported, "q_len is 17"},
      {{.mask = QueryMask::tree}, ErrorCode::invalid_argument, "tree mask over one query token"},
      {{.window = -1}, ErrorCode::invalid_argument, "window is -1"},
      {{.window = (1 << 30) + 1}, ErrorCode::invalid_argument, "window is 1073741825"},
      {{.window = 4, .sink_tokens = -1}, ErrorCode::invalid_argument, "sink_tokens is -1"},
      {{.sink_tokens = 4}, ErrorCode::invalid_argument, "sink_tokens is 4 without a window"},
      {{.page_size = 16, .packed_kv = true}, ErrorCode::unsupported, "page_size with packed_kv"},
      {{.packed_kv = true, .append = true}, ErrorCode::unsupported, "append with packed_kv"},
      {{.packed_kv = true, .latent = true}, ErrorCode::unsupported, "latent with packed_kv"},
      {{.packed_kv = true, .batch_invariant = true}, ErrorCode::unsupported, "batch_invariant with packed_kv"},
      {{.packed_kv = true, .kv_format = KvFormat::int8, .kv_scale = KvScale::token},
       ErrorCode::unsupported,
       "kv_scale token with packed_kv"},
      {{.packed_kv = true, .context_parallel = 2}, ErrorCode::unsupported, "context_parallel with packed_kv"},
      {{.q_len = 2, .spans = true}, ErrorCode::invalid_argument, "spans without ragged_q"},
      {{.q_len = 2, .ragged_q = true, .mask = QueryMask::full, .spans = true},
       ErrorCode::invalid_argument,
       "spans with the query mask full"},
      {{.q_len = 2, .ragged_q = true, .spans = true, .context_parallel = 2},
       ErrorCode::unsupported,
       "spans with context_parallel 2"},
      {{.q_len = 2, .mask = QueryMask::tree, .window = 4}, ErrorCode::unsupported, "query mask tree"},
      {{.soft_cap = -1}, ErrorCode::invalid_argument, "soft_cap is -1"},
      {{.soft_cap = 1e-4}, ErrorCode::invalid_argument, "soft_cap is 0.0001"},
      {{.soft_cap = 1e7}, ErrorCode::invalid_argument, "soft_cap is 10000000"},
      {{.soft_cap = std::numeric_limits<double>::quiet_NaN()}, ErrorCode::invalid_argument, "soft_cap is nan"},
      {{.soft_cap = std::numeric_limits<double>::infinity()}, ErrorCode::invalid_argument, "soft_cap is inf"},
      {{.score = "score;"}, ErrorCode::invalid_argument, "';' is not expected"},
      {{.kv_format = KvFormat::int8, .kv_scale = KvScale::token, .append = true},
       ErrorCode::unsupported,
       "append into a cache of int8 with kv_scale token"},
      {{.rope_dim = 64}, ErrorCode::invalid_argument, "rope_dim is 64 without rope"},
      {{.rope = Rope::half_split, .rope_dim = 24}, ErrorCode::invalid_argument, "rope_dim is 24"},
      {{.v_head_dim = -16}, ErrorCode::invalid_argument, "v_head_dim is -16"},
      {{.page_size = 16, .selection_block = -1}, ErrorCode::invalid_argument, "selection_block is -1"},
      {{.page_size = 16, .selection_block = 8}, ErrorCode::unsupported, "selection_block is 8"},
      {{.page_size = 16, .selection_block = 48}, ErrorCode::unsupported, "selection_block is 48"},
      {{.page_size = 16, .selection_block = 256}, ErrorCode::unsupported, "selection_block is 256"},
      {{.selection_block = 16}, ErrorCode::unsupported, "a selection from a dense cache"},
      {{.page_size = 16, .selection_in_pool = true}, ErrorCode::invalid_argument, "selection_in_pool without"},
      {{.page_size = 16, .window = 9, .selection_block = 16}, ErrorCode::unsupported, "a window with a selection"},
      {{.page_size = 16, .q_len = 2, .mask = QueryMask::tree, .selection_block = 16},
       ErrorCode::unsupported,
       "the query mask tree with a selection"},
      {{.page_size = 16, .ragged_q = true, .selection_block = 16}, ErrorCode::unsupported, "ragged_q with a selection"},
      {{.page_size = 16, .alibi = true, .selection_block = 16}, ErrorCode::unsupported, "alibi with a selection"},
      {{.page_size = 16, .score = "score", .selection_block = 16},
       ErrorCode::unsupported,
       "a score expression with a selection"},
      {{.page_size = 16, .append = true, .selection_block = 16}, ErrorCode::unsupported, "append with a selection"},
      {{.page_size = 16, .rope = Rope::half_split, .selection_block = 16},
       ErrorCode::unsupported,
       "rope with a selection"},
      {{.page_size = 16, .second_cache = true}, ErrorCode::invalid_argument, "second_cache without a selection"},
      {{.page_size = 16, .batch_invariant = true, .selection_block = 1, .second_cache = true},
       ErrorCode::unsupported,
       "batch_invariant with second_cache"},
      {{.page_size = 16, .kv_format = KvFormat::int8, .selection_block = 1, .second_cache = true},
       ErrorCode::unsupported,
       "a kv_format that has scales with second_cache"},
      {{.kv_format = KvFormat::int4, .kv_scale = KvScale::token, .context_parallel = 2},
       ErrorCode::unsupported,
       "a cache whose scales travel with its rows with context_parallel 2"},
      {{.kv_format = KvFormat::nvfp4, .context_parallel = 2},
       ErrorCode::unsupported,
       "a cache whose scales travel with its rows with context_parallel 2"},
      {{.page_size = 16, .kv_format = KvFormat::nvfp4, .selection_block = 1, .second_cache = true},
       ErrorCode::unsupported,
       "a kv_format that has scales with second_cache"},
      {{.context_parallel = 0}, ErrorCode::invalid_argument, "context_parallel is 0"},
      {{.context_parallel = 9}, ErrorCode::invalid_argument, "context_parallel is 9"},
      {{.context_parallel = 2, .context_interleave = 24}, ErrorCode::invalid_argument, "context_interleave is 24"},
      {{.context_parallel = 2, .context_interleave = 512}, ErrorCode::invalid_argument, "context_interleave is 512"},
      {{.context_interleave = 16}, ErrorCode::invalid_argument, "context_interleave is 16 without context_parallel"},
      {{.replicate_output = true}, ErrorCode::invalid_argument, "replicate_output without context_parallel"},
      {{.context_ranks = 1}, ErrorCode::invalid_argument, "context_ranks is 1"},
      {{.context_parallel = 2, .context_ranks = 2}, ErrorCode::invalid_argument, "context_ranks is 2"},
      {{.context_parallel = 2, .context_ranks = 5}, ErrorCode::invalid_argument, "context_ranks is 5"},
      {{.context_ranks = 9}, ErrorCode::invalid_argument, "context_ranks is 9"},
      {{.context_ranks = 2, .replicate_output = true},
       ErrorCode::invalid_argument,
       "replicate_output without context_parallel"},
      {{.q_len = 2, .mask = QueryMask::tree, .context_parallel = 2},
       ErrorCode::unsupported,
       "the query mask tree with context_parallel 2"},
      {{.batch_invariant = true, .context_parallel = 2}, ErrorCode::unsupported, "batch_invariant with context_paral"},
      {{.page_size = 16, .selection_block = 16, .context_parallel = 2},
       ErrorCode::unsupported,
       "a selection with context_parallel 2"},
  };
  for (const Case& c : cases) {
    const auto refused = validate(c.features);
    ASSERT_EQ(code_of(refused), c.code) << c.named;
    EXPECT_NE(refused.error().message.find(c.named), std::string::npos) << refused.error().message;
    EXPECT_FALSE(refused.error().hint.empty()) << c.named;
  }
}

TEST(Features, ScoresAreTransformedByCapsSlopesAndExpressions) {
  EXPECT_TRUE(transforms_scores({.soft_cap = 30}));
  EXPECT_TRUE(transforms_scores({.alibi = true}));
  EXPECT_TRUE(transforms_scores({.score = "score"}));
  EXPECT_FALSE(transforms_scores({.kv_format = KvFormat::int8, .kv_scale = KvScale::token}));
  EXPECT_FALSE(transforms_scores({.page_size = 16, .q_len = 4, .window = 128, .sink_logits = true}));
}

TEST(Features, TheNameHasAPartForEachInOneOrder) {
  EXPECT_EQ(features_name({.page_size = 16, .q_len = 4, .window = 4096}), "_p16_q4_win4096");
  EXPECT_EQ(features_name({.q_len = 8, .ragged_q = true, .mask = QueryMask::tree}), "_q8tree_rq");
  EXPECT_EQ(features_name({.q_len = 2, .mask = QueryMask::full}), "_q2full");
  EXPECT_EQ(features_name({.window = 128, .sink_tokens = 4, .sink_logits = true}), "_win128_sink4_slog");
  EXPECT_EQ(features_name({.soft_cap = 50, .alibi = true}), "_cap50_alibi");
  EXPECT_EQ(features_name({.kv_format = KvFormat::fp8_e4m3}), "_e4m3");
  EXPECT_EQ(features_name({.v_head_dim = 64, .append = true, .rope = Rope::interleaved, .rope_dim = 64}),
            "_v64_app_ri64");
  EXPECT_EQ(features_name({.rope = Rope::half_split, .batch_invariant = true}), "_rh0_inv");
  EXPECT_EQ(features_name({.kv_format = KvFormat::int8, .kv_scale = KvScale::token, .v_head_dim = 64}), "_i8t_v64");
  EXPECT_EQ(features_name({.page_size = 16, .kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}), "_p16_i4r");
  EXPECT_EQ(features_name({.kv_format = KvFormat::nvfp4, .kv_scale = KvScale::head}), "_nv4h");
}

/// A value that is not the default.
template <class T>
T another_value() {
  if constexpr (std::is_same_v<T, std::string>) {
    return "score";
  } else {
    return static_cast<T>(std::is_same_v<T, int> ? 2 : 1);
  }
}

TEST(FeatureTable, HasTheDefaultsOfFeatures) {
  for_each_feature([](const auto& row) { EXPECT_EQ(row.differs(Features{}), 0u) << row.name; });
}

TEST(FeatureTable, EveryMemberCountsInJsonAndInTheHash) {
  const Features base{.page_size = 16, .q_len = 3, .window = 64, .kv_format = KvFormat::int8};
  std::set<std::uint64_t> hashes{features_hash(base)};
  for_each_feature([&]<class T>(const Feature<T>& row) {
    Features changed;
    changed.*row.member = another_value<T>();
    EXPECT_FALSE(is_plain(changed) || is_plain_fast(changed)) << row.name;
    const auto json = nlohmann::json::parse(to_json(changed));
    EXPECT_EQ(json.size(), 1u) << json << ": two rows have the same member";
    EXPECT_TRUE(json.contains(row.name)) << json;
    changed = base;
    changed.*row.member = another_value<T>();
    EXPECT_TRUE(hashes.insert(features_hash(changed)).second) << row.name;
  });
}

TEST(FeatureTable, NoTwoFeaturesShareAFlagOrAFieldOfTheCInterface) {
  std::set<std::string> flags;
  std::set<const void*> fields;
  const leanattn_problem problem{};
  std::size_t asked = 0;
  for_each_feature([&](const auto& row) {
    if (row.c_member == nullptr) return;
    ++asked;
    flags.insert(row.flag.name);
    fields.insert(&(problem.*row.c_member));
  });
  EXPECT_EQ(flags.size(), asked);
  EXPECT_EQ(fields.size(), asked);
}

RC_GTEST_PROP(Features, ThatDifferInConsequenceDifferInNameAndHash, ()) {
  const Features a = any_features(), b = *rc::gen::arbitrary<bool>() ? a : any_features();
  RC_ASSERT((features_hash(a) == features_hash(b)) == (a == b));
  RC_ASSERT((features_hash(a) == 0) == is_plain(a));
  if (a == b) RC_ASSERT(features_name(a) == features_name(b));
  // A name leaves out what has no consequence: the mask of one query token, the scale of a cache that has none, and
  // where a selection counts from that is none, which has no second cache either.
  const auto consequence = [](Features f) {
    if (f.q_len == 1) f.mask = QueryMask::causal;
    if (f.kv_format == KvFormat::same) f.kv_scale = KvScale::tensor;
    if (f.selection_block == 0) f.selection_in_pool = f.second_cache = false;
    return f;
  };
  RC_ASSERT((features_name(a) == features_name(b)) == (consequence(a) == consequence(b)));
}

RC_GTEST_PROP(Features, OfAnyValidKindReadBackEqualFromTheirJson, ()) {
  const Features f = any_features();
  RC_PRE(validate(f).has_value());
  const auto read = features_from_json(to_json(f));
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == f);
  RC_ASSERT(to_json(*read) == to_json(f));
  RC_ASSERT(to_json(f).find('\n') == std::string::npos);
}

RC_GTEST_PROP(Features, ThatAreInvalidAreNotReadFromJson, ()) {
  const Features f = any_features();
  RC_ASSERT(features_from_json(to_json(f)).has_value() == validate(f).has_value());
}

RC_GTEST_PROP(Features, ArbitraryTextIsNoJsonOfThem, (const std::string& text)) {
  RC_ASSERT(!features_from_json(text).has_value());
}

TEST(Features, JsonHasOnlyWhatDiffersSorted) {
  EXPECT_EQ(to_json(Features{.page_size = 16, .mask = QueryMask::full, .soft_cap = 30, .alibi = true}),
            R"({"alibi":true,"mask":"full","page_size":16,"soft_cap":30.0})");
  EXPECT_TRUE(features_from_json(R"({"page_size":16,"later":[1]})")) << "unknown keys are ignored";
}

TEST(Features, IllTypedJsonNamesTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"page_size":"16"})", "page_size"},
      {R"({"page_size":16.5})", "page_size"},
      {R"({"page_size":4294967312})", "page_size"},
      {R"({"q_len":18446744073709551615})", "q_len"},
      {R"({"ragged_q":1})", "ragged_q"},
      {R"({"mask":2})", "mask"},
      {R"({"mask":"oak"})", "oak"},
      {R"({"kv_format":"fp4"})", "fp4"},
      {R"({"kv_scale":"row"})", "row"},
      {R"({"rope":"twice"})", "twice"},
      {R"({"append":1})", "append"},
      {R"({"soft_cap":"x"})", "soft_cap"},
      {R"({"score":1})", "score"},
      {R"json({"score":"*(float*)(140000000000000+kv_index)"})json", "at character 1"},
      {R"({"q_len":99})", "q_len is 99"},
      {R"([])", "not a JSON object"},
  };
  for (const auto& [json, words] : cases) {
    const auto read = features_from_json(json);
    ASSERT_FALSE(read) << json;
    EXPECT_NE(read.error().message.find(words), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace leanattn
