// explain_test.cpp -- a drawn schedule covers every LeanTile once, and is safe to put into a page.
#include "tuner/report/explain.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

namespace leanattn {
namespace {

ScheduleInput figure_one() {
  return {.title = "LeanAttention",
          .context_lengths = {640},
          .kv_heads = 2,
          .row_blocks = 1,
          .tile = 64,
          .grid = 5,
          .sm_count = 5};
}

TEST(Explain, AnEqualShareOfTheLineMayCrossHeads) {
  const auto schedule = make_schedule(figure_one());
  ASSERT_TRUE(schedule.has_value()) << schedule.error().message;
  EXPECT_EQ(schedule->lean_tiles, 20);
  EXPECT_EQ(schedule->longest, 4);
  EXPECT_DOUBLE_EQ(schedule->busy, 1.0);
  ASSERT_EQ(schedule->segments.size(), 6u);  // CTA 2 has a segment of each head.
  EXPECT_EQ(schedule->segments[2].cta, 2);
  EXPECT_EQ(schedule->segments[2].kv_head, 0);
  EXPECT_EQ(schedule->segments[2].tiles, 2);
  EXPECT_EQ(schedule->segments[3].cta, 2);
  EXPECT_EQ(schedule->segments[3].kv_head, 1);
  EXPECT_TRUE(schedule->segments[3].host);
  EXPECT_EQ(schedule->partials, 6);
  EXPECT_EQ(schedule->most_contributors, 3);
}

TEST(Explain, OneCtaAnOutputTileLeavesNothingToMerge) {
  ScheduleInput input = figure_one();
  input.grid = *grid_for_mode("fa2", 2, 20, 5);
  const auto schedule = make_schedule(input);
  ASSERT_TRUE(schedule.has_value());
  EXPECT_EQ(schedule->partials, 0);
  EXPECT_EQ(schedule->longest, 10);
  EXPECT_DOUBLE_EQ(schedule->busy, 0.4);
}

TEST(Explain, PeersKeepOutputTilesWholeOrCutThemEvenlyWhateverTheLengths) {
  EXPECT_TRUE(rc::check("any lengths, heads, tile and number of CTAs", [] {
    ScheduleInput input{
        .title = "x",
        .context_lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 3000))),
        .kv_heads = *rc::gen::inRange(1, 5),
        .row_blocks = *rc::gen::inRange(1, 3),
        .tile = *rc::gen::inRange(1, 300),
        .sm_count = *rc::gen::inRange(1, 40),
        .ctas_per_output_tile = *rc::gen::inRange(1, 9)};
    const int sharing = input.ctas_per_output_tile;
    input.grid = static_cast<std::int64_t>(input.context_lengths.size()) * input.kv_heads * input.row_blocks * sharing;
    const auto schedule = make_schedule(input);
    RC_ASSERT(schedule.has_value());
    std::map<std::int64_t, std::set<std::int64_t>> sizes;  // of each output tile's segments
    std::map<std::int64_t, std::int64_t> next_tile;
    std::int64_t total = 0;
    for (const ScheduleSegment& segment : schedule->segments) {
      RC_ASSERT(segment.cta / sharing == segment.output_tile);
      RC_ASSERT(next_tile[segment.output_tile] == segment.first_tile);
      next_tile[segment.output_tile] += segment.tiles;
      sizes[segment.output_tile].insert(segment.tiles);
      total += segment.tiles;
    }
    RC_ASSERT(total == schedule->lean_tiles);
    for (const auto& [output, seen] : sizes) RC_ASSERT(*seen.rbegin() - *seen.begin() <= 1);
    RC_ASSERT((sharing > 1) || schedule->partials == 0);
  }));
  ScheduleInput input = figure_one();
  input.ctas_per_output_tile = 1;  // but the grid is five
  EXPECT_EQ(make_schedule(input).error().code, ErrorCode::invalid_argument);
}

TEST(Explain, ModesAreGridsOfTheSameSchedule) {
  EXPECT_EQ(grid_for_mode("fa2", 8, 1000, 132), 8);
  EXPECT_EQ(grid_for_mode("fd", 8, 1000, 132), 128);
  EXPECT_EQ(grid_for_mode("fd", 200, 1000, 132), 200);
  EXPECT_EQ(grid_for_mode("lean", 8, 1000, 132), 132);
  EXPECT_EQ(grid_for_mode("lean", 8, 100, 132), 100);
  EXPECT_FALSE(grid_for_mode("fa3", 8, 1000, 132).has_value());
}

TEST(Explain, EveryLeanTileIsComputedOnceAndEveryOutputTileHasOneHost) {
  EXPECT_TRUE(rc::check("any lengths, heads, tile, grid and SMs", [] {
    const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 3000)));
    const ScheduleInput input{.title = "x",
                              .context_lengths = lengths,
                              .kv_heads = *rc::gen::inRange(1, 5),
                              .row_blocks = *rc::gen::inRange(1, 3),
                              .tile = *rc::gen::inRange(1, 300),
                              .grid = *rc::gen::inRange(1, 400),
                              .sm_count = *rc::gen::inRange(1, 40)};
    const auto schedule = make_schedule(input);
    RC_ASSERT(schedule.has_value());
    std::map<std::int64_t, std::int64_t> next_tile;  // of each output tile, the first LeanTile that is not covered yet
    std::map<std::int64_t, std::int64_t> tiles_of_cta;
    std::int64_t total = 0, hosts = 0, last_cta = 0;
    for (const ScheduleSegment& segment : schedule->segments) {
      RC_ASSERT(segment.tiles >= 1);
      RC_ASSERT(segment.cta >= last_cta && segment.cta < input.grid);
      RC_ASSERT(next_tile[segment.output_tile] == segment.first_tile);
      RC_ASSERT(segment.host == (segment.first_tile == 0));
      RC_ASSERT(segment.sm >= 0 && segment.sm < input.sm_count);
      RC_ASSERT(segment.start + segment.tiles <= schedule->longest);
      last_cta = segment.cta;
      next_tile[segment.output_tile] += segment.tiles;
      tiles_of_cta[segment.cta] += segment.tiles;
      total += segment.tiles;
      hosts += segment.host;
    }
    RC_ASSERT(total == schedule->lean_tiles);
    RC_ASSERT(total == lean_tiles_on_line(input));
    RC_ASSERT(hosts == schedule->output_tiles);
    std::set<std::int64_t> sizes;
    for (const auto& [cta, tiles] : tiles_of_cta) sizes.insert(tiles);
    RC_ASSERT(*sizes.rbegin() - *sizes.begin() <= 1);
    RC_ASSERT(schedule->busy > 0 && schedule->busy <= 1);
  }));
}

TEST(Explain, NothingOnOneSmOverlaps) {
  const ScheduleInput input{
      .title = "x", .context_lengths = {1000, 0, 5000, 64}, .kv_heads = 3, .tile = 64, .grid = 23, .sm_count = 4};
  const auto schedule = make_schedule(input);
  ASSERT_TRUE(schedule.has_value());
  std::set<std::pair<int, std::int64_t>> occupied;
  for (const ScheduleSegment& segment : schedule->segments) {
    for (std::int64_t t = 0; t < segment.tiles; ++t)
      EXPECT_TRUE(occupied.emplace(segment.sm, segment.start + t).second);
  }
}

TEST(Explain, TextHasOneRowAnSmAndOneLetterALeanTile) {
  const auto schedule = make_schedule(figure_one());
  const std::string text = to_text(std::vector<Schedule>{*schedule});
  EXPECT_NE(text.find("SM 0 |AAAA|"), std::string::npos) << text;
  EXPECT_NE(text.find("SM 2 |AABB|"), std::string::npos) << text;
  EXPECT_NE(text.find("SM 4 |BBBB|"), std::string::npos) << text;
}

/// Two decodes, a chunk of 40 tokens at the end of 200, a request that brings nothing, and a short chunk.
ScheduleInput mixed_step() {
  return {.title = "LeanAttention",
          .context_lengths = {130, 64, 200, 90, 20},
          .kv_heads = 2,
          .row_blocks = 1,
          .tile = 32,
          .grid = 4,
          .sm_count = 4,
          .query_tokens = {1, 1, 40, 0, 3},
          .ragged = {.rows = 64, .group = 4, .tile_positions = 5, .light_tile_positions = 4, .segment_cost = 2}};
}

TEST(Explain, OutputTilesOfAMixedStepHaveTheirRowsAndEndWhereTheirQueryTokensDo) {
  const auto schedule = make_schedule(mixed_step());
  ASSERT_TRUE(schedule.has_value()) << schedule.error().message;
  struct Output {
    int request, rows;
    std::int64_t tiles;
    int positions;
  };
  // The chunk has 160 rows: its blocks end at the contexts of query tokens 15, 31 and 39.
  const std::vector<Output> of_head[] = {
      {{0, 4, 5, 4}}, {{1, 4, 2, 4}}, {{2, 64, 6, 5}, {2, 64, 6, 5}, {2, 32, 7, 4}}, {{4, 12, 1, 4}}};
  std::vector<Output> expected;
  for (const auto& request : of_head)
    for (int head = 0; head < 2; ++head) expected.insert(expected.end(), request.begin(), request.end());
  ASSERT_EQ(schedule->output_tiles, static_cast<std::int64_t>(expected.size()));
  std::vector<std::int64_t> tiles(expected.size());
  for (const ScheduleSegment& segment : schedule->segments) {
    const Output& output = expected[static_cast<std::size_t>(segment.output_tile)];
    EXPECT_EQ(segment.request, output.request);
    EXPECT_EQ(segment.rows, output.rows) << segment.output_tile;
    EXPECT_EQ(segment.positions, output.positions) << segment.output_tile;
    EXPECT_EQ(is_of_chunk(schedule->input, segment), segment.request == 2 || segment.request == 4);
    tiles[static_cast<std::size_t>(segment.output_tile)] += segment.tiles;
  }
  std::int64_t positions = 0, all = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tiles[i], expected[i].tiles) << i;
    all += expected[i].tiles;
    positions += 10 + expected[i].tiles * expected[i].positions;
  }
  EXPECT_EQ(schedule->lean_tiles, all);
  // Four equal ranges, but for LeanTiles that reach into the next one.
  EXPECT_GE(schedule->longest, positions / 4);
  EXPECT_LE(schedule->longest, positions / 4 + 2 * 5);
  EXPECT_LT(schedule->busy, 1);
}

TEST(Explain, OfAWindowOutputTilesHaveNoMoreThanItShows) {
  ScheduleInput input = mixed_step();
  input.ragged.window_tiles = 2, input.ragged.sink_tiles = 1;
  const auto schedule = make_schedule(input);
  ASSERT_TRUE(schedule.has_value());
  EXPECT_EQ(schedule->lean_tiles, 2 * (3 + 3 + 3 * 3 + 2));
  input = mixed_step();
  input.ragged.causal = false;
  EXPECT_EQ(make_schedule(input)->lean_tiles, 2 * (5 + 2 + 3 * 7 + 1));
}

TEST(Explain, AMixedStepIsDrawnWithCapitalsForChunksAndLowBarsForDecodes) {
  const std::vector<Schedule> schedules{*make_schedule(mixed_step())};
  const std::string text = to_text(schedules);
  for (const char* expected :
       {"a = request 0 (1 of 130), KV head 0\n", "E = request 2 (40 of 200), KV head 0, rows 0\n",
        "K = request 4 (3 of 20), KV head 0\n", "capitals are chunks, small letters decodes",
        "5 tile positions, 4 where at most half of 64 rows exist; 10 lie before each output tile"})
    EXPECT_NE(text.find(expected), std::string::npos) << expected << text;
  const std::string svg = *to_svg(schedules);
  EXPECT_NE(svg.find("height=\"21.0\" fill="), std::string::npos) << svg;
  EXPECT_NE(svg.find("CTA 0: request 0 (1 of 130), KV head 0, LeanTiles 0 to 4, host"), std::string::npos) << svg;
  EXPECT_NE(svg.find("height=\"12.6\" fill="), std::string::npos) << svg;
  EXPECT_NE(to_json(schedules).find("\"query_tokens\""), std::string::npos);
}

TEST(Explain, TitlesAreEscapedInSvg) {
  ScheduleInput input = figure_one();
  input.title = "<b>&\"";
  const auto svg = to_svg(std::vector<Schedule>{*make_schedule(input)});
  ASSERT_TRUE(svg.has_value());
  EXPECT_NE(svg->find("&lt;b&gt;&amp;&quot;"), std::string::npos);
  EXPECT_EQ(svg->find("<b>"), std::string::npos);
}

TEST(Explain, WhatCannotBeDrawnIsRefused) {
  ScheduleInput input = figure_one();
  input.grid = 0;
  EXPECT_EQ(make_schedule(input).error().code, ErrorCode::invalid_argument);
  input = figure_one();
  input.context_lengths = {-1};
  EXPECT_EQ(make_schedule(input).error().code, ErrorCode::invalid_argument);
  for (const std::vector<int>& tokens : {std::vector<int>{1, 1}, {-1}, {0}, {1 << 20}}) {
    input = figure_one();
    input.query_tokens = tokens;
    EXPECT_EQ(make_schedule(input).error().code, ErrorCode::invalid_argument);
  }
  input = figure_one();
  input.kv_heads = 1 << 30;
  EXPECT_EQ(make_schedule(input).error().code, ErrorCode::unsupported);
  input = figure_one();
  input.sm_count = 10000;
  EXPECT_EQ(to_svg(std::vector<Schedule>{*make_schedule(input)}).error().code, ErrorCode::unsupported);
  EXPECT_EQ(to_svg({}).error().code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace leanattn
