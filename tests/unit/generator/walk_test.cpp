// walk_test.cpp -- the walks of all CTAs along the line, run on 32 threads as the lanes of a warp: every LeanTile of
// every output tile belongs to one segment of one CTA, whether a request is a context, or a query token's list with the
// blocks of a second cache behind it, or has its own number of query tokens. The modules of kernels are compiled here
// as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace walk {

/// The kernel of a namespace, for templates.
#define WALKED_KERNEL                                                                         \
  struct Kernel {                                                                             \
    using Line = Walk;                                                                        \
    static constexpr int kMostTokens = kQLen, kHeadsOfGroup = kGroup, kRowsOfBlock = kRows,   \
                         kInStep = kRowBlocksInStep, kTokensOfTile = kTile, kSees = kWindow;  \
    static bool start(const LeanDecodeArgs& args, u32* sums, Walk& at) {                      \
      return start_walk(args, first_length(args), sums, at);                                  \
    }                                                                                         \
    static bool next(const LeanDecodeArgs& args, Walk& at) { return next_segment(args, at); } \
    static int end(const Segment& s) { return end_read(s) + s.visible.shift; }                \
    static int behind_sinks(const Segment& s) { return sinks_end(s) + s.visible.shift; }      \
  };

#include "tests/device/begin.cuh"
constexpr int kGroup = 4, kSelectionQueries = 2, kStepTokens = 16;
namespace contexts {
#include "tests/device/line.cuh"
}  // namespace contexts
#define LEAN_HEADS_IN_STEP
namespace heads_in_step {
#include "tests/device/line.cuh"
}  // namespace heads_in_step
#undef LEAN_HEADS_IN_STEP
namespace two_caches {
constexpr int kSelectionBlock = 16;
constexpr bool kSecondCache = true;
#include "tests/device/line.cuh"
}  // namespace two_caches
namespace ragged {
constexpr int kQLen = 40, kRowBlocks = 6, kTile = 16;  // 27 rows of 4 heads each: row blocks share query tokens
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"
WALKED_KERNEL
}  // namespace ragged
namespace ragged_in_step {
constexpr int kQLen = 6, kGroup = 20, kRowBlocks = 8, kRowBlocksInStep = 2, kTile = 16;
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"
WALKED_KERNEL
}  // namespace ragged_in_step
namespace ragged_window {
constexpr int kQLen = 9, kRowBlocks = 3, kTile = 16, kWindow = 50, kSinkTokens = 3;
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"
WALKED_KERNEL
}  // namespace ragged_window
#define LEAN_PASSES
namespace ragged_in_passes {
constexpr int kQLen = 40, kRowBlocks = 6, kTile = 16, kMostPasses = 4;
constexpr unsigned kTilePositions = 5, kLightTilePositions = 4;
constexpr bool kRaggedQ = true;
#include "tests/device/line.cuh"
/// As WALKED_KERNEL, but each CTA finds its next piece where it begins.
struct Kernel {
  struct Line : Walk {
    Walk rest;
    bool any_rest = false;
  };
  static constexpr int kMostTokens = kQLen, kHeadsOfGroup = kGroup, kRowsOfBlock = kRows, kInStep = kRowBlocksInStep,
                       kTokensOfTile = kTile, kSees = kWindow;
  static bool start(const LeanDecodeArgs& args, u32* sums, Line& at) {
    if (!start_walk(args, first_length(args), sums, at, at.rest, at.any_rest)) return false;
    // It begins with an output tile, if the range has the beginning of any.
    Walk behind = at;
    EXPECT_TRUE(at.segment.tile_begin == 0 || !next_of_range(args, behind));
    return true;
  }
  static bool next(const LeanDecodeArgs& args, Line& at) {
    if (next_of_range(args, at)) return true;
    if (at.any_rest) {
      at.any_rest = false, static_cast<Walk&>(at) = at.rest;
      return true;
    }
    while (++at.pass < 1u << at.shift)
      if (start_pieces<false>(args, first_length(args), nullptr, at, at.rest, at.any_rest)) return true;
    return false;
  }
  static int end(const Segment& s) { return end_read(s) + s.visible.shift; }
  static int behind_sinks(const Segment& s) { return sinks_end(s) + s.visible.shift; }
};
}  // namespace ragged_in_passes
#undef LEAN_PASSES
#include "tests/device/end.cuh"

constexpr int kHeads = 2, kCapacity = 500, kSecondCapacity = 700;

/// Lengths of `batch` requests of the line; some are empty, below 0 or above the capacity.
std::vector<int> lengths_of(int batch, int capacity, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> lengths;
  for (int i = 0; i < batch; ++i) {
    const int kind = static_cast<int>(random() % 8);
    lengths.push_back(kind == 0   ? 0
                      : kind == 1 ? -5
                      : kind == 2 ? capacity + 9
                                  : static_cast<int>(random() % static_cast<unsigned>(capacity + 1)));
  }
  return lengths;
}

/// Lets `grid` CTAs walk. `length` is what a request counts on the line, `tokens` what of that is read. `look` sees
/// each segment.
template <class Walk, class Start, class Next, class EndRead>
void expect_all_tiles(LeanDecodeArgs args, unsigned grid, Start start, Next next, EndRead end_read,
                      const std::vector<int>& lengths, const std::vector<int>& tokens,
                      const std::function<void(const Walk&)>& look = {}, unsigned ctas_of_range = 1) {
  args.grid_reciprocal = lean_reciprocal(grid / ctas_of_range);
  std::map<std::pair<int, int>, std::vector<int>> times;  // of each request and KV head, of each of its LeanTiles
  for (int request = 0; request < args.batch; ++request)
    for (int head = 0; head < kHeads; ++head)
      times[{request, head}].resize(lean_tiles_of(tokens[static_cast<std::size_t>(request)], kTile));
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
      static u32 part_sums[32];
      Walk at;
      for (bool more = start(args, part_sums, at); more; more = next(args, at)) {
        if (lane != 0) continue;
        const auto& s = at.segment;
        const auto request = static_cast<std::size_t>(s.request);
        EXPECT_EQ(s.context_length, lengths[request]);
        if (s.tile_end == s.tiles) {
          EXPECT_EQ(end_read(s), tokens[request]);
        }
        std::vector<int>& of = times[{s.request, s.kv_head}];
        ASSERT_EQ(s.tiles, of.size());
        for (u32 tile = s.tile_begin; tile < s.tile_end; ++tile) ++of[tile];
        if (look) look(at);
      }
    }
  });
  for (const auto& [output, of] : times)
    EXPECT_EQ(std::count(of.begin(), of.end(), 1), static_cast<std::ptrdiff_t>(of.size()))
        << "request " << output.first << " of " << args.batch << ", head " << output.second << ", grid " << grid;
}

TEST(Walk, EveryLeanTileOfEveryContextIsWalkedOnce) {
  for (const int batch : {1, 5, 32, 40, 100, 300}) {
    for (const unsigned grid : {1u, 7u, 45u}) {
      const std::vector<int> given = lengths_of(batch, kCapacity, 3);
      std::vector<int> lengths;
      for (const int length : given) lengths.push_back(std::clamp(length, 0, kCapacity));
      LeanDecodeArgs args{};
      args.batch = batch, args.kv_heads = kHeads, args.segment_cost = grid % 2;
      args.context_lengths = given.data(), args.context_capacity = kCapacity;
      expect_all_tiles<contexts::Walk>(
          args, grid,
          [](const LeanDecodeArgs& a, u32* sums, contexts::Walk& at) {
            return contexts::start_walk(a, contexts::first_length(a), sums, at);
          },
          contexts::next_segment, contexts::end_read, lengths, lengths);
    }
  }
}

TEST(Walk, KvHeadsInStepHaveTheSameRanges) {
  for (const int batch : {1, 5, 32, 40, 300}) {
    for (const unsigned ranges : {1u, 7u, 45u}) {
      const std::vector<int> given = lengths_of(batch, kCapacity, 3);
      std::vector<int> lengths;
      for (const int length : given) lengths.push_back(std::clamp(length, 0, kCapacity));
      LeanDecodeArgs args{};
      args.batch = batch, args.kv_heads = kHeads, args.segment_cost = ranges % 2;
      args.context_lengths = given.data(), args.context_capacity = kCapacity;
      std::map<u32, std::vector<std::tuple<int, u32, u32>>> segments;  // of each CTA
      expect_all_tiles<heads_in_step::Walk>(
          args, ranges * kHeads,
          [](const LeanDecodeArgs& a, u32* sums, heads_in_step::Walk& at) {
            return heads_in_step::start_walk(a, heads_in_step::first_length(a), sums, at);
          },
          heads_in_step::next_segment, heads_in_step::end_read, lengths, lengths,
          [&](const heads_in_step::Walk& at) {
            EXPECT_EQ(at.segment.kv_head, static_cast<int>(blockIdx.x % kHeads));
            segments[blockIdx.x].emplace_back(at.segment.request, at.segment.tile_begin, at.segment.tile_end);
          },
          kHeads);
      for (u32 range = 0; range < ranges; ++range) {
        EXPECT_EQ(segments[range * kHeads], segments[range * kHeads + 1]);
      }
    }
  }
}

TEST(Walk, EveryBlockOfAListAndOfTheSecondCacheBehindItIsWalkedOnce) {
  for (const int batch : {2, 6, 32, 40, 100, 300}) {
    for (const unsigned grid : {1u, 7u, 45u}) {
      // Lists count entries of 16 tokens, and the second cache counts tokens.
      const std::vector<int> counts = lengths_of(batch, 40, 4), second = lengths_of(batch, kSecondCapacity, 5);
      std::vector<int> lengths, tokens, selected;
      for (std::size_t i = 0; i < counts.size(); ++i) {
        selected.push_back(std::clamp(counts[i], 0, 40));
        lengths.push_back(selected.back() + (std::clamp(second[i], 0, kSecondCapacity) + 15) / 16);
        tokens.push_back(lengths.back() * 16);
      }
      LeanDecodeArgs args{};
      args.batch = batch, args.kv_heads = kHeads, args.segment_cost = grid % 2;
      args.context_lengths = counts.data(), args.context_capacity = 40;
      args.second_lengths = second.data(), args.second_capacity = kSecondCapacity;
      expect_all_tiles<two_caches::Walk>(
          args, grid,
          [](const LeanDecodeArgs& a, u32* sums, two_caches::Walk& at) {
            return two_caches::start_walk(a, two_caches::first_length(a), sums, at);
          },
          two_caches::next_segment, two_caches::end_read, lengths, tokens,
          [&](const two_caches::Walk& at) {
            EXPECT_EQ(at.segment.selected, selected[static_cast<std::size_t>(at.segment.request)]);
          });
    }
  }
}

/// What the row blocks of a request read: of each that has rows, the token index behind the last one that any row sees,
/// which with row blocks in step is that of all of them.
std::vector<int> ends_of(int length, int count, int group, int rows, int in_step) {
  std::vector<int> ends;
  for (int first = 0; first < count * group; first += rows * in_step) {
    const int last_token = (std::min(first + rows * in_step, count * group) - 1) / group;
    ends.insert(ends.end(), static_cast<std::size_t>(in_step), std::max(length - count + last_token + 1, 0));
  }
  return ends;
}

template <class Kernel>
void expect_all_rows_read_what_they_see(int batch, unsigned grid, unsigned seed, bool empty, int capacity = kCapacity) {
  constexpr int kBlocks =
      (Kernel::kMostTokens * Kernel::kHeadsOfGroup + Kernel::kRowsOfBlock - 1) / Kernel::kRowsOfBlock;
  std::mt19937 random(seed);
  const std::vector<int> lengths = lengths_of(batch, capacity, seed);
  std::vector<int> starts{0};
  for (int i = 0; i < batch; ++i) {
    const int most = empty ? 0 : random() % 3 == 0 ? 1 : Kernel::kMostTokens;
    starts.push_back(starts.back() + static_cast<int>(random() % static_cast<unsigned>(most + 1)));
  }
  // Of each request, KV head and row block: how often each of its LeanTiles is walked.
  std::map<std::tuple<int, int, int>, std::map<u32, int>> times;
  std::map<std::tuple<int, int, int>, u32> tiles;
  LeanDecodeArgs args{};
  args.batch = batch, args.kv_heads = kHeads, args.segment_cost = seed % 3;
  args.context_lengths = lengths.data(), args.context_capacity = capacity, args.q_offsets = starts.data();
  args.grid_reciprocal = lean_reciprocal(grid);
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = grid * static_cast<unsigned>(Kernel::kInStep);
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
      static u32 part_sums[32];
      typename Kernel::Line at;
      for (bool more = Kernel::start(args, part_sums, at); more; more = Kernel::next(args, at)) {
        if (lane != 0) continue;
        const auto& s = at.segment;
        const std::tuple output{s.request, s.kv_head, s.row_block};
        ASSERT_LT(s.row_block, kBlocks);
        for (u32 tile = s.tile_begin; tile < s.tile_end; ++tile) ++times[output][tile];
        const auto [known, first] = tiles.emplace(output, s.tiles);
        EXPECT_EQ(known->second, s.tiles);
        if (s.tile_end != s.tiles) continue;
        const auto r = static_cast<std::size_t>(s.request);
        const int length = std::clamp(lengths[r], 0, capacity), count = starts[r + 1] - starts[r];
        const std::vector<int> ends =
            ends_of(length, count, Kernel::kHeadsOfGroup, Kernel::kRowsOfBlock, Kernel::kInStep);
        ASSERT_LT(static_cast<std::size_t>(s.row_block), ends.size());
        EXPECT_EQ(Kernel::end(s), ends[static_cast<std::size_t>(s.row_block)]);
        if (Kernel::kSees > 0) {
          const int first_query = length - count + s.row_block * Kernel::kRowsOfBlock / Kernel::kHeadsOfGroup;
          EXPECT_LE(Kernel::behind_sinks(s), std::max(first_query - Kernel::kSees + 1, 0));
          EXPECT_GT(static_cast<int>(s.tiles) * Kernel::kTokensOfTile, Kernel::end(s) - s.visible.shift - 1);
        } else {
          EXPECT_EQ(s.tiles, lean_tiles_of(Kernel::end(s), Kernel::kTokensOfTile));
        }
      }
    }
  });
  for (int request = 0; request < batch; ++request) {
    const auto r = static_cast<std::size_t>(request);
    const int count = starts[r + 1] - starts[r];
    const auto blocks =
        static_cast<int>(ends_of(0, count, Kernel::kHeadsOfGroup, Kernel::kRowsOfBlock, Kernel::kInStep).size());
    for (int head = 0; head < kHeads; ++head)
      for (int block = 0; block < std::max(blocks, kBlocks); ++block) {
        const std::map<u32, int>& of = times[{request, head, block}];
        const std::size_t expected = block < blocks ? tiles[{request, head, block}] : 0;
        ASSERT_EQ(of.size(), expected) << "request " << request << " of " << batch << ", " << count
                                       << " query tokens, row block " << block << ", grid " << grid;
        ASSERT_TRUE(std::ranges::all_of(of, [](const auto& tile) { return tile.second == 1; }));
        if (block < blocks) {
          ASSERT_GT(expected, 0u);
        }
      }
  }
}

TEST(Walk, RequestsWithTheirOwnNumbersOfQueryTokensHaveOnlyTheOutputTilesThatTheseFill) {
  for (const auto& [batch, grid] : {std::pair{1, 7u}, {5, 45u}, {32, 1u}, {40, 7u}, {300, 45u}}) {
    const unsigned seed = grid + static_cast<unsigned>(batch);
    expect_all_rows_read_what_they_see<ragged::Kernel>(batch, grid, seed, false);
    expect_all_rows_read_what_they_see<ragged_in_step::Kernel>(batch, grid, seed, false);
    expect_all_rows_read_what_they_see<ragged_window::Kernel>(batch, grid, seed, false);
    expect_all_rows_read_what_they_see<ragged::Kernel>(batch, 7, 1, true);
  }
}

TEST(Walk, AWalkInPassesReachesEveryLeanTileOnce) {
  // 2 KV heads of 32 requests are enough for two passes, and of long contexts.
  for (const unsigned grid : {3u, 5u, 40u})
    expect_all_rows_read_what_they_see<ragged_in_passes::Kernel>(32, grid, grid, false, 6000);
  expect_all_rows_read_what_they_see<ragged_in_passes::Kernel>(5, 3, 1, false, 6000);
  expect_all_rows_read_what_they_see<ragged_in_passes::Kernel>(40, 3, 1, false, 6000);
}

}  // namespace walk
}  // namespace
}  // namespace leanattn::device
