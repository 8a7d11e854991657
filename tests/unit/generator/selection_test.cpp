// selection_test.cpp -- the cursor of what query tokens have selected, run on 32 threads as a warp's lanes: it finds
// every row that a list names, and says of every other token that nobody sees it. The modules of kernels are compiled
// here as they are, once for each set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace selection {

#include "tests/device/begin.cuh"
constexpr int kTile = 16, kValueDim = 64;
#define CURSOR(second, block, in_pool, queries, causal, page, run, step, warps)                         \
  constexpr int kSelectionBlock = block, kSelectionQueries = queries, kPageSize = page, kPageRun = run, \
                kStepTokens = step, kWarps = warps;                                                     \
  constexpr bool kSelectionInPool = in_pool, kSelectionCausal = causal, kSecondCache = second;

namespace runs_of_a_step {
CURSOR(false, 64, false, 3, true, 16, 16, 16, 2)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace runs_of_a_step
namespace blocks_of_the_pool {
CURSOR(false, 16, true, 2, true, 64, 16, 64, 1)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace blocks_of_the_pool
namespace single_tokens {
CURSOR(false, 1, false, 1, true, 24, 1, 16, 3)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace single_tokens
namespace small_pages {
CURSOR(false, 32, false, 2, false, 8, 8, 32, 2)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace small_pages
namespace two_caches_of_runs {
CURSOR(true, 64, false, 3, true, 16, 16, 16, 2)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace two_caches_of_runs
namespace two_caches_of_pools {
CURSOR(true, 16, true, 2, true, 64, 16, 64, 1)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace two_caches_of_pools
namespace two_caches_of_tokens {
CURSOR(true, 1, false, 1, true, 24, 1, 16, 3)
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/selected.cuh"
}  // namespace two_caches_of_tokens
#undef CURSOR
#include "tests/device/end.cuh"

/// Two requests with random lists, in which a part of the entries and pages are holes of every kind.
struct Lists {
  static constexpr int kRequests = 2, kHeads = 2, kPoolPages = 300, kCapacity = 320, kTableWidth = 120;
  static constexpr int kSecondPages = 40, kSecondWidth = 30;
  std::vector<int> lengths, table, selection, second_table, second_lengths;
  LeanDecodeArgs args{};

  Lists(unsigned seed, int block, bool in_pool, int queries, int page) {
    std::mt19937 random(seed);
    const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    for (int i = 0; i < kRequests; ++i) lengths.push_back(draw(1, kTableWidth * page));
    for (int i = 0; i < kRequests * kTableWidth; ++i)
      table.push_back(draw(0, 9) == 0 ? (draw(0, 1) == 0 ? -1 : kPoolPages + draw(0, 5)) : draw(0, kPoolPages - 1));
    for (int i = 0; i < kRequests * queries * kHeads * kCapacity; ++i) {
      const int length = lengths[static_cast<std::size_t>(i / (queries * kHeads * kCapacity))];
      const int blocks = in_pool ? kPoolPages * page / block : (length + block - 1) / block;
      const int kind = draw(0, 11);
      selection.push_back(kind == 0   ? -1
                          : kind == 1 ? blocks + draw(0, 2)
                          : kind == 2 ? (draw(0, 1) == 0 ? 0x7fffffff : -0x7fffffff - 1)
                          : kind == 3 ? blocks - 1
                                      : draw(0, blocks - 1));
    }
    args.k = reinterpret_cast<const void*>(std::uintptr_t{1} << 40);
    args.v = reinterpret_cast<const void*>(std::uintptr_t{1} << 44);
    args.k_stride_token = 128, args.k_stride_head = 5000, args.k_stride_batch = 1 << 20;
    args.v_stride_token = 64, args.v_stride_head = 3000, args.v_stride_batch = 1 << 19;
    args.pool_pages = kPoolPages;
    args.page_table = table.data(), args.page_table_stride = kTableWidth;
    args.selection = selection.data(), args.selection_capacity = kCapacity;
    args.selection_stride_head = kCapacity, args.selection_stride_token = kHeads * kCapacity;
    args.selection_stride_batch = queries * kHeads * kCapacity;
    args.request_lengths = lengths.data(), args.request_capacity = kTableWidth * page;
    for (int i = 0; i < kRequests * kSecondWidth; ++i)
      second_table.push_back(draw(0, 9) == 0 ? (draw(0, 1) == 0 ? -1 : kSecondPages + draw(0, 5))
                                             : draw(0, kSecondPages - 1));
    // Lengths below 0 and above the capacity are clamped.
    for (int i = 0; i < kRequests * queries; ++i) second_lengths.push_back(draw(100, kSecondWidth * page));
    second_lengths.back() = kSecondWidth * page + 7;
    args.second_k = reinterpret_cast<const void*>((std::uintptr_t{1} << 40) - (1 << 30));  // before the first
    args.second_v = reinterpret_cast<const void*>((std::uintptr_t{1} << 44) + (1 << 29));
    args.second_page_table = second_table.data(), args.second_page_table_stride = kSecondWidth;
    args.second_lengths = second_lengths.data(), args.second_capacity = kSecondWidth * page;
    args.second_pool_pages = kSecondPages;
  }

  /// Tokens of the second cache that a request of the line sees.
  int second(int line_request) const {
    return std::clamp(second_lengths[static_cast<std::size_t>(line_request)], 0, args.second_capacity);
  }
  /// Where its token `token` lies there, as in place().
  std::pair<int, int> second_place(int line_request, int token, int queries, int page) const {
    if (token >= second(line_request)) return {-1, 0};
    const int found = second_table[static_cast<std::size_t>(line_request / queries * kSecondWidth + token / page)];
    if (found < 0 || found >= kSecondPages) return {-1, 0};
    return {found, token % page};
  }

  /// Where token `read` of a list lies, page and token of the page; a page below 0 where nobody sees it.
  std::pair<int, int> place(int line_request, int head, int read, int block, bool in_pool, int queries, bool causal,
                            int page) const {
    const int request = line_request / queries, query = line_request % queries;
    const std::int64_t entry =
        selection[static_cast<std::size_t>(((request * queries + query) * kHeads + head) * kCapacity + read / block)];
    const std::int64_t token = entry * block + read % block;
    if (entry < 0) return {-1, 0};
    if (in_pool) {
      if (token >= std::int64_t{kPoolPages} * page) return {-1, 0};
      return {static_cast<int>(token / page), static_cast<int>(token % page)};
    }
    const int length = lengths[static_cast<std::size_t>(request)];
    if (token >= length || (causal && token > length - queries + query)) return {-1, 0};
    const int found = table[static_cast<std::size_t>(request * kTableWidth + token / page)];
    if (found < 0 || found >= kPoolPages) return {-1, 0};
    return {found, static_cast<int>(token % page)};
  }
};

/// Walks the segments of some lists with the cursor, as every warp does.
template <class Cursor, class Segment, class Step, class HolesOf, class InHole>
void expect_every_row(bool two_caches, int block, bool in_pool, int queries, bool causal, int page, int step_tokens,
                      int warps, Segment (*segment_of)(int, int, int, int, int, int),
                      Step (*step_at)(const Segment&, int), HolesOf holes_of, InHole in_hole) {
  const int sampled = step_tokens > 32 ? 29 : 7;  // every so many tokens, because a shuffle of threads takes long
  int seen = 0, hidden = 0, of_second = 0;
  const Lists lists(7, block, in_pool, queries, page);
  // More than two reads of 32 runs by every warp.
  const int end = std::min(Lists::kCapacity * block, 1200);
  std::vector<Segment> segments;
  for (int request = 0; request < Lists::kRequests * queries; request += two_caches ? 1 : 3) {
    // With a second cache, lists of some entries, or of none, have its blocks behind them.
    const int selected = two_caches ? (request % 3 == 1 ? 0 : end / block / 2 - request) : end / block,
              all = (selected + (lists.second(request) + block - 1) / block) * block;
    segments.push_back(segment_of(request, request % 2, two_caches ? all / block : Lists::kCapacity,
                                  request % 2 == 0 ? 0 : step_tokens * warps,
                                  two_caches ? std::min(all, end + 208) : end, 0));
    segments.back().selected = selected;
  }
  run_lanes(kLanes, [&](u32 lane) {
    for (int warp = 0; warp < warps; ++warp) {
      Cursor at;
      at.init(lists.args, static_cast<int>(lane));
      for (const Segment& s : segments) {
        at.start(lists.args, s, warp);
        for (; !at.done(); at.next()) {
          const Step step = step_at(s, at.read);
          EXPECT_GE(at.tokens(), step.count);
          const auto holes = holes_of(lists.args, s, step);
          bool any = false;
          for (int offset = at.read / step_tokens % 11; offset < step.count; offset += sampled) {
            const int behind = at.read + offset - s.selected * block;
            const bool second = two_caches && behind >= 0;
            const std::pair<int, int> place =
                second ? lists.second_place(s.request, behind, queries, page)
                       : lists.place(s.request, s.kv_head, at.read + offset, block, in_pool, queries, causal, page);
            const int at_page = place.first, inner = place.second;
            if (lane == 0 && second && at_page >= 0) ++of_second;
            const char *k = at.k_row(offset), *v = at.v_row(offset);
            any |= at_page < 0;
            EXPECT_EQ(in_hole(holes, offset), at_page < 0) << "request " << s.request << " read " << at.read + offset;
            if (lane == 0) ++(at_page < 0 ? hidden : seen);
            if (at_page < 0) continue;
            const auto expected = [&](const void* base, i64 of_page, i64 of_head, i64 of_token) {
              return static_cast<const char*>(base) + 2 * (at_page * of_page + s.kv_head * of_head + inner * of_token);
            };
            const LeanDecodeArgs& a = lists.args;
            const void *const k_base = second ? a.second_k : a.k, *const v_base = second ? a.second_v : a.v;
            EXPECT_EQ(k, expected(k_base, a.k_stride_batch, a.k_stride_head, a.k_stride_token)) << at.read + offset;
            EXPECT_EQ(v, expected(v_base, a.v_stride_batch, a.v_stride_head, a.v_stride_token)) << at.read + offset;
          }
          EXPECT_TRUE(!any || at.holes) << "a step with a hole is looked at";
        }
      }
    }
  });
  EXPECT_GT(seen, 15);
  EXPECT_GT(hidden, 5);
  EXPECT_EQ(of_second > 15, two_caches);
}

#define EXPECT_EVERY_ROW(name)                                                                                   \
  expect_every_row<name::KvCursor, name::Segment, name::Step>(                                                   \
      name::kSecondCache, name::kSelectionBlock, name::kSelectionInPool, name::kSelectionQueries,                \
      name::kSelectionCausal, name::kPageSize, name::kStepTokens, name::kWarps, name::segment_of, name::step_at, \
      [](const LeanDecodeArgs& args, const name::Segment& s, const name::Step& step) {                           \
        return name::holes_of(args, s, step);                                                                    \
      },                                                                                                         \
      [](const name::Holes& holes, int offset) { return name::in_hole(holes, offset); })

TEST(Selection, TheCursorFindsBlocksThatAreLargerThanPages) { EXPECT_EVERY_ROW(runs_of_a_step); }
TEST(Selection, TheCursorFindsBlocksOfThePool) { EXPECT_EVERY_ROW(blocks_of_the_pool); }
TEST(Selection, TheCursorFindsSingleTokens) { EXPECT_EVERY_ROW(single_tokens); }
TEST(Selection, TheCursorFindsBlocksOverPagesThatAreSmallerThanAStep) { EXPECT_EVERY_ROW(small_pages); }

TEST(Selection, TheCursorGoesOnWithTheBlocksOfASecondCache) { EXPECT_EVERY_ROW(two_caches_of_runs); }
TEST(Selection, TheCursorGoesOnWithASecondCacheBesideAPool) { EXPECT_EVERY_ROW(two_caches_of_pools); }
TEST(Selection, TheCursorGoesOnWithTheTokensOfASecondCache) { EXPECT_EVERY_ROW(two_caches_of_tokens); }

TEST(Selection, ARunEndsWithTheTokensThatCount) {
  using namespace single_tokens;
  const auto run = [](int entry, int offset, int tokens) { return lean_selected_run(entry, offset, 64, 16, tokens); };
  EXPECT_EQ(run(2, 16, 1000).token, 144);
  EXPECT_EQ(run(2, 16, 1000).count, 16);
  EXPECT_EQ(run(2, 16, 150).count, 6) << "the context ends inside the run";
  EXPECT_EQ(run(2, 16, 144).token, -1) << "or in front of it";
  EXPECT_EQ(run(-1, 0, 1000).token, -1);
  EXPECT_EQ(run(0x7fffffff, 0, 1000).token, -1) << "and no product overflows";
  EXPECT_EQ(run(0, 0, 0).token, -1);
  EXPECT_EQ(run(0, 0, -2).token, -1);
  EXPECT_EQ(run(15, 48, 0x7fffffff).token, 15 * 64 + 48);
  EXPECT_EQ(lean_selectable_tokens(100, 4, 3, true), 100);
  EXPECT_EQ(lean_selectable_tokens(100, 4, 0, true), 97);
  EXPECT_EQ(lean_selectable_tokens(100, 4, 0, false), 100);
}

TEST(Selection, AKernelsLineHasARequestForEachQueryToken) {
  LeanDecodeArgs args{};
  const std::array<int, 2> lengths{500, 7}, counts{3, 4};
  args.batch = 2, args.context_lengths = lengths.data(), args.context_capacity = 512;
  args.selected_counts = counts.data(), args.selection_capacity = 8;
  const LeanDecodeArgs line = lean_line_of_selection(args, 5);
  EXPECT_EQ(line.batch, 10);
  EXPECT_EQ(line.context_lengths, counts.data());
  EXPECT_EQ(line.context_capacity, 8);
  EXPECT_EQ(line.request_lengths, lengths.data());
  EXPECT_EQ(line.request_capacity, 512);
}

}  // namespace selection
}  // namespace
}  // namespace leanattn::device
