// walk_test.cpp -- the walks of all CTAs along the line, run on 32 threads as the lanes of a warp: every LeanTile of
// every request belongs to one segment of one CTA, whether a request is a context or a query token's list with the
// blocks of a second cache behind it. The modules of kernels are compiled here as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace walk {

#include "tests/device/begin.cuh"
constexpr int kGroup = 4, kSelectionQueries = 2, kStepTokens = 16;
namespace contexts {
#include "tests/device/line.cuh"
}  // namespace contexts
namespace two_caches {
constexpr int kSelectionBlock = 16;
constexpr bool kSecondCache = true;
#include "tests/device/line.cuh"
}  // namespace two_caches
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
                      const std::function<void(const Walk&)>& look = {}) {
  args.grid_reciprocal = lean_reciprocal(grid);
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

}  // namespace walk
}  // namespace
}  // namespace leanattn::device
