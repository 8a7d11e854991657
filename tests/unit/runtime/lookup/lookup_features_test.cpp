// lookup_features_test.cpp -- look-ups of problems with features: their own winners, those of similar problems, and
// defaults that are valid for all of them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "generator/families/family.hpp"
#include "generator/integers.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/key.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const DecodeProblem kPaged{.q_heads = 32, .kv_heads = 8, .head_dim = 128, .features = {.page_size = 16}};

TEST(LookupFeatures, WinnersOfOneShapeStandSideBySide) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12),
                               winner(kPaged, kMeasured, tuned_config(kPaged, 64), 14)});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table.find(kLlama, kMeasured).config, tuned_config(kLlama, 224));
  EXPECT_EQ(table.find(kPaged, kMeasured).config, tuned_config(kPaged, 64));
  EXPECT_EQ(table.find(kPaged, kMeasured).provenance, Provenance::exact);
  EXPECT_EQ(table.find(kPaged, kMeasured).provenance, Provenance::exact);
  EXPECT_EQ(table.find(kPaged, kMeasured).tuned_us, 14);
}

TEST(LookupFeatures, AConfigWithOtherFeaturesThanItsProblemIsSkipped) {
  const auto table = table_of(
      {winner(kLlama, kMeasured, tuned_config(kPaged, 132)), winner(kPaged, kMeasured, tuned_config(kLlama, 132))});
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.skipped(), 2u);
}

TEST(LookupFeatures, WithoutAWinnerOfItsOwnAProblemGetsTheTunablesOfASimilarOne) {
  const Choice choice = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12)}).find(kPaged, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.config.spec, tuned_config(kPaged, 224).spec);
  EXPECT_TRUE(validate(choice.config.spec));
}

TEST(LookupFeatures, TheProblemWithMoreSimilarFeaturesGoesFirst) {
  DecodeProblem other_pages = kPaged;
  other_pages.features.page_size = 32;
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12),
                               winner(other_pages, kMeasured, tuned_config(other_pages, 64), 14)});
  EXPECT_EQ(table.find(kPaged, kMeasured).tuned_us, 14);
}

std::vector<DecodeProblem> problems_that_stream_as_paged() {
  std::vector<DecodeProblem> problems(6, kPaged);
  problems[0].lse = true;
  problems[1].dtype = DType::fp16;
  problems[2].features.append = true;
  problems[3].features.sink_logits = true;
  problems[4].features.append = true, problems[4].features.rope = Rope::half_split;
  problems[5].features.rope = Rope::interleaved, problems[5].features.rope_dim = 64, problems[5].lse = true;
  return problems;
}

TEST(LookupFeatures, WhatWasMeasuredAtThisShapeForAProblemThatStreamsKvAlikeIsTakenOver) {
  const Config tuned = tuned_config(kPaged, 61);
  const auto table = table_of({winner(kPaged, kMeasured, tuned, 14, "cold", "site")});
  for (const DecodeProblem& problem : problems_that_stream_as_paged()) {
    const Choice choice = table.find(problem, kMeasured);
    EXPECT_EQ(choice.provenance, Provenance::nearest) << to_json(problem);
    EXPECT_TRUE(choice.taken_over) << to_json(problem);
    EXPECT_EQ(choice.config, tuned_config(problem, 61)) << to_json(problem);
    EXPECT_EQ(choice.tuned_us, 14);
    EXPECT_EQ(choice.predicted_us, 14);
    EXPECT_EQ(choice.layer, "site");
    EXPECT_FALSE(table.find(problem, {.batch = 4, .longest_context = 5000}).taken_over) << "another shape";
  }
}

TEST(LookupFeatures, DependentLaunchesTakeOverWhatWasMeasuredWithDependentLaunches) {
  DecodeProblem tuned = kPaged;
  tuned.pdl = true;
  DecodeProblem ordinary = kPaged;
  ordinary.lse = true;
  const auto table = table_of({winner(tuned, kMeasured, tuned_config(tuned, 61), 14),
                               winner(ordinary, kMeasured, tuned_config(ordinary, 40), 15)});
  DecodeProblem asked = tuned;
  asked.lse = true;
  EXPECT_TRUE(table.find(asked, kMeasured).taken_over);
  EXPECT_EQ(table.find(asked, kMeasured).config, tuned_config(asked, 61));
}

TEST(LookupFeatures, NothingIsTakenOverFromProblemsThatStreamOtherwise) {
  std::vector<DecodeProblem> others(7, kPaged);
  others[0].features.page_size = 32;
  others[1].features.window = 1024;
  others[2].features.q_len = 2;
  others[3].features.soft_cap = 30;
  others[4].features.kv_format = KvFormat::fp8_e4m3;
  others[5].layout = KvLayout::strided;
  others[6].q_heads = 64, others[6].kv_heads = 16;
  const auto table = table_of({winner(kPaged, kMeasured, tuned_config(kPaged, 61), 14)});
  for (const DecodeProblem& problem : others)
    EXPECT_FALSE(table.find(problem, kMeasured).taken_over) << to_json(problem);
  // Where the first CTAs of a dependent launch begin depends on the grid.
  DecodeProblem dependent = kPaged;
  dependent.pdl = true;
  EXPECT_EQ(table.find(dependent, kMeasured).provenance, Provenance::without_pdl);
  EXPECT_FALSE(table.find(dependent, kMeasured).taken_over);
}

TEST(LookupFeatures, OfProblemsThatStreamKvAlikeTheClosestOneGoesFirstAndTheProblemItselfBeforeAll) {
  DecodeProblem with_lse = kPaged, appends = kPaged, other_type = kPaged;
  with_lse.lse = true, other_type.lse = true, other_type.dtype = DType::fp16;
  appends.lse = true, appends.features.append = true;
  const auto entry = [](const DecodeProblem& problem, const Shape& shape, std::int64_t grid, double us) {
    return winner(problem, shape, tuned_config(problem, grid), us);
  };
  const auto far = entry(appends, kMeasured, 40, 20), close = entry(other_type, kMeasured, 50, 21);
  for (const auto& table : {table_of({far, close}), table_of({close, far})})
    EXPECT_EQ(table.find(with_lse, kMeasured).config.grid, 50) << "fp16 is closer than rows that are appended";
  const Shape kOfBucket{.batch = kMeasured.batch, .longest_context = kMeasured.longest_context - 100};
  const auto with_own = table_of({entry(other_type, kMeasured, 50, 21), entry(with_lse, kOfBucket, 60, 22)});
  EXPECT_EQ(with_own.find(with_lse, kMeasured).config.grid, 50) << "the shape counts more than the problem";
  EXPECT_EQ(with_own.find(with_lse, kOfBucket).config.grid, 60);
  EXPECT_FALSE(with_own.find(with_lse, kOfBucket).taken_over);
}

TEST(LookupFeatures, L2PromotionFollowsWhatAShapeReads) {
  const Shape kShort{.batch = 1, .longest_context = 1024}, kLong{.batch = 16, .longest_context = 65536};
  const Config short_default = default_config({fictional_gpu(), kLlama, kShort});
  ASSERT_EQ(short_default.spec.load, LoadPath::tensor);
  EXPECT_EQ(short_default.l2_promotion, 256) << "4 MiB";
  EXPECT_EQ(default_config({fictional_gpu(), kLlama, kLong}).l2_promotion, 128);
  DecodeProblem windowed = kLlama;
  windowed.features.window = 1024;
  EXPECT_EQ(l2_promotion({fictional_gpu(), windowed, {.batch = 1, .longest_context = 131072}}, short_default.spec), 256)
      << "of the window";
  KernelSpec bulk = short_default.spec;
  bulk.load = LoadPath::bulk;
  EXPECT_EQ(l2_promotion({fictional_gpu(), kLlama, kShort}, bulk), 128);
}

TEST(LookupFeatures, ATunedL2PromotionHoldsForShapesOfItsSideOnly) {
  const Shape kTuned{.batch = 1, .longest_context = 4096}, kNear{.batch = 1, .longest_context = 3000},
      kLonger{.batch = 8, .longest_context = 4000}, kSmall{.batch = 1, .longest_context = 2048};
  Config config = default_config({fictional_gpu(), kLlama, kTuned});
  ASSERT_EQ(config.spec.load, LoadPath::tensor);
  config.l2_promotion = 128;  // against the rule
  const auto table = table_of({winner(kLlama, kTuned, config, 12)});
  EXPECT_EQ(table.find(kLlama, kTuned).config, config);
  const Choice near = table.find(kLlama, kNear);
  EXPECT_EQ(near.provenance, Provenance::bucket);
  EXPECT_EQ(near.config.l2_promotion, 128) << "as it was measured";
  Config large = default_config({fictional_gpu(), kLlama, kLonger});
  large.l2_promotion = 256;  // against the rule, too
  const auto of_large = table_of({winner(kLlama, kLonger, large, 30)});
  EXPECT_EQ(of_large.find(kLlama, {.batch = 8, .longest_context = 3900}).config.l2_promotion, 256);
  const Config small = of_large.find(kLlama, kSmall).config;
  EXPECT_EQ(small.l2_promotion, l2_promotion({fictional_gpu(), kLlama, kSmall}, small.spec)) << "by the rule";
  EXPECT_EQ(carry_l2_promotion_over({fictional_gpu(), kLlama, kTuned}, config, {fictional_gpu(), kLlama, kLonger},
                                    config.spec),
            128)
      << "by the rule";
  EXPECT_EQ(carry_l2_promotion_over({fictional_gpu(), kLlama, kLonger}, large, {fictional_gpu(), kLlama, kSmall},
                                    config.spec),
            256)
      << "by the rule";
}

TEST(LookupFeatures, ABatchInvariantProblemHasOneKernelForAllShapes) {
  DecodeProblem invariant = kLlama;
  invariant.features.batch_invariant = true;
  Config own = default_config({fictional_gpu(), invariant, kMeasured});
  own.grid = 24;
  Config other = own;
  other.spec.tile = 1024;
  Config charged = own;
  charged.segment_cost = 1;
  const Shape kShort{.batch = 1, .longest_context = 1000}, kLong{.batch = 64, .longest_context = 131072};
  const auto table =
      table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12), winner(invariant, kMeasured, own, 14),
                winner(invariant, kShort, other, 9), winner(invariant, kLong, charged, 9)});
  EXPECT_EQ(table.skipped(), 2u);  // one has another kernel, the other a segment cost
  EXPECT_EQ(table.find(invariant, kMeasured).config, own);
  EXPECT_EQ(table.find(invariant, kMeasured).provenance, Provenance::exact);
  for (const Shape& shape : {kShort, kLong}) {
    EXPECT_EQ(table.find(invariant, shape).config.spec, own.spec);
    EXPECT_EQ(table.find(invariant, shape).provenance, Provenance::fallback);
    EXPECT_EQ(table.find(invariant, shape).config.segment_cost, 0);
  }
  // Ordinary problems do not get that kernel either.
  EXPECT_EQ(table_of({winner(invariant, kMeasured, own, 14)}).find(kLlama, kMeasured).provenance, Provenance::fallback);
}

TEST(LookupFeatures, LargePartialsOfSharedOutputTilesAreMergedByAllWhoMadeThem) {
  DecodeProblem latent{.q_heads = 16, .kv_heads = 1, .head_dim = 576};
  latent.features.latent = true, latent.features.v_head_dim = 512;
  const DeviceFacts gpu = fictional_gpu();
  const Shape one{.batch = 1, .longest_context = 8192}, many{.batch = 128, .longest_context = 8192};
  const Config shared = default_config({gpu, latent, one}), whole = default_config({gpu, latent, many});
  EXPECT_GT(shared.grid, 1);
  EXPECT_EQ(shared.spec.fixup, FixUp::wait);
  EXPECT_EQ(128 % whole.grid, 0);
  EXPECT_EQ(whole.spec.fixup, FixUp::ticket) << "there is nothing to merge";
  // A winner with tickets, of a shape that shares nothing, is carried over with the other fix-up.
  const auto table = table_of({winner(latent, many, whole)});
  const Choice choice = table.find(latent, one);
  EXPECT_NE(choice.provenance, Provenance::exact);
  EXPECT_GT(choice.config.grid, 1);
  EXPECT_EQ(choice.config.spec.fixup, FixUp::wait);
  EXPECT_EQ(table.find(latent, many).config, whole) << "what was measured is not changed";
  EXPECT_EQ(default_config({gpu, kLlama, one}).spec.fixup, FixUp::ticket);
}

TEST(LookupFeatures, FeaturesThatChangeNothingFindThePlainWinner) {
  DecodeProblem repeats = kLlama;
  repeats.features.v_head_dim = 128;
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12)});
  EXPECT_EQ(table.find(repeats, kMeasured).provenance, Provenance::exact);
}

TEST(LookupFeatures, TunablesThatAFeatureForbidsAreNotCarriedOver) {
  // Load path tensor cannot convert one-byte elements.
  Config tensor = tuned_config(kLlama, 132);
  tensor.spec.load = LoadPath::tensor, tensor.spec.warps = 4, tensor.spec.tile = 64;
  ASSERT_TRUE(validate(tensor.spec)) << validate(tensor.spec).error().message;
  DecodeProblem bytes = kLlama;
  bytes.features.kv_format = KvFormat::fp8_e4m3;
  const Choice choice = table_of({winner(kLlama, kMeasured, tensor, 12)}).find(bytes, kMeasured);
  EXPECT_TRUE(validate(choice.config.spec));
  EXPECT_NE(choice.config.spec.load, LoadPath::tensor);
}

TEST(LookupFeatures, KernelsThatTradeRegistersHaveAnSmToThemselves) {
  // With few query rows there may be two CTAs on an SM. With many, the consumers of each ask for more registers than
  // half an SM has, and would wait for them for ever.
  DecodeProblem few{.q_heads = 64, .kv_heads = 8, .head_dim = 64};
  Config config = tuned_config(few, 132);
  config.spec.load = LoadPath::tensor, config.spec.fixup = FixUp::ticket;
  config.spec.warps = 8, config.spec.warp_tokens = 16, config.spec.tile = 64, config.spec.stages = 2;
  config.spec.ctas_per_sm = 2;
  ASSERT_TRUE(validate(config.spec));
  DecodeProblem many = few;
  many.features.q_len = 8;
  KernelSpec crowded = config.spec;
  crowded.features = many.features;
  ASSERT_GT(layout_of(crowded).producer_warps, 1);
  EXPECT_FALSE(validate(crowded));
  const auto carried = with_tunables_of(base_spec(fictional_gpu().arch, many), config.spec);
  ASSERT_TRUE(carried) << carried.error().message;
  EXPECT_EQ(carried->warps, 8);
  EXPECT_EQ(carried->stages, 2);
  EXPECT_EQ(carried->ctas_per_sm, 1);
  const Choice choice = table_of({winner(few, kMeasured, config)}).find(many, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_TRUE(validate(choice.config.spec));
}

TEST(LookupFeatures, AWindowLeavesFewTilesOnTheLine) {
  DecodeProblem windowed = kLlama;
  windowed.features.window = 1024;
  const Shape shape{.batch = 2, .longest_context = 1 << 20};
  const KernelSpec spec = base_spec({9, 0, true}, windowed);
  EXPECT_EQ(output_tiles({fictional_gpu(), windowed, shape}, spec), 16);
  EXPECT_EQ(lean_tiles({fictional_gpu(), windowed, shape}, spec), 16 * 1024 / spec.tile);
  EXPECT_EQ(lean_tiles({fictional_gpu(), kLlama, shape}, base_spec({9, 0, true}, kLlama)),
            std::int64_t{16} * (1 << 20) / spec.tile);
  EXPECT_LE(default_config({fictional_gpu(), windowed, shape}).grid,
            lean_tiles({fictional_gpu(), windowed, shape}, spec));
}

TEST(LookupFeatures, ARaggedBatchWhoseWindowsAreEqualHasNoSegmentCost) {
  DecodeProblem windowed = kLlama;
  windowed.features.window = 1024;
  const Shape ragged{.batch = 64, .longest_context = 32768, .total_context = 387490};
  EXPECT_GE(default_config({fictional_gpu(), kLlama, ragged}).segment_cost, 1);
  EXPECT_EQ(default_config({fictional_gpu(), windowed, ragged}).segment_cost, 0);
}

TEST(LookupFeatures, PrefillHasAGridThatIsResidentAndNoMoreTilesThanItsContextsAllow) {
  DecodeProblem prefill = kLlama;
  prefill.features.q_len = 2048, prefill.features.ragged_q = true;
  const DeviceFacts device = fictional_gpu({9, 0, true}, 132);
  const DecodeStep step(device, prefill, kMeasured);
  for (const Config& config : default_configs(step)) {
    const KernelSpec& spec = config.spec;
    EXPECT_EQ(spec.features.q_len, kMostPrefillTokens);
    const std::int64_t blocks = divide_up(kMeasured.longest_context * 4, layout_of(spec).rows);
    EXPECT_EQ(output_tiles(step, spec), kMeasured.batch * 8 * blocks);
    EXPECT_EQ(config.grid, resident_grid(step.device, spec));
    EXPECT_LE(useful_grids(step, spec, spec.ctas_per_sm).back(), resident_grid(step.device, spec));
  }
}

TEST(LookupFeatures, QueryTokensMultiplyRowsNotTiles) {
  DecodeProblem several = kLlama;
  several.features.q_len = 16;  // 64 rows of a KV head
  const Config config = default_config({fictional_gpu(), several, kMeasured});
  EXPECT_EQ(layout_of(config.spec).rows * layout_of(config.spec).row_blocks, 64);
  EXPECT_EQ(output_tiles({fictional_gpu(), several, kMeasured}, config.spec),
            4 * 8 * layout_of(config.spec).row_blocks);
  DecodeProblem selecting = several;
  selecting.features = {.page_size = 64, .q_len = 5, .selection_block = 64};
  const Config own = default_config({fictional_gpu({9, 0, true}, 132), selecting, kMeasured});
  EXPECT_EQ(output_tiles({fictional_gpu(), selecting, kMeasured}, own.spec), 4 * 8 * 5)
      << "each query token has output tiles of its own";
}

/// Any valid problem, with any combination of features.
DecodeProblem any_problem() {
  const auto sometimes = [](auto generator, auto otherwise) {
    return *rc::gen::inRange(0, 3) == 0 ? *generator : otherwise;
  };
  const int kv_heads = *rc::gen::element(1, 2, 3, 8, 32);
  DecodeProblem problem{.q_heads = kv_heads * *rc::gen::element(1, 2, 4, 5, 8, 16, 33, 64, 128),
                        .kv_heads = kv_heads,
                        .head_dim = 16 * *rc::gen::inRange(1, 33),
                        .dtype = *rc::gen::element(DType::bf16, DType::fp16),
                        .layout = *rc::gen::element(KvLayout::contiguous, KvLayout::strided),
                        .lse = *rc::gen::arbitrary<bool>(),
                        .pdl = *rc::gen::arbitrary<bool>()};
  Features& f = problem.features;
  f.page_size = sometimes(rc::gen::element(1, 3, 8, 16, 24, 64, 256, 1 << 20), 0);
  f.q_len = sometimes(rc::gen::inRange(1, 17), 1);
  f.ragged_q = sometimes(rc::gen::arbitrary<bool>(), false);
  f.window = sometimes(rc::gen::element(1, 100, 4096, 1 << 30), 0);
  if (f.q_len > 1 && f.window == 0) f.mask = *rc::gen::element(QueryMask::causal, QueryMask::tree, QueryMask::full);
  if (f.window > 0) f.sink_tokens = *rc::gen::element(0, 4, 128);
  f.spans = f.ragged_q && f.mask == QueryMask::causal && *rc::gen::arbitrary<bool>();
  f.sink_logits = sometimes(rc::gen::arbitrary<bool>(), false);
  f.soft_cap = sometimes(rc::gen::element(15.5, 30.0), 0.0);
  f.alibi = sometimes(rc::gen::arbitrary<bool>(), false);
  f.score = sometimes(rc::gen::just<std::string>("score * 2"), std::string());
  f.kv_format = sometimes(rc::gen::element(KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8), KvFormat::same);
  if (f.kv_format != KvFormat::same) f.kv_scale = *rc::gen::element(KvScale::tensor, KvScale::head, KvScale::token);
  f.v_head_dim = sometimes(rc::gen::map(rc::gen::inRange(1, 33), [](int n) { return 16 * n; }), 0);
  // Not every arch can convert to fp8.
  const bool appendable =
      f.kv_format == KvFormat::same || (f.kv_format == KvFormat::int8 && f.kv_scale != KvScale::token);
  f.append = appendable && sometimes(rc::gen::arbitrary<bool>(), false);
  f.rope = sometimes(rc::gen::element(Rope::half_split, Rope::interleaved), Rope::none);
  f.latent = sometimes(rc::gen::arbitrary<bool>(), false);
  if (f.latent) {
    f.v_head_dim = *rc::gen::element(64, 128, 144, 256, 512);
    problem.head_dim = f.v_head_dim + *rc::gen::element(16, 64, 128);
  }
  if (f.rope != Rope::none) f.rope_dim = *rc::gen::element(0, 16);
  f.batch_invariant = sometimes(rc::gen::arbitrary<bool>(), false);
  if (f.page_size > 0 && *rc::gen::inRange(0, 4) == 0) {
    f.selection_block = *rc::gen::element(1, 16, 64);
    f.selection_in_pool = *rc::gen::arbitrary<bool>();
    f.second_cache = f.kv_format == KvFormat::same && !f.batch_invariant && *rc::gen::arbitrary<bool>();
    f.window = f.sink_tokens = 0, f.ragged_q = f.spans = f.alibi = f.append = false, f.rope = Rope::none,
    f.rope_dim = 0;
    f.score.clear();
    if (f.mask == QueryMask::tree) f.mask = QueryMask::causal;
  }
  f.packed_kv = *rc::gen::inRange(0, 4) == 0;
  if (f.packed_kv && !validate(f)) f.packed_kv = false;
  return canonical(problem);
}

Shape any_shape() {
  Shape shape;
  shape.batch = *rc::gen::element(1, 2, 7, 64, 333);
  shape.longest_context = *rc::gen::inRange<std::int64_t>(1, 1 << 20);
  shape.total_context = *rc::gen::inRange<std::int64_t>(shape.longest_context, shape.batch * shape.longest_context + 1);
  return shape;
}

DeviceFacts any_gpu() {
  const auto arches = matrix_arches();
  return fictional_gpu(arches[*rc::gen::inRange<std::size_t>(0, arches.size())], *rc::gen::inRange(1, 200));
}

RC_GTEST_PROP(LookupFeatures, EveryValidProblemHasAValidDefaultOnEveryArch, ()) {
  const auto gpu = any_gpu();
  const auto problem = any_problem();
  const auto shape = any_shape();
  RC_ASSERT(validate(problem, shape).has_value());
  const auto configs = default_configs({gpu, problem, shape});
  RC_ASSERT(!configs.empty());
  for (const Config& config : configs) {
    if (const auto valid = validate(config.spec); !valid) RC_FAIL(to_json(problem) + ": " + valid.error().message);
    RC_ASSERT(config.spec.fixup == FixUp::ticket || layout_of(config.spec).has_large_partials);
    RC_ASSERT(config.spec.features == problem.features);
    RC_ASSERT(config.grid >= 1);
    RC_ASSERT(config.grid <= resident_grid(gpu, config.spec));
    RC_ASSERT(config_from_json(to_json(config)).value() == config);
  }
  const auto grids = useful_grids({gpu, problem, shape}, configs.front().spec, 2);
  RC_ASSERT(!grids.empty() && grids.front() >= 1);
  RC_ASSERT(grids.back() <= lean_tiles({fictional_gpu(), problem, shape}, configs.front().spec));
}

/// Without those that differ from the one before in their fix-up only.
std::vector<Config> but_for_fix_up(std::vector<Config> configs) {
  const auto last = std::unique(configs.begin(), configs.end(), [](const Config& a, Config b) {
    b.spec.fixup = a.spec.fixup;
    return a == b;
  });
  configs.erase(last, configs.end());
  return configs;
}

TEST(LookupFeatures, BehindADefaultKernelThatWaitsComesTheSameWithTickets) {
  const auto gpu = fictional_gpu({9, 0, true}, 132);
  DecodeProblem problem{.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  problem.features = {.page_size = 64, .q_len = 2, .v_head_dim = 512, .latent = true};
  const auto configs = default_configs({gpu, problem, {.batch = 3, .longest_context = 3406}});
  ASSERT_GE(configs.size(), 2u);
  EXPECT_EQ(configs[0].spec.fixup, FixUp::wait);
  EXPECT_EQ(configs[1].spec.fixup, FixUp::ticket);
  EXPECT_EQ(but_for_fix_up({configs[0], configs[1]}).size(), 1u);
}

TEST(LookupFeatures, LatentCachesOfBytesHaveConvertingKernelsOfFewerWarpsAndOthersBehindTheFirst) {
  const auto gpu = fictional_gpu({9, 0, true}, 132);
  DecodeProblem bytes{.q_heads = 16, .kv_heads = 1, .head_dim = 576};
  bytes.features = {.page_size = 64, .kv_format = KvFormat::fp8_e4m3, .v_head_dim = 512, .latent = true};
  for (const int q_len : {1, 4}) {
    bytes.features.q_len = q_len;
    const auto configs = but_for_fix_up(default_configs({gpu, bytes, {.batch = 4, .longest_context = 4096}}));
    ASSERT_EQ(configs.size(), 4u);
    EXPECT_TRUE(layout_of(configs[0].spec).converts_rows && configs[0].spec.warps == 8);
    EXPECT_EQ(layout_of(configs[0].spec).family == &kWgmmaRoles, q_len == 4);
    EXPECT_TRUE(layout_of(configs[1].spec).converts_rows && configs[1].spec.warps == 4);
    for (std::size_t i = 2; i < 4; ++i) EXPECT_NE(configs[i].spec.load, LoadPath::tensor);
  }
  bytes.features.kv_scale = KvScale::token;
  for (const Config& config : default_configs({gpu, bytes, {.batch = 4, .longest_context = 4096}}))
    EXPECT_NE(config.spec.load, LoadPath::tensor) << "it has no scales per token";
}

TEST(LookupFeatures, RowsWithAFormatOfTheirOwnHaveAKernelWithoutRolesBehindOneWithRoles) {
  const auto gpu = fictional_gpu({9, 0, true}, 132);
  DecodeProblem rows{.q_heads = 128, .kv_heads = 1, .head_dim = 576};
  rows.features = {.kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  for (const int page : {0, 1, 64}) {
    for (const int block : {0, 1, 64}) {
      rows.features.page_size = page, rows.features.selection_block = page > 0 ? block : 0;
      rows.q_heads = 128;
      auto configs = but_for_fix_up(default_configs({gpu, rows, {.batch = 4, .longest_context = 4096}}));
      ASSERT_EQ(configs.size(), 2u);
      EXPECT_EQ(layout_of(configs.front().spec).family, &kWgmmaRoles);
      EXPECT_NE(layout_of(configs.back().spec).family, &kWgmmaRoles);
      for (const Config& config : configs) EXPECT_TRUE(validate(config.spec)) << validate(config.spec).error().message;
      rows.q_heads = 16;
      configs = default_configs({gpu, rows, {.batch = 4, .longest_context = 4096}});
      ASSERT_FALSE(configs.empty());
      for (const Config& config : configs) {
        EXPECT_NE(layout_of(config.spec).family, &kWgmmaRoles) << "up to 16 query rows need no roles";
        EXPECT_TRUE(validate(config.spec)) << validate(config.spec).error().message;
      }
    }
  }
  const Config none = default_config({fictional_gpu({8, 0, false}, 108), rows, {.batch = 1, .longest_context = 64}});
  EXPECT_EQ(validate(none.spec).error().message, "KV format fp8_ds_mla on sm_80");
}

RC_GTEST_PROP(LookupFeatures, EveryAnswerIsAKernelOfItsProblemWhateverWasTuned, ()) {
  const auto gpu = any_gpu();
  std::vector<LayeredWinners::Entry> entries;
  const int count = *rc::gen::inRange(1, 8);
  for (int i = 0; i < count; ++i) {
    auto problem = any_problem();
    problem.pdl = problem.pdl && has_dependent_launch(gpu.arch);  // as in a database, where no other problem is tuned
    const auto shape = any_shape();
    entries.push_back(winner(problem, shape, default_config({gpu, problem, shape}), i + 1));
  }
  const auto table = WinnerTable::build(gpu, layered(entries));
  RC_ASSERT(table.skipped() == 0u);
  auto problem = any_problem();
  // Often these are the heads of a problem that was measured. Only latent heads hold a latent cache.
  const auto measured = problem_from_json(entries.front().winner.problem).value();
  if (measured.features.latent == problem.features.latent && *rc::gen::arbitrary<bool>()) {
    if (problem.features.latent) problem.features.v_head_dim = measured.features.v_head_dim;
    problem.q_heads = measured.q_heads, problem.kv_heads = measured.kv_heads, problem.head_dim = measured.head_dim;
    problem = canonical(problem);
  }
  const auto shape = any_shape();
  const Choice choice = table.find(problem, shape);
  if (const auto valid = validate(choice.config.spec); !valid) RC_FAIL(valid.error().message);
  const KernelSpec base = base_spec(gpu.arch, problem);
  RC_ASSERT(choice.config.spec.features == base.features);
  RC_ASSERT(choice.config.spec.head_dim == base.head_dim && choice.config.spec.group == base.group);
  RC_ASSERT(choice.config.grid >= 1);
  RC_ASSERT(choice.provenance == Provenance::exact ||
            choice.config.grid <= lean_tiles({fictional_gpu(), problem, shape}, choice.config.spec));
}

RC_GTEST_PROP(LookupFeatures, KeysTellProblemsApart, ()) {
  const auto problem = any_problem();
  auto other = *rc::gen::arbitrary<bool>() ? problem : any_problem();
  const auto key = make_lookup_key(problem, kMeasured), other_key = make_lookup_key(other, kMeasured);
  RC_ASSERT((key == other_key) == (problem == other));
  RC_ASSERT((hash(key) == hash(other_key)) == (problem == other));
  RC_ASSERT(key.words.back() == features_hash(problem.features));
  RC_ASSERT(is_plain_fast(problem.features) == is_plain(problem.features));
}

}  // namespace
}  // namespace leanattn
