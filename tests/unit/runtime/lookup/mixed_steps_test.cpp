// mixed_steps_test.cpp -- look-ups of steps with prefill: by their mix, and without a winner or a mix the default. What
// a mixed step has on the line is that of the schedule.
#include <gtest/gtest.h>

#include <vector>

#include "generator/families/family.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/mixed_line.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/shape_features.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

#include "templates/line/schedule.cuh"

const DecodeProblem kPrefill = canonical(
    {.q_heads = 32, .kv_heads = 8, .head_dim = 128, .features = {.page_size = 16, .q_len = 17, .ragged_q = true}});

/// `decodes` requests of one query token beside `chunks` that bring `tokens` each, at the end of their contexts.
Shape mixed(int decodes, int context, int chunks, int tokens, int chunk_context) {
  std::vector<int> lengths(static_cast<std::size_t>(decodes), context), query_tokens(lengths.size(), 1);
  lengths.resize(lengths.size() + static_cast<std::size_t>(chunks), chunk_context);
  query_tokens.resize(lengths.size(), tokens);
  return shape_of(kPrefill, {lengths, query_tokens});
}

/// The default kernel for prefill with other tunables, so that it can be told from the default.
Config shorter_steps(const Shape& shape) {
  Config config = default_config({fictional_gpu(), kPrefill, shape});
  config.spec.warp_tokens = 16, config.spec.tile = 64;
  EXPECT_TRUE(validate(config.spec));
  config.segment_cost = 7;
  return config;
}

const Shape kStep = mixed(64, 4096, 1, 2048, 8192);

TEST(MixedLookup, EachMixOfTheSameContextsHasAWinnerOfItsOwn) {
  Shape decodes = kStep, other = kStep;
  decodes.mix = {}, other.mix = {.query_tokens = 64 + 1024};
  const Config tuned = shorter_steps(kStep);
  const auto table = table_of({winner(kPrefill, kStep, tuned, 500)});
  const Choice choice = table.find(kPrefill, kStep);
  EXPECT_EQ(choice.provenance, Provenance::exact);
  EXPECT_EQ(choice.config, tuned);
  EXPECT_EQ(choice.tuned_shape, kStep);
  // Which mix of several the same limits describe, the look-up does not ask.
  Shape limits = kStep;
  limits.max_batch = 128, limits.mix = {.query_tokens = 64 + 2048};
  EXPECT_EQ(table.find(kPrefill, limits).provenance, Provenance::exact);
  EXPECT_NE(table.find(kPrefill, other).provenance, Provenance::exact);
  EXPECT_EQ(table.find(kPrefill, decodes).provenance, Provenance::fallback);
  EXPECT_EQ(table.find(kPrefill, decodes).config, default_config({fictional_gpu(), kPrefill, decodes}));
}

TEST(MixedLookup, AWinnerThatWasStoredWithoutAMixAnswersOnlyWhereNoneIsKnown) {
  Shape unknown = kStep;
  unknown.mix = {};
  const Config tuned = shorter_steps(unknown);
  const auto table = table_of({winner(kPrefill, unknown, tuned, 500)});
  EXPECT_EQ(table.find(kPrefill, unknown).config, tuned);
  const Choice choice = table.find(kPrefill, kStep);
  EXPECT_EQ(choice.config.spec, default_config({fictional_gpu(), kPrefill, kStep}).spec);
  EXPECT_EQ(choice.tuned_us, 0) << "it says nothing of the chunk's time";
}

TEST(MixedLookup, WithoutAWinnerTheDefaultAnswersWhereDecodesAreMostOfAStep) {
  for (const Shape& shape : {kStep, mixed(64, 8192, 2, 512, 8192), mixed(20, 30000, 1, 20, 30)}) {
    const Choice choice = table_of({}).find(kPrefill, shape);
    EXPECT_EQ(choice.provenance, Provenance::fallback);
    EXPECT_EQ(choice.config, default_config({fictional_gpu(), kPrefill, shape}));
    // Winners of decode say nothing of prefill.
    const auto decodes = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224), 12)});
    EXPECT_EQ(decodes.find(kPrefill, shape).config, choice.config);
  }
}

TEST(MixedLookup, WithoutWgmmaTheDefaultIsForWarpsWithRowsOfTheirOwn) {
  struct Expected {
    int head_dim, warps, ctas_per_sm, warp_tokens;
  };
  const auto expect = [](Arch arch, const Expected& e) {
    DeviceFacts gpu = fictional_gpu();
    gpu.arch = arch;
    DecodeProblem problem = kPrefill;
    problem.head_dim = e.head_dim;
    const Config config = default_config({gpu, problem, kStep});
    EXPECT_TRUE(validate(config.spec));
    EXPECT_EQ(&family_of(config.spec), &kMmaPrefill) << kernel_name(config.spec);
    EXPECT_EQ(config.spec.warps, e.warps) << kernel_name(config.spec);
    EXPECT_EQ(config.spec.ctas_per_sm, e.ctas_per_sm) << kernel_name(config.spec);
    EXPECT_EQ(config.spec.warp_tokens, e.warp_tokens) << kernel_name(config.spec);
    EXPECT_GT(config.segment_cost, 0) << "short prompts have many segments";
    EXPECT_EQ(config.grid, gpu.sm_count * e.ctas_per_sm);
    // What its warps do not do, others still have.
    problem.features.append = true;
    EXPECT_EQ(&family_of(default_config({gpu, problem, kStep}).spec), &kMma);
  };
  expect({8, 0}, {64, 4, 2, 64});
  expect({8, 0}, {128, 4, 2, 32});
  expect({8, 0}, {256, 8, 1, 32});
  expect({10, 0, true}, {128, 4, 2, 32});
  expect({10, 0, true}, {256, 4, 2, 32});
  for (const Arch arch : {Arch{8, 6}, Arch{8, 9}, Arch{12, 0, true}}) {  // with little shared memory
    expect(arch, {64, 4, 2, 64});
    expect(arch, {128, 8, 1, 64});
    expect(arch, {256, 4, 1, 32});
  }
  EXPECT_EQ(&family_of(default_config({fictional_gpu(), kPrefill, kStep}).spec), &kWgmmaPrefill);
}

TEST(MixedLookup, TheNearestMixGivesItsKernelAndTheGridIsThatOfTheStep) {
  const Shape prompts = mixed(0, 1, 2, 8192, 8192), few = mixed(2, 100, 1, 40, 60);
  const Config fast = shorter_steps(kStep), slow = default_config({fictional_gpu(), kPrefill, prompts});
  const auto table = table_of({winner(kPrefill, kStep, fast, 100), winner(kPrefill, prompts, slow, 4000)});
  const Choice near = table.find(kPrefill, mixed(70, 4200, 1, 2000, 8000));
  EXPECT_EQ(near.provenance, Provenance::bucket);
  EXPECT_EQ(near.tuned_shape, kStep);
  EXPECT_EQ(near.config.spec, fast.spec);
  EXPECT_EQ(near.config.grid, resident_grid(fictional_gpu(), fast.spec));
  EXPECT_GT(near.predicted_us, 0);
  EXPECT_EQ(table.find(kPrefill, mixed(0, 1, 1, 16384, 16384)).tuned_shape, prompts);
  const Choice small = table.find(kPrefill, few);
  EXPECT_EQ(small.provenance, Provenance::nearest);
  EXPECT_LE(small.config.grid, lean_tiles({fictional_gpu(), kPrefill, few}, small.config.spec));
  EXPECT_LT(small.config.grid, resident_grid(fictional_gpu(), small.config.spec));
  // Also of a problem that streams KV alike.
  DecodeProblem with_lse = kPrefill;
  with_lse.lse = true;
  const Choice taken = table.find(with_lse, kStep);
  EXPECT_TRUE(taken.taken_over);
  EXPECT_TRUE(taken.config.spec.lse);
  EXPECT_EQ(taken.config.segment_cost, fast.segment_cost);
}

TEST(MixedLookup, WhereTheWinnerDoesNotRunThePredictedAndTheDefaultsFollow) {
  const Config tuned = shorter_steps(kStep);
  const auto order = table_of({winner(kPrefill, kStep, tuned, 500)}).launch_order(kPrefill, kStep);
  ASSERT_GE(order.size(), 2u);
  EXPECT_EQ(order[0].config, tuned);
  EXPECT_EQ(order[1].config.spec, default_config({fictional_gpu(), kPrefill, kStep}).spec);
}

TEST(MixedLookup, OutputTilesThatAreKnownToBeAlikeAreNotCut) {
  // 8 chunks of 64 tokens have two row blocks each: 128 output tiles with 8 KV heads, on 132 SMs.
  const auto table = table_of({});
  EXPECT_EQ(table.find(kPrefill, mixed(0, 1, 8, 64, 16384)).config.grid, 128);
  // Of chunks that do not fill their row blocks, and beside decodes, nobody knows how many there are.
  EXPECT_EQ(table.find(kPrefill, mixed(0, 1, 8, 60, 16384)).config.grid, fictional_gpu().sm_count);
  EXPECT_EQ(table.find(kPrefill, mixed(1, 16384, 8, 64, 16384)).config.grid, fictional_gpu().sm_count);
}

TEST(MixedLookup, PromptsThatFillThemHaveThreeWarpgroups) {
  const auto table = table_of({});
  const auto warps = [&](const Shape& shape) { return table.find(kPrefill, shape).config.spec.warps; };
  EXPECT_EQ(warps(mixed(0, 1, 16, 1024, 1024)), 12);
  EXPECT_EQ(warps(mixed(0, 1, 4, 2048, 2048)), 12);
  EXPECT_EQ(warps(mixed(0, 1, 8, 64, 16384)), 8) << "256 rows are two output tiles of 128, and of 192";
  EXPECT_EQ(warps(kStep), 8) << "decodes are most of it";
}

TEST(MixedLookup, DistancesAreOctavesOfWhatMixesDifferIn) {
  const DeviceFacts device = fictional_gpu();
  const auto at = [&](const Shape& shape) { return shape_features_of({device, kPrefill, shape}); };
  EXPECT_EQ(distance(at(kStep), at(kStep)), 0);
  Shape unknown = kStep;
  unknown.mix = {};
  EXPECT_TRUE(std::isinf(distance(at(kStep), at(unknown))));
  const Shape more = mixed(64, 4096, 1, 2100, 8192), twice = mixed(128, 4096, 2, 2048, 8192),
              other = mixed(0, 1, 1, 2048, 8192);
  EXPECT_LT(distance(at(kStep), at(more)), 0.1);
  EXPECT_NEAR(distance(at(kStep), at(twice)), 1, 0.1);
  EXPECT_GT(distance(at(kStep), at(other)), 0.9);
}

TEST(MixedLine, HasTheOutputTilesAndLeanTilesOfTheSchedule) {
  const DeviceFacts device = fictional_gpu();
  const int group = 4, kv_heads = 8;
  struct Chunk {
    int count, tokens, context;
  };
  for (const auto& [count, tokens, context] :
       {Chunk{1, 2048, 8192}, Chunk{2, 8192, 8192}, Chunk{1, 512, 131072}, Chunk{8, 17, 10000}, Chunk{3, 129, 4093}}) {
    const DecodeStep step(device, kPrefill, mixed(64, 4000, count, tokens, context));
    const KernelSpec spec = default_config(step).spec;
    const KernelLayout layout = layout_of(spec);
    ASSERT_EQ(layout.rows, 128);
    const MixedLine line = mixed_line(step, spec, layout);
    EXPECT_EQ(line.decodes.output_tiles, 64 * kv_heads);
    EXPECT_EQ(line.decodes.lean_tiles, 64 * kv_heads * lean_tiles_of(4000, spec.tile));
    EXPECT_EQ(line.decodes.rows, group);
    const auto blocks = static_cast<int>(lean_row_blocks(tokens * group, layout.rows));
    std::int64_t tiles = 0;
    for (int block = 0; block < blocks; ++block)
      tiles += lean_tiles_of(lean_block_end(context - tokens, tokens, block, layout.rows, group), spec.tile);
    EXPECT_NEAR(static_cast<double>(line.chunks.output_tiles), count * kv_heads * blocks,
                0.2 * count * kv_heads * blocks);
    EXPECT_NEAR(static_cast<double>(line.chunks.lean_tiles), static_cast<double>(count * kv_heads * tiles),
                0.2 * static_cast<double>(count * kv_heads * tiles));
    EXPECT_EQ(line.output_tiles(), output_tiles(step, spec));
    EXPECT_EQ(line.lean_tiles(), lean_tiles(step, spec));
  }
}

TEST(MixedModel, WorkGrowsWithPairsRowsAndDecodes) {
  const DeviceFacts device = fictional_gpu();
  const auto us = [&](const Shape& shape) {
    const Config config = default_config({device, kPrefill, shape});
    return predict_us(default_parameters(device), {device, kPrefill, shape}, config,
                      guess_resident(device, config.spec));
  };
  const double chunk = us(mixed(0, 1, 1, 2048, 8192)), decodes_beside = us(kStep);
  EXPECT_GT(decodes_beside, chunk + 50);
  EXPECT_NEAR(us(mixed(0, 1, 1, 2048, 16384)) / chunk, (16384 - 1024.) / (8192 - 1024), 0.2);
  EXPECT_NEAR(us(mixed(0, 1, 2, 2048, 8192)) / chunk, 2, 0.15);
  // Fewer CTAs take longer, and a launch of one CTA has nothing to merge.
  const DecodeStep step(device, kPrefill, kStep);
  const Config whole = default_config(step);
  Config half = whole, one = whole;
  half.grid = 66, one.grid = 1;
  const auto modelled = [&](const Config& config) {
    return modelled_time(default_parameters(device), step, config, 1);
  };
  EXPECT_NEAR(modelled(half).us() / modelled(whole).us(), 2, 0.2);
  EXPECT_EQ(modelled(one).merge, 0);
  EXPECT_GT(modelled(whole).merge, 0);
}

TEST(MixedModel, AChunkTakesLessWhereWarpsShareWhatTheyRead) {
  DeviceFacts gpu = fictional_gpu();
  gpu.arch = {10, 0, true};
  const DecodeStep step{gpu, kPrefill, mixed(0, 1, 1, 2048, 8192)};
  const ModelParameters parameters = default_parameters(gpu);
  const auto us = [&](const KernelSpec& spec) {
    EXPECT_TRUE(validate(spec)) << kernel_name(spec);
    const int resident = guess_resident(gpu, spec);
    return LaunchModel(parameters, step, spec, resident).with_grid(resident_grid(gpu, spec)).us();
  };
  const KernelSpec shared = default_config(step).spec;
  KernelSpec apart = shared, eight = shared;
  apart.load = LoadPath::bulk, apart.warp_tokens = 16;
  ASSERT_EQ(&family_of(apart), &kMma);
  EXPECT_LT(2 * us(shared), us(apart)) << "16 query rows a CTA instead of 128";
  eight.warps = 8, eight.ctas_per_sm = 1;
  EXPECT_LT(us(eight), 2 * us(shared));
  EXPECT_LT(us(shared), 2 * us(eight));
}

TEST(MixedModel, DecodesBesideAChunkTakeLittleMoreWhereWarpsOfTheirOwnHaveThem) {
  const DeviceFacts device = fictional_gpu();
  const auto us = [&](const Shape& shape, int warps) {
    Config config = default_config({device, kPrefill, shape});
    config.spec.warps = warps;
    if (warps == 12) config.spec.warp_tokens = 16, config.spec.tile = 64;
    EXPECT_TRUE(validate(config.spec));
    return predict_us(default_parameters(device), {device, kPrefill, shape}, config, 1);
  };
  const Shape chunk = mixed(0, 1, 1, 2048, 8192), beside = mixed(16, 4096, 1, 2048, 8192);
  const double apart = us(beside, 12) - us(chunk, 12), together = us(beside, 8) - us(chunk, 8);
  EXPECT_GT(apart, 0);
  EXPECT_LT(apart, together / 2);
}

}  // namespace
}  // namespace leanattn
