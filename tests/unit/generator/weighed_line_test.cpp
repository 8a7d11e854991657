// weighed_line_test.cpp -- the walks of all CTAs along a line on which a LeanTile takes several positions, and fewer
// where an output tile has few rows: every LeanTile is walked once, the positions of a range are what its LeanTiles
// take, and the CTAs that share an output tile agree about it. The modules of kernels are compiled here as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace weighed {

int leanattn_ptx(const char*) { return 0; }  // what keeps values out of registers

#define WEIGHED_KERNEL                                                                                       \
  struct Kernel {                                                                                            \
    using Line = Walk;                                                                                       \
    static constexpr int kMostTokens = kQLen, kHeadsOfGroup = kGroup, kRowsOfBlock = kRows, kSees = kWindow; \
    static constexpr u32 kHeavy = kTilePositions, kLight = kLightTilePositions;                              \
    static bool start(const LeanDecodeArgs& args, u32* sums, Walk& at) {                                     \
      return start_walk(args, first_length(args), sums, at);                                                 \
    }                                                                                                        \
    static bool next(const LeanDecodeArgs& args, Walk& at) { return next_segment(args, at); }                \
    static auto contributors(const LeanDecodeArgs& args, const Walk& at) {                                   \
      const Contributors c = contributors_of(args, at);                                                      \
      return std::tuple{c.first_slot, c.count, c.mine};                                                      \
    }                                                                                                        \
  };

#include "tests/device/begin.cuh"
constexpr int kGroup = 4, kQLen = 70, kRowBlocks = 3, kTile = 16, kStepTokens = 16;  // 94 rows: blocks share tokens
constexpr bool kRaggedQ = true;
namespace alike {
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"
WEIGHED_KERNEL
}  // namespace alike
namespace prefill {
constexpr unsigned kTilePositions = 5, kLightTilePositions = 4;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"
WEIGHED_KERNEL
}  // namespace prefill
namespace prefill_window {
constexpr unsigned kTilePositions = 5, kLightTilePositions = 4;
constexpr int kWindow = 50, kSinkTokens = 3;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

#include "templates/merge/workspace.cuh"
WEIGHED_KERNEL
}  // namespace prefill_window
#undef WEIGHED_KERNEL
#include "tests/device/end.cuh"

constexpr int kHeads = 2, kCapacity = 500;

/// A launch's requests. Some are empty, some have no query token, many have one.
struct Requests {
  std::vector<int> lengths, starts{0};
  int count(int request) const {
    const auto r = static_cast<std::size_t>(request);
    return starts[r + 1] - starts[r];
  }
};
Requests requests_of(int batch, int most_tokens, std::mt19937& random) {
  const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  Requests requests;
  for (int i = 0; i < batch; ++i) {
    requests.lengths.push_back(random() % 6 == 0 ? 0 : up_to(kCapacity));
    const int count = random() % 6 == 0 ? 0 : random() % 2 == 0 ? 1 : up_to(most_tokens);
    requests.starts.push_back(requests.starts.back() + count);
  }
  return requests;
}

using Output = std::tuple<int, int, int>;  // request, KV head, row block

/// What all CTAs of a launch walked.
struct Walked {
  struct Tiles {
    u32 all = 0;
    std::map<u32, int> times;  // of each LeanTile
  };
  struct Contribution {
    u32 cta, first_slot, count, mine, tile_begin;
    bool whole;
  };
  std::map<Output, Tiles> tiles;
  std::map<Output, std::vector<Contribution>> contributions;
  std::vector<u32> work;    // of each CTA: the positions of its LeanTiles
  std::vector<u32> ranges;  // and of its range
  u32 line = 0;
};

template <class Kernel>
u32 weight_of(int query_tokens, int row_block) {
  const int rows = query_tokens * Kernel::kHeadsOfGroup - row_block * Kernel::kRowsOfBlock;
  return 2 * rows <= Kernel::kRowsOfBlock ? Kernel::kLight : Kernel::kHeavy;
}

template <class Kernel>
Walked walk_all(const LeanDecodeArgs& args, const Requests& requests, unsigned grid) {
  Walked walked;
  walked.work.resize(grid);
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
      static u32 part_sums[32];
      typename Kernel::Line at{};
      const bool any = Kernel::start(args, part_sums, at);
      if (lane == 0) walked.line = std::max(walked.line, at.end);
      for (bool more = any; more; more = Kernel::next(args, at)) {
        const auto [first_slot, count, mine] = Kernel::contributors(args, at);
        if (lane != 0) continue;
        const auto& s = at.segment;
        EXPECT_LT(s.tile_begin, s.tile_end) << "a segment without a LeanTile";
        const Output output{s.request, s.kv_head, s.row_block};
        auto& tiles = walked.tiles[output];
        EXPECT_TRUE(tiles.all == 0 || tiles.all == s.tiles);
        tiles.all = s.tiles;
        for (u32 tile = s.tile_begin; tile < s.tile_end; ++tile) ++tiles.times[tile];
        walked.contributions[output].push_back(
            {blockIdx.x, first_slot, count, mine, s.tile_begin, s.tile_begin == 0 && s.tile_end == s.tiles});
        walked.work[blockIdx.x] +=
            (s.tile_end - s.tile_begin) * weight_of<Kernel>(requests.count(s.request), s.row_block);
      }
    }
  });
  const LeanSplit split = lean_split<Kernel::kHeavy>(walked.line, grid, lean_reciprocal(grid));
  for (unsigned cta = 0; cta < grid; ++cta)
    walked.ranges.push_back(lean_range_end(split, cta, grid, walked.line) - lean_range_begin(split, cta, walked.line));
  return walked;
}

/// The positions of the whole line, worked out output tile by output tile.
template <class Kernel>
u32 positions_of_line(const Requests& requests, u32 segment_cost, const Walked& walked) {
  u32 line = 0;
  for (const auto& [output, tiles] : walked.tiles) {
    const auto& [request, head, block] = output;
    line += segment_cost * Kernel::kHeavy + tiles.all * weight_of<Kernel>(requests.count(request), block);
  }
  return line;
}

template <class Kernel>
void expect_every_tile_once(const Requests& requests, const Walked& walked) {
  std::size_t outputs = 0;
  for (int request = 0; request < static_cast<int>(requests.lengths.size()); ++request) {
    const int count = requests.count(request), rows = count * Kernel::kHeadsOfGroup;
    for (int head = 0; head < kHeads; ++head) {
      for (int block = 0; block * Kernel::kRowsOfBlock < rows; ++block, ++outputs) {
        const auto found = walked.tiles.find({request, head, block});
        ASSERT_NE(found, walked.tiles.end()) << "request " << request << ", row block " << block;
        const auto& [all, times] = found->second;
        ASSERT_EQ(times.size(), all);
        ASSERT_TRUE(std::ranges::all_of(times, [](const auto& tile) { return tile.second == 1; }));
        if (Kernel::kSees == 0) {
          const int last_token = (std::min((block + 1) * Kernel::kRowsOfBlock, rows) - 1) / Kernel::kHeadsOfGroup,
                    end = requests.lengths[static_cast<std::size_t>(request)] - count + last_token + 1;
          ASSERT_EQ(all, lean_tiles_of(end, kTile));
        }
      }
    }
  }
  EXPECT_EQ(walked.tiles.size(), outputs) << "output tiles that no query token fills";
}

/// The CTAs of an output tile agree on who they are, and are neighbours, each with LeanTiles of it.
void expect_contributors_agree(const Walked& walked) {
  for (const auto& [output, contributions] : walked.contributions) {
    u32 number = 0, tile = 0;
    for (const auto& c : contributions) {  // in the order of CTAs
      ASSERT_EQ(c.count, contributions.size()) << "CTA " << c.cta << ", request " << std::get<0>(output);
      ASSERT_EQ(c.mine, number++);
      ASSERT_EQ(c.first_slot, contributions.front().cta);
      ASSERT_EQ(c.cta, c.first_slot + c.mine) << "a CTA without a LeanTile lies between two that share an output tile";
      ASSERT_TRUE(c.mine == 0 || c.tile_begin > tile) << "contributors are in context order";
      ASSERT_EQ(c.whole, c.count == 1);
      tile = c.tile_begin;
    }
  }
}

/// Ranges take equal times: they differ by one position, but for those at the end of a short line.
template <class Kernel>
void expect_equal_ranges(const Walked& walked, u32 segment_cost) {
  const u32 most = *std::ranges::max_element(walked.ranges);
  bool behind = false;  // the last range that has positions
  for (std::size_t cta = 0; cta < walked.ranges.size(); ++cta) {
    const u32 range = walked.ranges[cta];
    if (behind) {
      EXPECT_EQ(range, 0u) << "CTA " << cta;
    } else if (range + 1 < most) {
      EXPECT_EQ(most, Kernel::kHeavy) << "only a range of one LeanTile may be longer than another by more";
      behind = true;
    }
    // LeanTiles are where their first position is.
    EXPECT_LT(walked.work[cta], range + Kernel::kHeavy) << "CTA " << cta;
    if (segment_cost == 0) {
      EXPECT_LT(range, walked.work[cta] + Kernel::kHeavy) << "CTA " << cta;
    }
  }
}

template <class Kernel>
void check(int batch, unsigned grid, u32 segment_cost, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << batch << " requests, " << grid << " CTAs, segment cost " << segment_cost
                                  << ", a LeanTile of " << Kernel::kHeavy << ", window " << Kernel::kSees);
  const Requests requests = requests_of(batch, Kernel::kMostTokens, random);
  LeanDecodeArgs args{};
  args.batch = batch, args.kv_heads = kHeads, args.segment_cost = segment_cost;
  args.context_lengths = requests.lengths.data(), args.context_capacity = kCapacity;
  args.q_offsets = requests.starts.data(), args.grid_reciprocal = lean_reciprocal(grid);
  const Walked walked = walk_all<Kernel>(args, requests, grid);
  EXPECT_EQ(walked.line, positions_of_line<Kernel>(requests, segment_cost, walked));
  expect_every_tile_once<Kernel>(requests, walked);
  expect_contributors_agree(walked);
  expect_equal_ranges<Kernel>(walked, segment_cost);
}

TEST(WeighedLine, EveryLeanTileIsWalkedOnceAndTheCtasOfAnOutputTileAgree) {
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) + 5);
  // Up to 32, 64, 256 and more requests are searched in ways of their own; a grid may exceed the LeanTiles.
  for (const auto& [least, most] : {std::pair{1, 1}, {2, 5}, {2, 32}, {33, 64}, {65, 256}, {257, 300}}) {
    for (const unsigned largest_grid : {12u, 80u}) {
      const int batch = least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1));
      const unsigned grid = 1 + static_cast<unsigned>(random()) % largest_grid;
      const u32 segment_cost = random() % 4;
      check<prefill::Kernel>(batch, grid, segment_cost, random);
      check<prefill_window::Kernel>(batch, grid, random() % 2, random);
    }
  }
  check<prefill::Kernel>(2, 400, 0, random);
  check<prefill::Kernel>(1, 60, 3, random);
  check<alike::Kernel>(20, 33, 1, random);
}

}  // namespace weighed
}  // namespace
}  // namespace leanattn::device
