#include "templates/line/schedule.cuh"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

namespace {

// Any line an H200 or its grandchildren could see, with the corners over-represented.
rc::Gen<unsigned> any_total() {
  return rc::gen::oneOf(rc::gen::inRange<unsigned>(1, 5000), rc::gen::inRange<unsigned>(1, 0x3fffffffu),
                        rc::gen::just(0x3fffffffu));
}
LeanSplit split_of(unsigned total, unsigned grid) { return lean_split(total, grid, lean_reciprocal(grid)); }

rc::Gen<unsigned> any_grid() {
  return rc::gen::oneOf(rc::gen::inRange<unsigned>(1, 600), rc::gen::inRange<unsigned>(1, 100000));
}

RC_GTEST_PROP(Schedule, RangesCoverTheLineOnceAndDifferByAtMostOneTile, ()) {
  const unsigned total = *any_total(), grid = *any_grid();
  const LeanSplit split = split_of(total, grid);
  RC_ASSERT(lean_first_tile(split, 0) == 0u);
  RC_ASSERT(lean_first_tile(split, grid) == total);
  for (unsigned cta = 0; cta < grid; ++cta) {
    const unsigned size = lean_first_tile(split, cta + 1) - lean_first_tile(split, cta);
    RC_ASSERT(size == split.base || size == split.base + 1);
  }
}

RC_GTEST_PROP(Schedule, TheOwnerOfATileIsTheCtaWhoseRangeHoldsIt, ()) {
  const unsigned total = *any_total(), grid = *any_grid();
  const LeanSplit split = split_of(total, grid);
  for (int i = 0; i < 50; ++i) {
    const auto tile = static_cast<unsigned>(*rc::gen::inRange<std::uint64_t>(0, total));
    const unsigned owner = lean_owner(split, tile);
    RC_ASSERT(owner < grid);
    RC_ASSERT(lean_first_tile(split, owner) <= tile);
    RC_ASSERT(tile < lean_first_tile(split, owner + 1) || owner + 1 == grid);
  }
}

RC_GTEST_PROP(Schedule, EveryOutputTileHasOneHostAndNeighbouringContributors, ()) {
  const auto lengths = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5000));
  RC_PRE(!lengths.empty());
  const int tile = *rc::gen::element(16, 64, 128);
  const unsigned kv_heads = *rc::gen::inRange(1u, 9u), grid = *any_grid();
  unsigned total = 0;
  for (int length : lengths) total += lean_tiles_of(length, tile) * kv_heads;
  const LeanSplit split = split_of(total, grid);
  unsigned origin = 0;
  for (int length : lengths) {
    for (unsigned head = 0; head < kv_heads; ++head) {
      const unsigned tiles = lean_tiles_of(length, tile);
      const unsigned first = lean_owner(split, origin), last = lean_owner(split, origin + tiles - 1);
      RC_ASSERT(first <= last);
      for (unsigned cta = first; cta <= last; ++cta) {  // every CTA between them holds a piece of this tile
        RC_ASSERT(lean_first_tile(split, cta) < origin + tiles);
        RC_ASSERT(lean_first_tile(split, cta + 1) > origin);
      }
      origin += tiles;
    }
  }
  RC_ASSERT(origin == total);
}

TEST(Schedule, AnEmptyRequestStillHasOneTile) {
  EXPECT_EQ(lean_tiles_of(0, 64), 1u);
  EXPECT_EQ(lean_tiles_of(-5, 64), 1u);
  EXPECT_EQ(lean_tiles_of(1, 64), 1u);
  EXPECT_EQ(lean_tiles_of(64, 64), 1u);
  EXPECT_EQ(lean_tiles_of(65, 64), 2u);
  EXPECT_EQ(lean_tiles_of(0x7fffffff, 16), 0x8000000u);
}

TEST(Schedule, NoContextHasMoreTilesThanTheBoundOfTheLine) {
  const int tile = 16;
  bool one_more = false;
  for (const int window : {1, 5, 16, 40})
    for (const int sinks : {0, 1, 15, 16, 17, 33})
      for (const int queries : {0, 1, 4})
        for (const int run : {1, 8, 16}) {
          for (int capacity = 0; capacity <= 200; ++capacity) {
            const auto bound = lean_most_tiles(static_cast<unsigned>(capacity), tile, sinks);
            const LeanVisible visible = lean_visible(capacity, queries, tile, window, sinks, run);
            ASSERT_LE(visible.tiles, bound) << capacity << " tokens, window " << window << ", sinks " << sinks
                                            << ", query tokens " << queries << ", runs of " << run;
            one_more |= visible.tiles == bound && visible.tiles > lean_tiles_of(capacity, tile);
          }
        }
  EXPECT_TRUE(one_more) << "sink tokens apart from the window end inside a tile of their own";
}

TEST(Schedule, VisibleTilesHoldTheSinksAndTheWindowOfEveryQueryToken) {
  const int tile = 16;
  for (const int window : {1, 5, 16, 40})
    for (const int sinks : {0, 1, 16, 17})
      for (const int queries : {1, 4})
        for (const int run : {1, 8})
          for (int length = queries; length <= 150; ++length) {
            const LeanVisible visible = lean_visible(length, queries, tile, window, sinks, run);
            const int sinks_end = static_cast<int>(visible.sink_tiles) * tile, end = length - visible.shift;
            ASSERT_LE(end, static_cast<int>(visible.tiles) * tile);
            ASSERT_GT(end, static_cast<int>(visible.tiles - 1) * tile) << "no tile is empty";
            std::vector<int> read(static_cast<std::size_t>(length), 0);
            for (int at = 0; at < end; ++at) {
              const int token = at < sinks_end ? at : at + visible.shift;
              if (at >= sinks_end || at < sinks || visible.sink_tiles == 0) read.at(static_cast<std::size_t>(token))++;
            }
            for (int token = 0; token < length; ++token) {
              const bool seen = token < sinks || token > length - queries - window;
              ASSERT_LE(read[static_cast<std::size_t>(token)], 1) << token << " of " << length;
              if (seen) {
                ASSERT_EQ(read[static_cast<std::size_t>(token)], 1) << token << " of " << length;
              }
            }
          }
}

TEST(Schedule, FlashAttention2IsTheGridWithOneCtaPerOutputTile) {
  const unsigned outputs = 32, tiles = 128;
  const LeanSplit split = split_of(outputs * tiles, outputs);
  for (unsigned cta = 0; cta < outputs; ++cta) EXPECT_EQ(lean_first_tile(split, cta), cta * tiles);
}

TEST(Schedule, MoreCtasThanTilesLeavesTheRestIdle) {
  const LeanSplit split = split_of(3, 10);
  EXPECT_EQ(lean_first_tile(split, 3), 3u);
  EXPECT_EQ(lean_first_tile(split, 9), 3u);
  EXPECT_EQ(lean_owner(split, 2), 2u);
}

TEST(Schedule, LinesOf30BitsAndMoreAreRefused) {
  EXPECT_TRUE(lean_line_fits(1, 8, 1 << 20, 64, 0, 0));
  EXPECT_TRUE(lean_line_fits(4095, 8, 1 << 20, 64, 0, 0));
  EXPECT_FALSE(lean_line_fits(4095, 8, 1 << 20, 64, 1 << 15, 0));  // charges lie on the line too
  EXPECT_FALSE(lean_line_fits(4096, 64, 1 << 30, 16, 0, 0));
  EXPECT_TRUE(lean_line_fits(0x3fffffffull, 1, 0, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(0x40000000ull, 1, 0, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(~0ull, ~0ull, ~0ull - 64, 16, 0, 0));
  // 2^13 requests of 2^17 - 1 tiles just fit. With sink tokens each may have one tile more.
  EXPECT_TRUE(lean_line_fits(1 << 13, 1, ((1 << 17) - 1) * 16, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(1 << 13, 1, ((1 << 17) - 1) * 16, 16, 0, 4));
}

RC_GTEST_PROP(Schedule, TheReciprocalSplitsAsADivisionDoes, ()) {
  const unsigned total = *rc::gen::oneOf(any_total(), rc::gen::arbitrary<unsigned>()), grid = *any_grid();
  const LeanSplit split = split_of(total, grid);
  RC_ASSERT(split.base == total / grid);
  RC_ASSERT(split.extra == total % grid);
}

}  // namespace
