#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {

// Any line an H200 or its grandchildren could see, with the corners over-represented.
rc::Gen<unsigned> any_total() {
  return rc::gen::oneOf(rc::gen::inRange<unsigned>(1, 5000), rc::gen::inRange<unsigned>(1, 0x3fffffffu),
                        rc::gen::just(0x3fffffffu));
}

/// A line that is split over a grid.
struct Line {
  unsigned total, grid;
  LeanSplit split = lean_split(total, grid, lean_reciprocal(grid));

  unsigned begin(unsigned cta) const { return lean_range_begin(split, cta, total); }
  unsigned end(unsigned cta) const { return lean_range_end(split, cta, grid, total); }
  unsigned size(unsigned cta) const { return end(cta) - begin(cta); }
  /// As contributors_of (templates/merge/workspace.cuh) takes it.
  unsigned owner(unsigned tile) const { return std::min(lean_owner(split, tile), grid - 1); }
};

rc::Gen<unsigned> any_grid() {
  return rc::gen::oneOf(rc::gen::inRange<unsigned>(1, 600), rc::gen::inRange<unsigned>(1, 100000));
}

RC_GTEST_PROP(Schedule, RangesCoverTheLineOnceAndDifferByAtMostOneTile, ()) {
  const Line line{*any_total(), *any_grid()};
  RC_ASSERT(line.begin(0) == 0u);
  RC_ASSERT(line.end(line.grid - 1) == line.total);
  const unsigned least = line.total / line.grid;
  for (unsigned cta = 0; cta < line.grid; ++cta) {
    RC_ASSERT(cta == 0 || line.begin(cta) == line.end(cta - 1));
    // A split over 2^16 CTAs or more is rounded; what it misses is in the last range.
    const bool rounded = line.grid >= 65536 && cta + 1 == line.grid;
    RC_ASSERT(line.size(cta) >= least && line.size(cta) <= least + (rounded ? 16 : 1));
  }
}

RC_GTEST_PROP(Schedule, TheOwnerOfATileIsTheCtaWhoseRangeHoldsIt, ()) {
  const Line line{*any_total(), *any_grid()};
  const auto check = [&](unsigned tile) {
    const unsigned owner = line.owner(tile);
    RC_ASSERT(line.begin(owner) <= tile);
    RC_ASSERT(tile < line.end(owner));
  };
  for (int i = 0; i < 50; ++i) {
    check(static_cast<unsigned>(*rc::gen::inRange<std::uint64_t>(0, line.total)));
    // On both sides of a border the estimate may be wrong by one.
    const unsigned border = line.begin(*rc::gen::inRange(0u, line.grid));
    if (border > 0) check(border - 1);
    if (border < line.total) check(border);
  }
}

RC_GTEST_PROP(Schedule, EveryOutputTileHasOneHostAndNeighbouringContributors, ()) {
  const auto lengths = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 5000));
  RC_PRE(!lengths.empty());
  const int tile = *rc::gen::element(16, 64, 128);
  const unsigned kv_heads = *rc::gen::inRange(1u, 9u);
  unsigned total = 0;
  for (int length : lengths) total += lean_tiles_of(length, tile) * kv_heads;
  const Line line{total, *any_grid()};
  unsigned origin = 0;
  for (int length : lengths) {
    for (unsigned head = 0; head < kv_heads; ++head) {
      const unsigned tiles = lean_tiles_of(length, tile);
      const unsigned first = line.owner(origin), last = line.owner(origin + tiles - 1);
      RC_ASSERT(first <= last);
      for (unsigned cta = first; cta <= last; ++cta) {  // every CTA between them holds a piece of this tile
        RC_ASSERT(line.begin(cta) < origin + tiles);
        RC_ASSERT(line.end(cta) > origin);
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
  const Line line{outputs * tiles, outputs};
  for (unsigned cta = 0; cta < outputs; ++cta) EXPECT_EQ(line.begin(cta), cta * tiles);
}

RC_GTEST_PROP(Schedule, AGridThatIsAMultipleOfTheOutputTilesCutsThemAlike, ()) {
  const auto outputs = *rc::gen::inRange(1u, 3000u), tiles = *rc::gen::inRange(1u, 5000u);
  const auto splits = *rc::gen::inRange(1u, std::min(tiles, 65535 / outputs) + 1);
  const Line line{outputs * tiles, outputs * splits};
  for (unsigned cut = 0; cut < splits; ++cut) {
    const unsigned first = line.begin(cut);
    for (unsigned output = 0; output < outputs; ++output) {
      const unsigned here = line.begin(output * splits + cut) - output * tiles;
      if (cut == 0) RC_ASSERT(here == 0u);
      RC_ASSERT(here <= first && here + 1 >= first);  // the product is rounded
    }
  }
}

RC_GTEST_PROP(Schedule, LongerRangesLieEvenlyAmongTheOthers, ()) {
  const Line line{*any_total(), *rc::gen::inRange(1u, 65536u)};
  RC_PRE(line.total >= line.grid);
  const unsigned cta = *rc::gen::inRange(0u, line.grid);
  const double even = static_cast<double>(cta) * line.total / line.grid;
  RC_ASSERT(std::abs(line.begin(cta) - even) <= 1.0);
}

TEST(Schedule, MoreCtasThanTilesLeavesTheRestIdle) {
  const Line line{3, 10};
  for (unsigned cta = 0; cta < 10; ++cta) EXPECT_EQ(line.size(cta), cta < 3 ? 1u : 0u);
  EXPECT_EQ(line.owner(2), 2u);
}

TEST(Schedule, LinesOf30BitsAndMoreAreRefused) {
  EXPECT_TRUE(lean_line_fits(8, 1 << 20, 64, 0, 0));
  EXPECT_TRUE(lean_line_fits(4095 * 8, 1 << 20, 64, 0, 0));
  EXPECT_FALSE(lean_line_fits(4095 * 8, 1 << 20, 64, 1 << 15, 0));  // charges lie on the line too
  EXPECT_FALSE(lean_line_fits(4096 * 64, 1 << 30, 16, 0, 0));
  EXPECT_TRUE(lean_line_fits(0x3fffffffull, 0, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(0x40000000ull, 0, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(~0ull, ~0ull - 64, 16, 0, 0));
  // 2^13 requests of 2^17 - 1 tiles just fit. With sink tokens each may have one tile more.
  EXPECT_TRUE(lean_line_fits(1 << 13, ((1 << 17) - 1) * 16, 16, 0, 0));
  EXPECT_FALSE(lean_line_fits(1 << 13, ((1 << 17) - 1) * 16, 16, 0, 4));
}

RC_GTEST_PROP(Schedule, TheReciprocalSplitsAsADivisionDoes, ()) {
  const unsigned total = *rc::gen::oneOf(any_total(), rc::gen::arbitrary<unsigned>()), grid = *any_grid();
  RC_PRE(total >= grid);
  const LeanSplit split = lean_split(total, grid, lean_reciprocal(grid));
  RC_ASSERT(split.base == total / grid);
  RC_ASSERT(split.pace == total % grid * lean_reciprocal(grid));
}

}  // namespace
RC_GTEST_PROP(Schedule, SumsOfQuotientsAreWhatAddingThemUpGives, ()) {
  const auto count = *rc::gen::inRange(0u, 300u), by = *rc::gen::inRange(1u, 5000u);
  const auto first = *rc::gen::inRange(0u, 100000u), step = *rc::gen::inRange(0u, 9000u);
  unsigned sum = 0;
  for (unsigned i = 0; i < count; ++i) sum += (first + i * step) / by;
  RC_ASSERT(lean_sum_of_quotients(count, first, step, by) == sum);
}

RC_GTEST_PROP(Schedule, LeanTilesOfRowBlocksAreThoseUpToTheirLastQueryTokens, ()) {
  const int rows = *rc::gen::inRange(1, 200), group = *rc::gen::inRange(1, 130), tile = *rc::gen::inRange(1, 300);
  const int before = *rc::gen::oneOf(rc::gen::inRange(-500, 500), rc::gen::inRange(0, 1 << 29));
  const auto blocks = *rc::gen::inRange(0u, 100u);
  const int query_tokens = static_cast<int>(blocks) * rows / group + 1;
  unsigned sum = 0;
  for (unsigned block = 0; block < blocks; ++block) {
    const int end = lean_block_end(before, query_tokens, static_cast<int>(block), rows, group);
    // By the definition: the query token of the block's last row sees the context before it and itself.
    RC_ASSERT(end == std::max(before + (static_cast<int>(block + 1) * rows - 1) / group + 1, 0));
    sum += lean_tiles_of(end, tile);
  }
  RC_ASSERT(lean_tiles_of_blocks(before, blocks, rows, group, tile) == sum);
}

}  // namespace leanattn::device
