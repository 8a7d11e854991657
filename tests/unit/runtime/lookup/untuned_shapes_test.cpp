// untuned_shapes_test.cpp -- what look-ups answer for shapes and problems that nobody tuned: the cases that were once
// answered badly on an H200, and what holds for drawn ones.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "generator/kernel_layout.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

DeviceFacts h200() {
  DeviceFacts device = fictional_gpu();
  device.memory_bytes = 140ll << 30;
  return device;
}

// ---- Latent caches, as measured on an H200 ----

DecodeProblem latent_problem(int heads, int q_len = 1) {
  DecodeProblem problem{.q_heads = heads, .kv_heads = 1, .head_dim = 576};
  problem.features.page_size = 64, problem.features.latent = true, problem.features.v_head_dim = 512;
  problem.features.q_len = q_len;
  return problem;
}

LayeredWinners::Entry latent_winner(int heads, int q_len, const Shape& shape, FixUp fixup, int tile, int warps,
                                    int stages, std::int64_t grid, double us) {
  const DecodeProblem problem = latent_problem(heads, q_len);
  KernelSpec spec = base_spec({9, 0, true}, problem);
  spec.load = LoadPath::tensor, spec.fixup = fixup, spec.tile = tile, spec.warps = warps, spec.warp_tokens = 16;
  spec.stages = stages, spec.ctas_per_sm = 1;
  return winner(problem, shape, {spec, grid}, us);
}

/// The winners of the fixed steps, as they were tuned.
WinnerTable latent_table() {
  constexpr FixUp kTicket = FixUp::ticket, kWait = FixUp::wait;
  const auto of = [](int batch, std::int64_t context) { return Shape{.batch = batch, .longest_context = context}; };
  WinnerTable table =
      WinnerTable::build(h200(), layered({latent_winner(128, 1, of(128, 4096), kTicket, 128, 8, 2, 128, 269.7),
                                          latent_winner(128, 1, of(64, 16384), kTicket, 64, 8, 2, 128, 523.8),
                                          latent_winner(128, 2, of(32, 8192), kWait, 64, 8, 2, 128, 257.0),
                                          latent_winner(128, 1, of(8, 131072), kWait, 128, 8, 2, 128, 508.9),
                                          latent_winner(128, 1, of(16, 4096), kWait, 128, 8, 2, 128, 61.1),
                                          latent_winner(128, 1, of(1, 1024), kWait, 64, 4, 1, 128, 9.8),
                                          latent_winner(128, 1, of(1, 8192), kWait, 128, 4, 2, 128, 19.8),
                                          latent_winner(128, 1, of(1, 65536), kWait, 128, 8, 2, 128, 57.9),
                                          latent_winner(64, 1, of(64, 8192), kTicket, 128, 8, 2, 128, 184.0),
                                          latent_winner(32, 1, of(64, 8192), kTicket, 128, 8, 2, 128, 165.6),
                                          latent_winner(16, 1, of(128, 4096), kTicket, 128, 4, 2, 128, 144.7),
                                          latent_winner(16, 1, of(128, 1024), kTicket, 128, 4, 2, 128, 43.5),
                                          latent_winner(8, 1, of(128, 4096), kTicket, 128, 4, 2, 128, 142.3),
                                          latent_winner(16, 1, of(32, 32768), kWait, 128, 4, 2, 128, 284.6),
                                          latent_winner(16, 1, of(16, 4096), kWait, 256, 4, 2, 128, 29.7),
                                          latent_winner(16, 1, of(1, 1024), kWait, 64, 4, 1, 16, 9.1),
                                          latent_winner(16, 1, of(1, 8192), kWait, 128, 4, 2, 64, 11.5),
                                          latent_winner(16, 1, of(1, 65536), kWait, 128, 4, 2, 128, 30.4)}));
  EXPECT_EQ(table.find(latent_problem(16), of(1, 1024)).provenance, Provenance::exact);
  return table;
}

TEST(UntunedShapes, WinnersOfLatentCachesSayNothingOfCachesOfBytes) {
  const WinnerTable table = latent_table();
  const Shape shape{.batch = 16, .longest_context = 4096};
  DecodeProblem bytes = latent_problem(16);
  EXPECT_NE(table.find(latent_problem(32), shape).provenance, Provenance::fallback) << "they do of other heads";
  bytes.features.kv_format = KvFormat::fp8_e4m3;
  EXPECT_EQ(table.find(bytes, shape).provenance, Provenance::fallback);
  EXPECT_EQ(table.find(bytes, shape).config.spec.features, bytes.features);
}

struct LatentStep {
  int batch, heads, q_len;
  std::int64_t context;
};

TEST(UntunedShapes, StepsOfLatentCachesFillTheGpuAndShareTheirMerges) {
  constexpr LatentStep kSteps[] = {
      {5, 16, 2, 14852},   {1, 128, 1, 2506}, {8, 8, 1, 451},    {8, 128, 1, 94436}, {21, 128, 1, 9371},
      {7, 16, 1, 8249},    {2, 64, 1, 7466},  {16, 128, 1, 487}, {16, 16, 1, 470},   {32, 128, 1, 12170},
      {11, 128, 2, 32656}, {10, 64, 1, 1661}, {47, 16, 1, 9215}, {13, 32, 2, 1543},  {116, 8, 4, 3476},
      {39, 16, 2, 3554},   {18, 128, 2, 393}, {2, 32, 2, 19802}, {1, 32, 4, 125547}, {5, 64, 1, 730},
      {2, 8, 1, 30874},    {2, 16, 2, 2934},  {69, 8, 1, 4219},  {14, 16, 2, 56106},
  };
  const WinnerTable table = latent_table();
  const DeviceFacts device = h200();
  for (const LatentStep& step : kSteps) {
    const DecodeProblem problem = latent_problem(step.heads, step.q_len);
    const Shape shape{.batch = step.batch, .longest_context = step.context};
    const Choice choice = table.find(problem, shape);
    const KernelSpec& spec = choice.config.spec;
    SCOPED_TRACE(to_json(problem) + " " + to_json(shape) + " " + to_json(choice.config));
    EXPECT_EQ(spec.load, LoadPath::tensor);
    // Half of the SMs use all of the memory's bandwidth.
    EXPECT_GE(choice.config.grid,
              std::min<std::int64_t>(lean_tiles({device, problem, shape}, spec) / 2, device.sm_count / 2 - 2));
    // A partial of 64 rows takes one CTA 6 us to merge, so many of them are merged by all who made them.
    const std::int64_t outputs = output_tiles({device, problem, shape}, spec);
    if (layout_of(spec).has_large_partials && choice.config.grid > 4 * outputs) {
      EXPECT_EQ(spec.fixup, FixUp::wait);
    }
    EXPECT_GT(choice.predicted_us, 0);
  }
}

TEST(UntunedShapes, SeveralQueryTokensRestOnTheWinnersOfOne) {
  const Choice choice = latent_table().find(latent_problem(16, 2), {.batch = 2, .longest_context = 2934});
  EXPECT_EQ(choice.provenance, Provenance::nearest) << "and not the fallback, because the kernels have other rows";
}

// ---- Many short requests ----

TEST(UntunedShapes, ThousandsOfShortRequestsHaveSeveralCtasOnAnSm) {
  // Llama-3-8B's heads, tuned for long contexts only.
  const DecodeProblem problem;
  KernelSpec spec = base_spec({9, 0, true}, problem);
  spec.load = LoadPath::tensor, spec.fixup = FixUp::ticket;
  spec.tile = 128, spec.warps = 8, spec.warp_tokens = 16, spec.stages = 4, spec.ctas_per_sm = 1;
  const WinnerTable table =
      WinnerTable::build(h200(), layered({winner(problem, {.batch = 64, .longest_context = 4096}, {spec, 128}, 236.4),
                                          winner(problem, {.batch = 1, .longest_context = 131072}, {spec, 128}, 121)}));
  const Shape shape{.batch = 4096, .longest_context = 100};
  const Choice choice = table.find(problem, shape);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_GT(guess_resident(h200(), choice.config.spec), 1);
  EXPECT_LT(choice.predicted_us, 600) << "one CTA an SM takes 718 us on an H200";
  EXPECT_EQ(table.find(problem, {.batch = 60, .longest_context = 4000}).config.spec, spec) << "near what was tuned";
}

// ---- What a launch reads ----

constexpr double kReread = 0.4;

/// Microseconds at the memory's rate.
double memory_us(const DecodeProblem& problem, const Shape& shape, const KernelSpec& spec, std::int64_t grid) {
  ModelParameters parameters = default_parameters(h200());
  parameters.costs = {.reread = kReread, .sm_rate = 1e9};  // nothing takes time beside it
  const Config config{.spec = spec, .grid = grid};
  return modelled_time(parameters, {h200(), problem, shape}, config, guess_resident(h200(), spec)).stream;
}

TEST(UntunedShapes, TensorCopiesReadWholeRunsOfPages) {
  DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  problem.features.page_size = 64;
  const Shape short_contexts{.batch = 9, .longest_context = 26}, whole_pages{.batch = 9, .longest_context = 64};
  KernelSpec spec = base_spec(h200().arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64;
  EXPECT_DOUBLE_EQ(memory_us(problem, short_contexts, spec, 72), memory_us(problem, whole_pages, spec, 72));
  KernelSpec by_rows = spec;
  by_rows.load = LoadPath::cp_async;
  EXPECT_LT(memory_us(problem, short_contexts, by_rows, 72), 0.5 * memory_us(problem, whole_pages, by_rows, 72));
  problem.features.page_size = 1;  // rows are gathered one by one
  spec.features.page_size = 1;
  EXPECT_LT(memory_us(problem, short_contexts, spec, 72), 0.5 * memory_us(problem, whole_pages, spec, 72));
}

/// Look-ups with one winner, 1 x 8192 tokens, which took `factor` times what the default costs expect.
WinnerTable with_winner(double factor) {
  const DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  const Shape tuned{.batch = 1, .longest_context = 8192};
  const Config config = default_config({h200(), problem, tuned});
  const double us =
      predict_us(default_parameters(h200()), {h200(), problem, tuned}, config, guess_resident(h200(), config.spec));
  return WinnerTable::build(h200(), layered({winner(problem, tuned, config, factor * us)}));
}

TEST(UntunedShapes, ExpectedTimesKnowHowFarTheGpuIsOffAndChoicesDoNot) {
  const DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  const WinnerTable as_expected = with_winner(1.0), slower = with_winner(1.5);
  const Shape far{.batch = 256, .longest_context = 600};
  const Choice a = as_expected.find(problem, far), b = slower.find(problem, far);
  EXPECT_EQ(a.config, b.config);
  EXPECT_NEAR(b.predicted_us / a.predicted_us, 1.5, 0.01);
}

TEST(UntunedShapes, ShortContextsAreRoundedByAFewTokensOnly) {
  const DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  const WinnerTable table = with_winner(1.0);
  const auto us = [&](std::int64_t context) {
    return table.find(problem, {.batch = 2000, .longest_context = context}).predicted_us;
  };
  EXPECT_EQ(us(97), us(100)) << "one answer serves contexts that differ by a few percent";
  EXPECT_LT(us(100), 0.95 * us(112));
  EXPECT_LT(us(20), us(32));
}

TEST(UntunedShapes, ContextsOfARaggedBatchEndAnywhereInACopy) {
  // Load path tensor copies steps of 64 tokens of a dense cache, and runs of 16 tokens of pages of 16.
  const DecodeProblem dense{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  DecodeProblem paged = dense;
  paged.features.page_size = 16;
  const Shape uniform{.batch = 1000, .longest_context = 160};
  const Shape ragged{.batch = 1000, .longest_context = 600, .total_context = 160 * 1000};
  const auto more = [&](const DecodeProblem& problem, LoadPath load) {
    KernelSpec spec = base_spec(h200().arch, problem);
    spec.load = load, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64;
    return memory_us(problem, ragged, spec, 264) / memory_us(problem, uniform, spec, 264) - 1;
  };
  EXPECT_NEAR(more(dense, LoadPath::bulk), 0, 0.01);
  EXPECT_NEAR(more(dense, LoadPath::tensor), 31.5 / 160, 0.02);
  EXPECT_NEAR(more(paged, LoadPath::tensor), 7.5 / 160, 0.02);
}

TEST(UntunedShapes, RowBlocksReadFromMemoryOnceWhereTheyAreTogether) {
  // 19 query rows of a KV head are two row blocks of the mma family.
  const DecodeProblem problem{.q_heads = 95, .kv_heads = 5, .head_dim = 128};
  const Shape shape{.batch = 33, .longest_context = 86400};
  KernelSpec spec = base_spec(h200().arch, problem);
  spec.load = LoadPath::cp_async, spec.warps = 2, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 32;
  spec.ctas_per_sm = 4;
  ASSERT_EQ(layout_of(spec).row_blocks, 2);
  const double rate = default_parameters(h200()).memory_rate;
  const auto once = [&](const Shape& of) { return static_cast<double>(kv_bytes(problem, of)) / rate; };
  const auto rows = [&](const Shape& of) { return of.batch * problem.q_heads * 2.0 * 2 * problem.head_dim / rate; };
  const std::int64_t outputs = output_tiles({h200(), problem, shape}, spec);
  // With a CTA for each output tile both blocks of a head go on at the same time. Ranges of other lengths take them
  // apart, by more than L2 holds.
  EXPECT_NEAR(memory_us(problem, shape, spec, outputs), (1 + kReread) * once(shape) + rows(shape), 1e-6);
  EXPECT_NEAR(memory_us(problem, shape, spec, 264), 2 * once(shape) + rows(shape), 1e-6);
  // What all CTAs read of short contexts fits L2, however ranges are cut.
  const Shape shorter{.batch = 33, .longest_context = 160};
  for (const std::int64_t grid : {132, 264})
    EXPECT_NEAR(memory_us(problem, shorter, spec, grid), (1 + kReread) * once(shorter) + rows(shorter), 1e-6) << grid;
}

TEST(UntunedShapes, ManyQueryRowsCountBesideShortContexts) {
  // 316 x 19 tokens of 76 heads of 256 columns on one KV head: q and O have four times as many bytes as K and V. A
  // segment of load path tensor takes several microseconds for its rows, whether a CTA has many or is one of many.
  const DecodeProblem many{.q_heads = 76, .kv_heads = 1, .head_dim = 256},
      few{.q_heads = 8, .kv_heads = 1, .head_dim = 256};
  const Shape shape{.batch = 316, .longest_context = 19};
  const auto us = [&](const DecodeProblem& problem, std::int64_t grid) {
    KernelSpec spec = base_spec(h200().arch, problem);
    spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64;
    return predict_us(default_parameters(h200()), {h200(), problem, shape}, {spec, grid}, 1);
  };
  for (const std::int64_t grid : {128, 316}) EXPECT_GT(us(many, grid), 2 * us(few, grid)) << grid;
  KernelSpec spec = base_spec(h200().arch, many);
  EXPECT_GT(memory_us(many, shape, spec, 316), 3 * memory_us(few, shape, base_spec(h200().arch, few), 316));
}

// ---- Drawn problems and shapes ----

DecodeProblem common_problem() {
  DecodeProblem problem;
  problem.kv_heads = *rc::gen::element(1, 2, 4, 5, 8, 16, 32);
  const int group = *rc::gen::element(1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 64, 71, 128);
  problem.head_dim = *rc::gen::element(64, 80, 96, 128, 192, 256, 512);
  Features& features = problem.features;
  if (*rc::gen::inRange(0, 4) == 0) {
    problem.kv_heads = 1, problem.head_dim = 576, features.latent = true, features.v_head_dim = 512;
  }
  problem.q_heads = problem.kv_heads * group;
  features.page_size = *rc::gen::element(0, 0, 16, 64);
  features.q_len = *rc::gen::element(1, 1, 1, 2, 4);
  if (*rc::gen::inRange(0, 4) == 0) features.kv_format = KvFormat::fp8_e4m3;
  if (*rc::gen::inRange(0, 6) == 0) features.context_parallel = 2;
  problem.pdl = *rc::gen::arbitrary<bool>();
  return canonical(problem);
}

Shape common_shape() {
  const auto octaves = [](int from, int to) { return std::exp2(*rc::gen::inRange(100 * from, 100 * to + 1) / 100.0); };
  Shape shape{.batch = static_cast<int>(octaves(0, 12)), .longest_context = static_cast<std::int64_t>(octaves(4, 20))};
  if (*rc::gen::inRange(0, 4) == 0) {
    const std::int64_t whole = shape.batch * shape.longest_context;
    shape.total_context = *rc::gen::inRange<std::int64_t>(shape.longest_context, whole + 1);
  }
  return shape;
}

/// Winners of some problems near this one, of which many have grids that suit no other shape.
LayeredWinners any_winners(const DeviceFacts& device, const DecodeProblem& problem) {
  std::vector<LayeredWinners::Entry> entries;
  const int count = *rc::gen::inRange(0, 10);
  for (int i = 0; i < count; ++i) {
    DecodeProblem tuned = *rc::gen::inRange(0, 3) == 0 ? common_problem() : problem;
    if (*rc::gen::arbitrary<bool>()) tuned.pdl = !tuned.pdl;
    const Shape shape = common_shape();
    const auto kernels = usual_kernels(device, tuned);
    Config config{.spec = kernels[*rc::gen::inRange<std::size_t>(0, kernels.size())]};
    const auto grids = useful_grids({device, tuned, shape}, config.spec, config.spec.ctas_per_sm);
    config.grid = grids[*rc::gen::inRange<std::size_t>(0, grids.size())];
    const double us =
        predict_us(default_parameters(device), {device, tuned, shape}, config, guess_resident(device, config.spec));
    entries.push_back(winner(tuned, shape, config, us * *rc::gen::element(0.7, 1.0, 1.4)));
  }
  return layered(entries);
}

RC_GTEST_PROP(UntunedShapes, EveryAnswerIsAValidLaunchThatKeepsTheGpuBusy, ()) {
  const DeviceFacts device = h200();
  const DecodeProblem problem = common_problem();
  const Shape shape = common_shape();
  if (!validate(problem, shape)) RC_DISCARD("no such problem");
  const WinnerTable table = WinnerTable::build(device, any_winners(device, problem));
  const Choice choice = table.find(problem, shape);
  RC_PRE(choice.provenance != Provenance::exact);
  const auto& [spec, grid, segment_cost, promotion] = choice.config;
  RC_LOG() << to_json(problem) << to_json(shape) << to_json(choice.config) << to_string(choice.provenance) << "\n";
  const auto valid = validate(spec);
  if (!valid) RC_FAIL(valid.error().message);
  RC_ASSERT(config_from_json(to_json(choice.config)).value() == choice.config);
  RC_ASSERT(spec.features == base_spec(device.arch, problem).features);
  RC_ASSERT(problem.pdl || !spec.pdl);
  RC_ASSERT(spec.group * problem.kv_heads == problem.q_heads);
  const std::int64_t tiles = lean_tiles({device, problem, shape}, spec);
  RC_ASSERT(grid >= 1 && grid <= std::min(tiles, kMostCtas));
  if (waits(spec)) RC_ASSERT(grid <= resident_grid(device, spec));
  RC_ASSERT(shape.total_context != 0 || segment_cost == 0);
  // Less than half of the SMs use all of the memory's bandwidth, and 1 MiB is what one of them streams in 14 us.
  const std::int64_t wanted = std::min<std::int64_t>(device.sm_count * 2 / 5, kv_bytes(problem, shape) / (1 << 20));
  RC_ASSERT(grid >= std::min(tiles, wanted));
}

RC_GTEST_PROP(UntunedShapes, AnAnswerIsAlwaysTheSame, ()) {
  const DeviceFacts device = h200();
  const DecodeProblem problem = common_problem();
  const Shape shape = common_shape();
  if (!validate(problem, shape)) RC_DISCARD("no such problem");
  LayeredWinners winners = any_winners(device, problem);
  const Choice first = WinnerTable::build(device, winners).find(problem, shape);
  const WinnerTable table = WinnerTable::build(device, winners);
  table.find(common_problem(), common_shape());
  const Choice again = table.find(problem, shape);
  RC_ASSERT(again.config == first.config && again.provenance == first.provenance);
  RC_ASSERT(again.predicted_us == first.predicted_us);
}

TEST(UntunedShapes, BytesThatBecomeOperandsAndRowsThatAreCopiedOneByOneTakeTime) {
  // One CTA, whose steps depend on each other.
  const Shape shape{.batch = 1, .longest_context = 65536};
  const auto us = [&](LoadPath load, const Features& features) {
    DecodeProblem problem{.q_heads = 4, .kv_heads = 1, .head_dim = 128};
    problem.features = features;
    KernelSpec spec = base_spec(h200().arch, problem);
    spec.load = load, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 2, spec.tile = 64;
    EXPECT_TRUE(validate(spec)) << kernel_name(spec);
    return predict_us(default_parameters(h200()), {h200(), problem, shape}, {.spec = spec, .grid = 1},
                      guess_resident(h200(), spec));
  };
  EXPECT_GT(us(LoadPath::cp_async, {.kv_format = KvFormat::fp8_e4m3}), us(LoadPath::cp_async, {}))
      << "of half the bytes";
  for (const int page_size : {1, 8}) {
    EXPECT_GT(us(LoadPath::bulk, {.page_size = page_size}), 1.5 * us(LoadPath::bulk, {.page_size = 16})) << page_size;
  }
  EXPECT_DOUBLE_EQ(us(LoadPath::cp_async, {.page_size = 8}), us(LoadPath::cp_async, {.page_size = 16}));
  EXPECT_GT(us(LoadPath::cp_async, {.page_size = 1}), 1.2 * us(LoadPath::cp_async, {.page_size = 16}));
}

RC_GTEST_PROP(UsualKernels, KeepTheirTunablesInALookUp, ()) {
  const DecodeProblem problem = common_problem();
  RC_PRE(validate(problem).has_value());
  const DeviceFacts device = h200();
  for (const KernelSpec& kernel : usual_kernels(device, problem)) {
    const auto kept = with_tunables_of(base_spec(device.arch, problem), kernel);
    RC_ASSERT(kept.has_value());
    RC_ASSERT(*kept == kernel);
  }
}

TEST(UsualKernels, RegistersOfVectorAndWideKernelsAreGuessed) {
  const auto resident = [](int head_dim, int group, LoadPath load, int warps) {
    KernelSpec spec = base_spec(h200().arch, {.q_heads = group, .kv_heads = 1, .head_dim = head_dim});
    spec.load = load, spec.warps = warps, spec.warp_tokens = 16, spec.stages = 1, spec.tile = 128, spec.ctas_per_sm = 1;
    EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
    return guess_resident(h200(), spec);
  };
  // Each as with the registers that NVRTC 13.0 gives: 127, 152, 206 and 170.
  EXPECT_EQ(resident(64, 1, LoadPath::vector, 8), 2);
  EXPECT_EQ(resident(64, 2, LoadPath::vector, 8), 1);
  EXPECT_EQ(resident(256, 29, LoadPath::tensor, 4), 1);
  EXPECT_EQ(resident(256, 20, LoadPath::tensor, 4), 1);
}

TEST(UsualKernels, ThatGatherRowsAreTakenForAsManyCtasAsAnSmHolds) {
  DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  problem.features.page_size = 1;
  KernelSpec spec = base_spec(h200().arch, problem);
  spec.load = LoadPath::tensor, spec.warps = 4, spec.warp_tokens = 16, spec.stages = 3, spec.tile = 64;
  EXPECT_EQ(guess_resident(h200(), spec), 1);  // of 132 registers and 256 threads, as NVRTC 13.0 makes it
  spec.ctas_per_sm = 2;
  EXPECT_EQ(guess_resident(h200(), spec), 2);
  EXPECT_EQ(with_tunables_of(base_spec(h200().arch, problem), spec).value(), spec);
}

RC_GTEST_PROP(UsualKernels, AreValidDistinctAndBeginWithTheDefault, ()) {
  const DeviceFacts device = h200();
  const DecodeProblem problem = common_problem();
  RC_PRE(validate(problem).has_value());
  const auto kernels = usual_kernels(device, problem);
  RC_ASSERT(!kernels.empty() && kernels.size() <= 20u);
  KernelSpec usual = default_config({device, problem, {}}).spec;
  usual.fixup = kernels.front().fixup;
  RC_ASSERT(kernels.front() == usual);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const auto valid = validate(kernels[i]);
    if (!valid) RC_FAIL(valid.error().message);
    RC_ASSERT(std::find(kernels.begin(), kernels.begin() + static_cast<std::ptrdiff_t>(i), kernels[i]) ==
              kernels.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace
}  // namespace leanattn
