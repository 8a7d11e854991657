// winner_table_test.cpp -- the answers of look-ups, from exact to fallback, and what all of them have in common.
#include "runtime/lookup/winner_table.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/key.hpp"
#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"
#include "runtime/lookup/usual_kernels.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

TEST(Lookup, AMeasuredShapeGetsItsWinnerUnchanged) {
  const Config config = tuned_config(kLlama, 224);
  const Choice choice = table_of({winner(kLlama, kMeasured, config, 12.5, "cold", "site")}).find(kLlama, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::exact);
  EXPECT_EQ(choice.config, config);
  EXPECT_EQ(choice.tuned_us, 12.5);
  EXPECT_EQ(choice.tuned_shape, kMeasured);
  EXPECT_EQ(choice.layer, "site");
}

TEST(Lookup, WhereAWinnerCannotRunTheNextMeasuredComesAndThenAPredictionAndTheDefaults) {
  const Config first = tuned_config(kLlama, 224);
  Config second = first, elsewhere = first;
  second.spec.warps = 4, elsewhere.spec.stages = 4;
  auto entry = winner(kLlama, kMeasured, first, 12.5, "cold", "shipped");
  entry.winner.next_config = to_json(second), entry.winner.next_us = 13;
  entry.winner.environment.nvrtc_version = "13.0";
  const auto table = table_of({entry, winner(kLlama, {.batch = 4, .longest_context = 9000}, elsewhere, 13)});
  const std::vector<Choice> order = table.launch_order(kLlama, kMeasured);
  ASSERT_GE(order.size(), 4u);
  EXPECT_EQ(order[0].config, first);
  EXPECT_EQ(order[0].tuned_nvrtc, "13.0");
  EXPECT_EQ(order[1].config, second);
  EXPECT_EQ(order[1].tuned_us, 13);
  EXPECT_EQ(order[1].layer, "shipped");
  EXPECT_NE(order[2].config.spec, first.spec);
  EXPECT_NE(order[2].config.spec, second.spec);
  EXPECT_NE(order[2].provenance, Provenance::exact);
  for (const Config& config : default_configs({fictional_gpu(), kLlama, kMeasured})) {
    EXPECT_EQ(std::count_if(order.begin(), order.end(), [&](const Choice& one) { return one.config == config; }), 1);
  }
  EXPECT_EQ(table.launch_order(kLlama, {.batch = 1, .longest_context = 64}).front().config,
            table.find(kLlama, {.batch = 1, .longest_context = 64}).config);
}

TEST(Lookup, HowManyRequestsAPlanMustHoldDoesNotChangeItsWinner) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224))});
  EXPECT_EQ(table.find(kLlama, {.batch = 4, .max_batch = 64, .longest_context = 8192}).provenance, Provenance::exact);
}

TEST(Lookup, ATotalThatOnlyRepeatsBatchTimesLongestIsTheSameShape) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224))});
  EXPECT_EQ(table.find(kLlama, {.batch = 4, .longest_context = 8192, .total_context = 4 * 8192}).provenance,
            Provenance::exact);
}

TEST(Lookup, TheSamePowerOfTwoIsABucketHitWithTheClosestWinner) {
  const auto table = table_of({winner(kLlama, {.batch = 4, .longest_context = 8192}, tuned_config(kLlama, 64), 1),
                               winner(kLlama, {.batch = 3, .longest_context = 5000}, tuned_config(kLlama, 48), 2)});
  const Choice near_first = table.find(kLlama, {.batch = 4, .longest_context = 8000});
  EXPECT_EQ(near_first.provenance, Provenance::bucket);
  EXPECT_EQ(near_first.tuned_us, 1);
  const Choice near_second = table.find(kLlama, {.batch = 3, .longest_context = 4500});
  EXPECT_EQ(near_second.provenance, Provenance::bucket);
  EXPECT_EQ(near_second.tuned_us, 2);
}

TEST(Lookup, AnotherShapeGetsTheNearestWinnerOfTheSameKernel) {
  const auto table = table_of({winner(kLlama, {.batch = 1, .longest_context = 1024}, tuned_config(kLlama, 120), 1),
                               winner(kLlama, {.batch = 1, .longest_context = 65536}, tuned_config(kLlama, 132), 2)});
  const Choice choice = table.find(kLlama, {.batch = 1, .longest_context = 100000});
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.tuned_us, 2);
  EXPECT_GE(choice.config.grid, 128);
}

TEST(Lookup, ABatchMoreRaggedThanWhatWasMeasuredGetsASegmentCost) {
  Config waits = tuned_config(kLlama, 128);
  waits.spec.fixup = FixUp::wait;
  const auto table = table_of({winner(kLlama, {.batch = 64, .longest_context = 4096}, waits, 240)});
  const Choice ragged = table.find(kLlama, {.batch = 64, .longest_context = 32768, .total_context = 387490});
  EXPECT_EQ(ragged.provenance, Provenance::nearest);
  EXPECT_EQ(ragged.config.spec.fixup, FixUp::ticket);
  EXPECT_EQ(ragged.config.grid, resident_grid(fictional_gpu(), ragged.config.spec));
  EXPECT_GE(ragged.config.segment_cost, 1);
  const Choice nearly_uniform = table.find(kLlama, {.batch = 64, .longest_context = 6000, .total_context = 64 * 5000});
  EXPECT_EQ(nearly_uniform.config.spec.fixup, FixUp::wait);
  EXPECT_EQ(nearly_uniform.config.segment_cost, 0);
}

TEST(Lookup, OtherNumbersOfKvHeadsOfTheSameGroupShareKernels) {
  const DecodeProblem sliced{.q_heads = 8, .kv_heads = 2, .head_dim = 128};
  const auto table = table_of({winner(kLlama, {.batch = 1, .longest_context = 65536}, tuned_config(kLlama, 128), 3)});
  const Choice choice = table.find(sliced, {.batch = 4, .longest_context = 65536});
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.tuned_us, 3);
  EXPECT_EQ(choice.config.spec.group, 4);
  EXPECT_GE(choice.config.grid, 128);
}

TEST(Lookup, ALargeGroupIsNotAnsweredWithAKernelThatReadsTheCacheTwice) {
  const DecodeProblem wide{.q_heads = 176, .kv_heads = 16, .head_dim = 256};
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224))});
  const Choice hopper = table.find(wide, kMeasured);
  ASSERT_EQ(fictional_gpu().arch, (Arch{9, 0, true}));
  EXPECT_EQ(hopper.config.spec.load, LoadPath::tensor);
  EXPECT_EQ(layout_of(hopper.config.spec).row_blocks, 1);
}

TEST(Lookup, ARingOfSeveralWarpgroupsShrinksByWholeRounds) {
  KernelSpec from = base_spec({9, 0, true}, {.q_heads = 8, .kv_heads = 8, .head_dim = 64});
  from.load = LoadPath::tensor;
  from.warps = 8, from.stages = 4, from.ctas_per_sm = 2, from.tile = 64;
  ASSERT_TRUE(validate(from));
  const auto spec = with_tunables_of(base_spec({9, 0, true}, kLlama), from);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->stages, 2);
  EXPECT_EQ(spec->ctas_per_sm, 2);
}

TEST(Lookup, VectorKernelsAreCarriedOverOnlyToRowsThatLanesShareAlike) {
  const auto heads_of = [](int head_dim) { return DecodeProblem{.q_heads = 8, .kv_heads = 8, .head_dim = head_dim}; };
  KernelSpec from = base_spec({9, 0, true}, heads_of(128));
  from.load = LoadPath::vector;
  from.stages = 1, from.warp_tokens = 16, from.tile = 128;
  ASSERT_TRUE(validate(from));
  // The look-up answers the same.
  EXPECT_NE(emit(from).value().source.find(
                "kRowLanes = kHeadDim % 256 == 0 ? 32 : kHeadDim % 128 == 0 ? 16 : kHeadDim % 64 == 0 ? 8 : 4;"),
            std::string::npos);
  for (const auto& [head_dim, carried] : {std::pair{64, true}, {128, true}, {256, true}, {96, false}, {192, false}}) {
    const auto spec = with_tunables_of(base_spec({9, 0, true}, heads_of(head_dim)), from);
    EXPECT_EQ(spec.has_value(), carried) << head_dim;
    // The look-up then answers with another load path.
    const auto table = table_of({winner(heads_of(128), kMeasured, {.spec = from, .grid = 224})});
    const Choice choice = table.find(heads_of(head_dim), kMeasured);
    if (!carried) {
      EXPECT_NE(choice.config.spec.load, LoadPath::vector) << head_dim;
    }
    for (const KernelSpec& usual : usual_kernels(fictional_gpu(), heads_of(head_dim)))
      EXPECT_TRUE(carried || usual.load != LoadPath::vector) << head_dim;
  }
}

TEST(Lookup, ByDefaultOnlyRaggedBatchesHaveASegmentCost) {
  const Shape even{.batch = 64, .longest_context = 4096};
  const Shape ragged{.batch = 64, .longest_context = 32768, .total_context = 387490};
  EXPECT_EQ(default_config({fictional_gpu(), kLlama, even}).segment_cost, 0);
  EXPECT_GE(default_config({fictional_gpu(), kLlama, ragged}).segment_cost, 1);
}

TEST(Lookup, OtherHeadsOnAMeasuredGpuGetAKernelOfTheirsByTheModel) {
  const DecodeProblem opt{.q_heads = 32, .kv_heads = 32, .head_dim = 64, .dtype = DType::fp16};
  const Choice choice = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 224))}).find(opt, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::model);
  EXPECT_EQ(choice.config.spec.head_dim, 64);
  EXPECT_EQ(choice.config.spec.group, 1);
  EXPECT_EQ(choice.config.spec.dtype, DType::fp16);
  EXPECT_EQ(choice.tuned_us, 0);
  EXPECT_GT(choice.predicted_us, 0);
  EXPECT_GE(choice.config.grid, 128);
}

TEST(Lookup, WinnersOverCachesThatAreReadInAnotherWaySayNothing) {
  DecodeProblem latent{.q_heads = 16, .kv_heads = 1, .head_dim = 576};
  latent.features = {.page_size = 64, .v_head_dim = 512, .latent = true};
  DecodeProblem rows = latent;
  rows.features.kv_format = KvFormat::fp8_ds_mla;
  for (const DecodeProblem& tuned : {kLlama, latent, rows}) {
    // One that is far faster than any model would have it.
    const Config config = default_config({fictional_gpu(), tuned, kMeasured});
    const WinnerTable table = table_of({winner(tuned, kMeasured, config, 1.0)});
    for (const DecodeProblem& asked : {kLlama, latent, rows}) {
      if (asked == tuned) continue;
      const Shape shape{.batch = 3, .longest_context = 16384};
      const Choice choice = table.find(asked, shape);
      EXPECT_EQ(choice.provenance, Provenance::fallback);
      EXPECT_EQ(choice.config, table_of({}).find(asked, shape).config);
    }
  }
}

TEST(Lookup, AnUnknownGpuGetsAUsualKernelWithEnoughCtas) {
  const Choice choice = table_of({}).find(kLlama, kMeasured);
  const auto usual = usual_kernels(fictional_gpu(), kLlama);
  EXPECT_EQ(choice.provenance, Provenance::fallback);
  EXPECT_EQ(usual.front(), default_config({fictional_gpu(), kLlama, kMeasured}).spec);
  EXPECT_NE(std::find(usual.begin(), usual.end(), choice.config.spec), usual.end());
  EXPECT_GE(choice.config.grid, 128);
  EXPECT_EQ(choice.tuned_us, 0);
  EXPECT_EQ(choice.predicted_us, 0) << "nothing was measured that could say";
}

TEST(Lookup, ContextsThatGrowALittleKeepTheirKernelAndGrid) {
  for (const bool tuned : {false, true}) {
    std::vector<LayeredWinners::Entry> entries;
    if (tuned) entries.push_back(winner(kLlama, kMeasured, tuned_config(kLlama, 128)));
    const WinnerTable table = table_of(std::move(entries));
    const Choice first = table.find(kLlama, {.batch = 4, .longest_context = 60000});
    for (int context = 60001; context < 61000; ++context)
      ASSERT_EQ(table.find(kLlama, {.batch = 4, .longest_context = context}).config, first.config) << context;
  }
}

TEST(Lookup, TheFirstLayerWinsAndColdBeatsWarm) {
  const auto table = table_of({winner(kLlama, kMeasured, tuned_config(kLlama, 1), 1, "warm", "user"),
                               winner(kLlama, kMeasured, tuned_config(kLlama, 2), 2, "cold", "site"),
                               winner(kLlama, kMeasured, tuned_config(kLlama, 3), 3, "cold", "shipped")});
  EXPECT_EQ(table.find(kLlama, kMeasured).config.grid, 2);
  EXPECT_EQ(table.size(), 1u);
}

TEST(Lookup, RowsWhoseConfigDoesNotFitTheirProblemAreSkippedAndCounted) {
  auto broken = winner(kLlama, kMeasured, tuned_config(kLlama, 1));
  broken.winner.config = "{\"grid\":1}";
  Config other_arch = tuned_config(kLlama, 1);
  other_arch.spec.arch = {8, 0, false};
  other_arch.spec.load = LoadPath::cp_async;
  Config other_heads = tuned_config(kLlama, 1);
  other_heads.spec.head_dim = 64;
  Config never_resident = tuned_config(kLlama, 33 * 132);  // an SM holds 32 CTAs at most
  never_resident.spec.fixup = FixUp::wait;
  const auto table = table_of({broken, winner(kLlama, kMeasured, other_arch), winner(kLlama, kMeasured, other_heads),
                               winner(kLlama, kMeasured, never_resident),
                               winner(kLlama, kMeasured, tuned_config(kLlama, 2147483647))});
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.skipped(), 5u);
  EXPECT_EQ(table.find(kLlama, kMeasured).provenance, Provenance::fallback);
}

TEST(Lookup, AWinnerThatWaitsMayHaveMoreCtasThanItsLaunchBoundsPromise) {
  Config config = tuned_config(kLlama, 256);
  config.spec.fixup = FixUp::wait;
  config.spec.load = LoadPath::tensor, config.spec.tile = 64, config.spec.warps = 4, config.spec.warp_tokens = 16;
  config.spec.stages = 3, config.spec.ctas_per_sm = 1;
  ASSERT_TRUE(validate(config.spec));
  const auto table = table_of({winner(kLlama, kMeasured, config)});
  const Choice choice = table.find(kLlama, kMeasured);
  EXPECT_EQ(table.skipped(), 0u);
  EXPECT_EQ(choice.provenance, Provenance::exact);
  EXPECT_EQ(choice.config, config);
}

TEST(Lookup, TunablesThatDoNotFitABiggerHeadAreCutUntilTheyDo) {
  Config config = tuned_config(kLlama, 132);
  config.spec.warps = 4;
  config.spec.stages = 6;
  config.spec.warp_tokens = 16;
  ASSERT_TRUE(validate(config.spec)) << validate(config.spec).error().message;
  const DecodeProblem gemma{.q_heads = 16, .kv_heads = 8, .head_dim = 256};
  const Choice choice = table_of({winner(kLlama, kMeasured, config)}).find(gemma, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::model);
  EXPECT_LT(choice.config.spec.stages, 6);
  EXPECT_TRUE(validate(choice.config.spec));
}

TEST(Lookup, ThousandsOfWinnersAreAllFoundAgain) {
  std::vector<LayeredWinners::Entry> entries;
  for (int i = 1; i <= 4000; ++i)
    entries.push_back(winner(kLlama, {.batch = i, .longest_context = 100 + i}, tuned_config(kLlama, i), i));
  const auto table = table_of(std::move(entries));
  ASSERT_EQ(table.size(), 4000u);
  for (int i = 1; i <= 4000; ++i) {
    const Choice exact = table.find(kLlama, {.batch = i, .longest_context = 100 + i});
    ASSERT_EQ(exact.provenance, Provenance::exact) << i;
    EXPECT_EQ(exact.tuned_us, i);
  }
  EXPECT_NE(table.find(kLlama, {.batch = 4001, .longest_context = 4101}).provenance, Provenance::exact);
}

// ---- Groups ----

const DecodeProblem kOfGroup{.q_heads = 32, .kv_heads = 8, .head_dim = 128, .features = {.context_parallel = 2}};

Config tensor_config(const DecodeProblem& problem, std::int64_t grid, FixUp fixup = FixUp::wait) {
  KernelSpec spec = base_spec({9, 0, true}, problem);
  spec.load = LoadPath::tensor, spec.fixup = fixup;
  spec.warps = 8, spec.warp_tokens = 16, spec.tile = 128, spec.stages = 4, spec.ctas_per_sm = 1;
  return {spec, grid};
}

TEST(LookupOfGroups, ARanksPartGetsTheWinnerOfThePartAlone) {
  for (const int interleave : {0, 16}) {
    for (const bool replicate : {false, true}) {
      DecodeProblem problem = kOfGroup;
      problem.features.context_interleave = interleave, problem.features.replicate_output = replicate;
      const auto table = table_of({winner(kLlama, kMeasured, tensor_config(kLlama, 120), 12.5, "cold", "site")});
      const Choice choice = table.find(problem, kMeasured);
      EXPECT_EQ(choice.provenance, Provenance::nearest) << "the merge was not measured";
      EXPECT_EQ(choice.config, tensor_config(problem, 120));
      EXPECT_EQ(choice.tuned_us, 12.5);
      EXPECT_EQ(choice.layer, "site");
      const Choice same_bucket = table.find(problem, {.batch = 4, .longest_context = 5000});
      EXPECT_EQ(same_bucket.provenance, Provenance::nearest);
      EXPECT_EQ(same_bucket.tuned_us, 12.5);
      EXPECT_TRUE(in_group(same_bucket.config.spec.features));
    }
  }
}

TEST(LookupOfGroups, APartWhoseResultsAreMergedElsewhereGetsTheWinnerOfThePartAloneAndAnyGrid) {
  DecodeProblem alone = kLlama;
  alone.features.window = 2000;
  DecodeProblem part = alone;
  part.features.context_ranks = 4, part.features.context_interleave = 16;
  const auto table = table_of({winner(alone, kMeasured, tensor_config(alone, 264, FixUp::ticket), 12.5)});
  const Choice choice = table.find(part, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.config, tensor_config(part, 264, FixUp::ticket)) << "no CTA waits for another";
  EXPECT_EQ(choice.tuned_us, 12.5);
}

DecodeProblem group_over(GroupLink link) {
  DecodeProblem problem = kOfGroup;
  problem.group_link = link;
  return problem;
}

TEST(LookupOfGroups, AWinnerOfTheGroupGoesBeforeThatOfThePartForItsLinkOnly) {
  const DecodeProblem nvlink = group_over(GroupLink::nvlink), pcie = group_over(GroupLink::pcie);
  const auto table =
      table_of({winner(kLlama, kMeasured, tensor_config(kLlama, 120), 12.5),
                winner(nvlink, kMeasured, tensor_config(nvlink, 128, FixUp::ticket), 14, "cold", "site")});
  for (const DecodeProblem& problem : {nvlink, kOfGroup}) {
    const Choice choice = table.find(problem, kMeasured);
    EXPECT_EQ(choice.provenance, Provenance::exact) << "also where the link is not known";
    EXPECT_EQ(choice.config, tensor_config(nvlink, 128, FixUp::ticket));
    EXPECT_EQ(choice.layer, "site");
    EXPECT_TRUE(choice.tuned_group);
    EXPECT_EQ(choice.tuned_link, GroupLink::nvlink);
  }
  EXPECT_FALSE(make_lookup_key(nvlink, kMeasured) == make_lookup_key(pcie, kMeasured));
  const Choice other = table.find(pcie, kMeasured);
  EXPECT_EQ(other.provenance, Provenance::nearest);
  EXPECT_EQ(other.tuned_us, 12.5) << "of the part alone";
  EXPECT_FALSE(other.tuned_group);
}

TEST(LookupOfGroups, WhoDoesNotKnowTheLinkGetsTheFirstThatIsTuned) {
  const DecodeProblem pcie = group_over(GroupLink::pcie), same = group_over(GroupLink::same_gpu);
  const auto table = table_of(
      {winner(same, kMeasured, tensor_config(same, 60), 30), winner(pcie, kMeasured, tensor_config(pcie, 120), 20)});
  EXPECT_EQ(table.find(kOfGroup, kMeasured).tuned_link, GroupLink::pcie);
}

TEST(LookupOfGroups, TimesOfGroupsAnswerNothingElse) {
  const DecodeProblem nvlink = group_over(GroupLink::nvlink);
  const auto table = table_of({winner(nvlink, kMeasured, tensor_config(nvlink, 120), 14)});
  EXPECT_EQ(table.find(kLlama, kMeasured).provenance, Provenance::fallback);
  DecodeProblem of_four = kOfGroup;
  of_four.features.context_parallel = 4;
  EXPECT_EQ(table.find(of_four, kMeasured).provenance, Provenance::fallback);
}

TEST(LookupOfGroups, AWinnerThatOtherRanksCouldNotLaunchBesideIsSkipped) {
  const DecodeProblem nvlink = group_over(GroupLink::nvlink);
  const KernelSpec base = base_spec({9, 0, true}, nvlink);
  const Config other_order{with_tunables_of(base, tuned_config(kLlama, 64).spec).value(), 64};
  ASSERT_NE(family_of(other_order.spec).exchange_order, order_of_group(fictional_gpu(), nvlink));
  const auto table =
      table_of({winner(nvlink, kMeasured, other_order, 14),
                winner(nvlink, {.batch = 1, .longest_context = 9000}, tensor_config(nvlink, 100000), 14)});
  table.find(nvlink, kMeasured);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.skipped(), 2u) << "also one whose CTAs are never resident at once";
}

TEST(LookupOfGroups, AWinnerOfMoreCtasThanAreResidentGivesAwayItsGrid) {
  const auto table = table_of({winner(kLlama, kMeasured, tensor_config(kLlama, 264, FixUp::ticket), 12.5)});
  const Choice choice = table.find(kOfGroup, kMeasured);
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_LE(choice.config.grid, resident_grid(fictional_gpu(), choice.config.spec));
}

TEST(LookupOfGroups, RanksAgreeOnTheOrderOfDimsWhateverWasTunedForTheirShapes) {
  std::vector<LayeredWinners::Entry> rows;
  std::vector<Shape> shapes;
  for (const int batch : {1, 16, 64}) {
    for (const std::int64_t context : {128, 2048, 16384, 131072}) {
      shapes.push_back({.batch = batch, .longest_context = context});
      // In turn of other families than the default kernel's, and of the same.
      rows.push_back(
          winner(kLlama, shapes.back(), shapes.size() % 2 == 0 ? tuned_config(kLlama, 64) : tensor_config(kLlama, 64)));
    }
  }
  const int order = family_of(default_config({fictional_gpu(), kOfGroup, {}}).spec).exchange_order;
  for (const bool tuned : {false, true}) {
    const auto table = table_of(tuned ? rows : std::vector<LayeredWinners::Entry>{});
    for (const Shape& shape : shapes) {
      for (const std::int64_t more : {0, 3, 700}) {
        const Choice choice =
            table.find(kOfGroup, {.batch = shape.batch, .longest_context = shape.longest_context + more});
        EXPECT_EQ(family_of(choice.config.spec).exchange_order, order) << to_json(shape) << ", " << more;
        EXPECT_LE(choice.config.grid, resident_grid(fictional_gpu(), choice.config.spec));
      }
    }
  }
  EXPECT_NE(family_of(tuned_config(kOfGroup, 64).spec).exchange_order, order) << "or this test says nothing";
}

TEST(LookupOfGroups, WithoutWinnersTheModelChoosesAndNoCompileIsSaved) {
  const auto table = table_of({});
  const Choice choice = table.find(kOfGroup, {.batch = 1, .longest_context = 16384});
  EXPECT_EQ(choice.provenance, Provenance::fallback);
  EXPECT_EQ(choice.config.spec.fixup, FixUp::wait) << kernel_name(choice.config.spec);
}

TEST(Lookup, RanksGoFromExactToFallback) {
  const Provenance ladder[] = {Provenance::exact,   Provenance::bucket, Provenance::without_pdl,
                               Provenance::nearest, Provenance::model,  Provenance::fallback};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(rank(ladder[i]), i) << to_string(ladder[i]);
}

// ---- Grids ----

TEST(Grid, AFullGpuStaysFullWhenTheContextGrows) {
  const Config tuned = tuned_config(kLlama, 132);
  EXPECT_EQ(carry_grid_over({fictional_gpu(), kLlama, {.longest_context = 8192}}, tuned,
                            {fictional_gpu(), kLlama, {.longest_context = 500000}}, tuned.spec),
            132);
}

TEST(Grid, AnEvenSplitStaysEvenForMoreOutputTiles) {
  const Config tuned = tuned_config(kLlama, 128);  // 8 output tiles, 16 CTAs each
  const auto grid = carry_grid_over({fictional_gpu(), kLlama, {.longest_context = 8192}}, tuned,
                                    {fictional_gpu(), kLlama, {.batch = 3, .longest_context = 8192}}, tuned.spec);
  EXPECT_EQ(grid, 120);  // 24 output tiles, 5 CTAs each
}

TEST(Grid, FlashAttention2KeepsOneCtaPerOutputTile) {
  const Config tuned = tuned_config(kLlama, 512);
  EXPECT_EQ(carry_grid_over({fictional_gpu(), kLlama, {.batch = 64, .longest_context = 1024}}, tuned,
                            {fictional_gpu(), kLlama, {.batch = 100, .longest_context = 1024}}, tuned.spec),
            800);
}

TEST(Grid, AGridThatSavedFixUpsGrowsWithTheContext) {
  const Config tuned = tuned_config(kLlama, 16);  // 8 output tiles of 4 LeanTiles: 2 LeanTiles a CTA
  EXPECT_EQ(carry_grid_over({fictional_gpu(), kLlama, {.longest_context = 128}}, tuned,
                            {fictional_gpu(), kLlama, {.longest_context = 512}}, tuned.spec),
            64);
}

TEST(Grid, TheDefaultGivesEveryOutputTileTheSameNumberOfCtasWhereThatFillsTheGpu) {
  const auto gpu = fictional_gpu();
  const Config config = default_config({gpu, kLlama, {.batch = 1, .longest_context = 65536}});
  EXPECT_EQ(config.grid % 8, 0);
  EXPECT_GE(config.grid, 132);
  // With one CTA for each of 100 output tiles a quarter of the GPU would be idle.
  const DecodeProblem hundred{.q_heads = 100, .kv_heads = 100, .head_dim = 128};
  Shape shape{.longest_context = 65536};
  const Config uneven = default_config({fictional_gpu({9, 0, true}, 66), hundred, shape});
  EXPECT_EQ(uneven.grid, 66 * uneven.spec.ctas_per_sm);
}

DecodeProblem problem_of_the_table() {
  const int group = *rc::gen::inRange(1, 65);
  const int kv_heads = *rc::gen::element(1, 2, 3, 8, 10, 32, 56, 128);
  return {.q_heads = group * kv_heads,
          .kv_heads = kv_heads,
          .head_dim = *rc::gen::element(64, 96, 128, 256),
          .dtype = *rc::gen::element(DType::bf16, DType::fp16),
          .layout = *rc::gen::element(KvLayout::contiguous, KvLayout::strided),
          .lse = *rc::gen::arbitrary<bool>(),
          .pdl = *rc::gen::arbitrary<bool>()};
}

Shape shape_of_the_table() {
  Shape shape;
  shape.batch = *rc::gen::element(1, 2, 3, 7, 16, 64, 333, 1000);
  shape.longest_context = *rc::gen::inRange<std::int64_t>(1, 1 << 20);
  const std::int64_t uniform = shape.batch * shape.longest_context;
  shape.total_context = *rc::gen::inRange<std::int64_t>(shape.longest_context, uniform + 1);
  return shape;
}

DeviceFacts gpu_of_the_table() {
  const auto arches = matrix_arches();
  return fictional_gpu(arches[*rc::gen::inRange<std::size_t>(0, arches.size())], *rc::gen::inRange(1, 200));
}

RC_GTEST_PROP(Grid, UsefulGridsAreSortedUniqueAndAtMostOneCtaPerLeanTile, ()) {
  const auto gpu = gpu_of_the_table();
  const auto problem = problem_of_the_table();
  const auto shape = shape_of_the_table();
  const auto spec = default_config({gpu, problem, shape}).spec;
  const auto grids = useful_grids({gpu, problem, shape}, spec, *rc::gen::inRange(1, 9));
  RC_ASSERT(!grids.empty());
  RC_ASSERT(grids.front() >= 1);
  RC_ASSERT(grids.back() <= lean_tiles({gpu, problem, shape}, spec));
  RC_ASSERT(std::adjacent_find(grids.begin(), grids.end(), std::greater_equal<>()) == grids.end());
  RC_ASSERT(grids.size() < 1000u);
}

RC_GTEST_PROP(Grid, UsefulGridsHoldFlashAttention2sAndFlashDecodings, ()) {
  const auto gpu = gpu_of_the_table();
  const auto problem = problem_of_the_table();
  const auto shape = shape_of_the_table();
  const auto spec = default_config({gpu, problem, shape}).spec;
  const auto grids = useful_grids({gpu, problem, shape}, spec, 2);
  const auto outputs = output_tiles({gpu, problem, shape}, spec), tiles = lean_tiles({gpu, problem, shape}, spec);
  const auto decoding = std::min(tiles, std::max<std::int64_t>(1, gpu.sm_count / outputs) * outputs);
  RC_ASSERT(std::binary_search(grids.begin(), grids.end(), outputs));
  RC_ASSERT(std::binary_search(grids.begin(), grids.end(), decoding));
}

RC_GTEST_PROP(Lookup, TheDefaultIsAValidResidentLaunchOfTickets, ()) {
  const auto gpu = gpu_of_the_table();
  const auto problem = problem_of_the_table();
  const auto shape = shape_of_the_table();
  const auto configs = default_configs({gpu, problem, shape});
  RC_ASSERT(configs.front() == default_config({gpu, problem, shape}));
  for (const Config& config : configs) {
    const auto valid = validate(config.spec);
    if (!valid) RC_FAIL(valid.error().message);
    RC_ASSERT(config.spec.fixup == FixUp::ticket);
    RC_ASSERT(config.grid >= 1);
    RC_ASSERT(config.grid <= resident_grid(gpu, config.spec));
  }
}

RC_GTEST_PROP(Lookup, EveryAnswerCanBeLaunchedWhateverWasTuned, ()) {
  const auto gpu = gpu_of_the_table();
  std::vector<LayeredWinners::Entry> entries;
  const int count = *rc::gen::inRange(0, 12);
  for (int i = 0; i < count; ++i) {
    auto problem = problem_of_the_table();
    problem.pdl = problem.pdl && has_dependent_launch(gpu.arch);  // as in a database, where no other problem is tuned
    const auto shape = shape_of_the_table();
    Config config = default_config({gpu, problem, shape});
    const auto grids = useful_grids({gpu, problem, shape}, config.spec, config.spec.ctas_per_sm);
    config.grid = grids[*rc::gen::inRange<std::size_t>(0, grids.size())];
    if (*rc::gen::arbitrary<bool>()) {
      config.spec.fixup = FixUp::wait;
      config.grid = std::min(config.grid, resident_grid(gpu, config.spec));
    }
    entries.push_back(winner(problem, shape, config, i + 1));
  }
  const auto table = WinnerTable::build(gpu, layered(entries));
  RC_ASSERT(table.skipped() == 0u);
  const auto problem = problem_of_the_table();
  const auto shape = shape_of_the_table();
  const Choice choice = table.find(problem, shape);
  const KernelSpec& spec = choice.config.spec;
  const auto valid = validate(spec);
  if (!valid) RC_FAIL(valid.error().message);
  const auto base = base_spec(gpu.arch, problem);
  RC_ASSERT(spec.arch == base.arch && spec.head_dim == base.head_dim && spec.group == base.group);
  RC_ASSERT(spec.dtype == base.dtype && spec.layout == base.layout && spec.lse == base.lse);
  RC_ASSERT(!spec.pdl || (problem.pdl && has_dependent_launch(gpu.arch)));
  RC_ASSERT(choice.config.grid >= 1);
  RC_ASSERT(choice.provenance == Provenance::exact || choice.config.grid <= lean_tiles({gpu, problem, shape}, spec));
  if (spec.fixup == FixUp::wait) RC_ASSERT(choice.config.grid <= resident_grid(gpu, spec));
}

RC_GTEST_PROP(LookupKey, IsEqualExactlyWhenProblemAndCanonicalShapeAre, ()) {
  const auto problem = problem_of_the_table(),
             other_problem = *rc::gen::arbitrary<bool>() ? problem : problem_of_the_table();
  const auto shape = shape_of_the_table(), other_shape = *rc::gen::arbitrary<bool>() ? shape : shape_of_the_table();
  const bool equal = problem == other_problem && canonical(shape) == canonical(other_shape);
  const auto key = make_lookup_key(problem, shape), other = make_lookup_key(other_problem, other_shape);
  RC_ASSERT((key == other) == equal);
  RC_ASSERT(equal == (hash(key) == hash(other)));
}

TEST(DeviceModel, MegabytesThatDriversDisagreeAboutDoNotMakeAnotherModel) {
  DeviceFacts one = fictional_gpu(), other = fictional_gpu();
  one.memory_bytes = 150'754'820'096;
  other.memory_bytes = 150'650'945'536;
  EXPECT_EQ(device_model(one), device_model(other));
}

TEST(DeviceModel, AMigSliceHasItsProfile) {
  DeviceFacts slice = fictional_gpu();
  slice.name = "NVIDIA H200 MIG 1g.18gb";
  EXPECT_EQ(device_model(slice).mig_profile, "1g.18gb");
  EXPECT_EQ(device_model(fictional_gpu()).mig_profile, "");
}

}  // namespace
}  // namespace leanattn
