// part_of_context_test.cpp -- what a rank of a group reads and sees of the part of a context that it holds, with a
// window over the positions of the whole context: every token that a query token sees is read once, whole LeanTiles
// that nobody sees are not, masks and the positions that scores get agree with the definition, and new tokens are
// written by the rank that owns them. The modules of kernels are compiled here as they are, once for each set of
// constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace part_of_context {

#include "tests/device/begin.cuh"
/// What append writes: a chunk of 16 bytes of a row says where it comes from, and the position for which it is turned.
struct Written {
  const char *to, *from;
  int position;
};
inline std::vector<Written> written;
inline uint4 chunk(const void* from, int position) {
  const auto at = std::bit_cast<std::uint64_t>(from);
  return {static_cast<u32>(at), static_cast<u32>(at >> 32), static_cast<u32>(position), 0};
}
template <class T>
T load_cached(const char* from) {
  return chunk(from, -1);
}
inline uint4 rotated_16(const LeanDecodeArgs&, const char* row, int, int position) { return chunk(row, position); }
inline void store_kv_chunk(char* row, int, const uint4& x, float) {
  written.push_back({row, std::bit_cast<const char*>(u64{x.y} << 32 | x.x), static_cast<int>(x.z)});
}

#define LEAN_POSITIONS
#define LEAN_WINDOW_OF_PART
#define LEAN_INDEX_OF_PART
constexpr int kGroup = 2, kHeadDim = 8, kValueDim = 8;
constexpr bool kAppend = true;
inline float score_expression(float, int q_index, int kv_index, int) { return 1000.0f * q_index + kv_index; }
#define PART(ranks, unit, q_len, ragged, window, sinks, tile, step, run)                                         \
  constexpr int kContextRanks = ranks, kInterleave = unit, kQLen = q_len, kWindow = window, kSinkTokens = sinks, \
                kTile = tile, kStepTokens = step, kPageRun = run;                                                \
  constexpr bool kRaggedQ = ragged;

namespace contiguous {
PART(3, 0, 1, false, 40, 5, 32, 16, 1)
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_elements.cuh"

#include "templates/kv/append_to_cache.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
}  // namespace contiguous
namespace contiguous_rows {
PART(2, 0, 4, true, 25, 40, 32, 16, 8)
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_elements.cuh"

#include "templates/kv/append_to_cache.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
}  // namespace contiguous_rows
namespace single_tokens {
PART(3, 1, 3, false, 50, 7, 16, 16, 1)
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_elements.cuh"

#include "templates/kv/append_to_cache.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
}  // namespace single_tokens
namespace units {
PART(4, 16, 2, true, 1, 0, 16, 16, 16)
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_elements.cuh"

#include "templates/kv/append_to_cache.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
}  // namespace units
namespace large_units {
PART(2, 64, 1, false, 100, 70, 48, 16, 16)
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/append_elements.cuh"

#include "templates/kv/append_to_cache.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
}  // namespace large_units
#undef PART
#undef LEAN_INDEX_OF_PART
#undef LEAN_WINDOW_OF_PART
#undef LEAN_POSITIONS
#include "tests/device/end.cuh"

/// Requests of random lengths, dealt to the ranks of a group, as one of them has them.
struct Parts {
  int ranks, unit, rank, q_len;
  std::vector<int> full, lengths, starts, q_offsets{0};
  LeanDecodeArgs args{};

  Parts(std::mt19937& random, int ranks_of_group, int unit_tokens, int own_rank, int most_query_tokens, bool ragged,
        int batch)
      : ranks(ranks_of_group), unit(unit_tokens), rank(own_rank), q_len(most_query_tokens) {
    const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
    for (int request = 0; request < batch; ++request) {
      const int whole = draw(0, 5) == 0 ? draw(0, 6) : draw(0, 700);
      full.push_back(whole);
      std::vector<int> cuts{0, whole};
      for (int i = 1; i < ranks; ++i) cuts.push_back(draw(0, 3) == 0 ? draw(0, 1) * whole : draw(0, whole));
      std::sort(cuts.begin(), cuts.end());
      const auto at = static_cast<std::size_t>(rank);
      starts.push_back(unit > 0 ? 0 : cuts[at]);
      int length = cuts[at + 1] - cuts[at];
      if (unit > 0) {
        length = 0;
        for (int position = 0; position < whole; ++position) length += position / unit % ranks == rank;
      }
      lengths.push_back(length);
      q_offsets.push_back(q_offsets.back() + (ragged ? draw(0, q_len) : q_len));
    }
    args.context_lengths = lengths.data(), args.batch = batch, args.kv_heads = 2, args.context_capacity = 1000;
    args.segment_cost = 1;
    args.full_lengths = full.data(), args.context_starts = unit > 0 ? nullptr : starts.data();
    args.group_rank = rank, args.q_offsets = q_offsets.data();
    args.k = reinterpret_cast<const void*>(std::uintptr_t{1} << 40);
    args.v = reinterpret_cast<const void*>(std::uintptr_t{1} << 44);
    args.k_stride_token = args.v_stride_token = 16, args.k_stride_head = args.v_stride_head = 1000 * 16;
    args.k_stride_batch = args.v_stride_batch = 2 * 1000 * 16;
    args.k_new = reinterpret_cast<const void*>(std::uintptr_t{1} << 42);
    args.v_new = reinterpret_cast<const void*>(std::uintptr_t{1} << 46);
    args.k_new_stride_head = args.v_new_stride_head = 16, args.k_new_stride_token = args.v_new_stride_token = 32;
    args.k_new_stride_batch = args.v_new_stride_batch = 32 * q_len;
  }

  int position_of(int request, int token) const {
    if (unit > 0) return (token / unit * ranks + rank) * unit + token % unit;
    return starts[static_cast<std::size_t>(request)] + token;
  }
  int queries(int request) const {
    const auto at = static_cast<std::size_t>(request);
    return q_offsets[at + 1] - q_offsets[at];
  }
  /// Whether query token `query` sees a position, by the definition.
  bool sees(int request, int query, int position, int window, int sinks) const {
    const int at = full[static_cast<std::size_t>(request)] - queries(request) + query;
    return position <= at && (position > at - window || position < sinks);
  }
  bool is_seen(int request, int position, int window, int sinks) const {
    for (int query = 0; query < queries(request); ++query)
      if (sees(request, query, position, window, sinks)) return true;
    return false;
  }
};

/// Reads a request's part as kernels do, in two segments where it has several LeanTiles.
#define EXPECT_READS(name)                                                                                             \
  do {                                                                                                                 \
    using namespace name;                                                                                              \
    std::mt19937 random(11);                                                                                           \
    int seen = 0, hidden = 0, skipped = 0;                                                                             \
    for (int round = 0; round < 60; ++round) {                                                                         \
      const Parts parts(random, kContextRanks, kInterleave, round % kContextRanks, kQLen, kRaggedQ, 6);                \
      for (int request = 0; request < 6; ++request) {                                                                  \
        const auto at = static_cast<std::size_t>(request);                                                             \
        const int length = parts.lengths[at];                                                                          \
        SCOPED_TRACE(#name " round " + std::to_string(round) + " request " + std::to_string(request));                 \
        Segment s{};                                                                                                   \
        set_request(parts.args, s, request, length);                                                                   \
        s.kv_head = 1;                                                                                                 \
        ASSERT_GE(s.tiles, 1u);                                                                                        \
        std::vector<int> read(static_cast<std::size_t>(length), 0);                                                    \
        const unsigned cut = s.tiles / 2;                                                                              \
        for (int half = cut == 0 ? 1 : 0; half < 2; ++half) {                                                          \
          s.tile_begin = half == 0 ? 0 : cut, s.tile_end = half == 0 ? cut : s.tiles;                                  \
          KvCursor cursor;                                                                                             \
          cursor.init(parts.args, 0);                                                                                  \
          cursor.start(parts.args, s, 0);                                                                              \
          for (int at_read = first_read(s); at_read < end_read(s); at_read += kStepTokens, cursor.next()) {            \
            const Step step = step_at(s, at_read);                                                                     \
            ASSERT_FALSE(cursor.done());                                                                               \
            ASSERT_GE(cursor.tokens(), step.count);                                                                    \
            const bool masked = has_masked(s, step);                                                                   \
            for (int offset = 0; offset < step.count; ++offset) {                                                      \
              const int token = step.token + offset;                                                                   \
              ASSERT_EQ(cursor.k_row(offset), static_cast<const char*>(parts.args.k) +                                 \
                                                  2 * (request * parts.args.k_stride_batch + 1000 * 16 + token * 16)); \
              read.at(static_cast<std::size_t>(token))++;                                                              \
              const int position = parts.position_of(request, token);                                                  \
              for (int query = 0; query < parts.queries(request); ++query) {                                           \
                const bool expected = parts.sees(request, query, position, kWindow, kSinkTokens);                      \
                ASSERT_EQ(sees(parts.args, s, step, offset, Row{query, 0, true}), expected) << token << " " << query;  \
                const ScoreRow of_row = score_row(parts.args, s, Row{query, 0, true});                                 \
                ASSERT_EQ(change_score(parts.args, 0, of_row, token),                                                  \
                          static_cast<float>(1000 * (parts.full[at] - parts.queries(request) + query) + position));    \
                ASSERT_TRUE(expected || masked) << token << " " << query;                                              \
                ++(expected ? seen : hidden);                                                                          \
              }                                                                                                        \
            }                                                                                                          \
          }                                                                                                            \
          ASSERT_TRUE(cursor.done());                                                                                  \
        }                                                                                                              \
        int read_tiles = 0, shown = 0;                                                                                 \
        for (int token = 0; token < length; ++token) {                                                                 \
          const bool wanted = parts.is_seen(request, parts.position_of(request, token), kWindow, kSinkTokens);         \
          ASSERT_LE(read[static_cast<std::size_t>(token)], 1) << token;                                                \
          if (wanted) {                                                                                                \
            ASSERT_EQ(read[static_cast<std::size_t>(token)], 1) << token;                                              \
          }                                                                                                            \
          shown += wanted, read_tiles += read[static_cast<std::size_t>(token)];                                        \
          skipped += read[static_cast<std::size_t>(token)] == 0;                                                       \
        }                                                                                                              \
        if (parts.queries(request) == 0) continue;                                                                     \
        /* Beside what is seen: less than a run in front of the window, or what lies between sinks that meet it. */    \
        ASSERT_LE(read_tiles, shown + kPageRun - 1);                                                                   \
        ASSERT_LE(static_cast<int>(s.tiles), max(1, (shown + kPageRun - 1 + kTile - 1) / kTile + (kSinkTokens > 0)));  \
      }                                                                                                                \
    }                                                                                                                  \
    EXPECT_GT(seen, 50);                                                                                               \
    EXPECT_GT(hidden, kQLen > 1 || kPageRun > 1 ? 100 : -1);                                                           \
    EXPECT_GT(skipped, 5000);                                                                                          \
  } while (false)

TEST(PartOfContext, AContiguousPartIsReadAsFarAsTheWindowShowsIt) { EXPECT_READS(contiguous); }
TEST(PartOfContext, SoItIsWithSeveralQueryTokens) { EXPECT_READS(contiguous_rows); }
TEST(PartOfContext, SingleTokensInTurnAreReadAsFarAsTheWindowShowsThem) { EXPECT_READS(single_tokens); }
TEST(PartOfContext, UnitsInTurnMayLieOutsideAWindowOfOneToken) { EXPECT_READS(units); }
TEST(PartOfContext, UnitsThatTheSinksEndInAreReadUpToThere) { EXPECT_READS(large_units); }

/// Of a request's new tokens, a rank writes those whose positions it holds, once, and nothing else.
#define EXPECT_APPENDS(name)                                                                                    \
  do {                                                                                                          \
    using namespace name;                                                                                       \
    int own = 0, others = 0;                                                                                    \
    for (int round = 0; round < 40 * kContextRanks; ++round) {                                                  \
      std::mt19937 random(100 + round / kContextRanks);                                                         \
      const Parts parts(random, kContextRanks, kInterleave, round % kContextRanks, kQLen, kRaggedQ, 6);         \
      for (int request = 0; request < 6; ++request) {                                                           \
        const auto at = static_cast<std::size_t>(request);                                                      \
        SCOPED_TRACE(#name " round " + std::to_string(round) + " request " + std::to_string(request));          \
        Segment s{};                                                                                            \
        set_request(parts.args, s, request, parts.lengths[at]);                                                 \
        written.clear();                                                                                        \
        const unsigned cut = s.tiles / 2;                                                                       \
        for (int half = cut == 0 ? 1 : 0; half < 2; ++half) {                                                   \
          s.tile_begin = half == 0 ? 0 : cut, s.tile_end = half == 0 ? cut : s.tiles;                           \
          for (int warp = 0; warp < 3; ++warp) {                                                                \
            for (const unsigned lane : {0u, 1u}) {                                                              \
              threadIdx.x = lane;                                                                               \
              append_tokens(parts.args, s, warp, 3);                                                            \
            }                                                                                                   \
          }                                                                                                     \
        }                                                                                                       \
        threadIdx.x = 0;                                                                                        \
        std::size_t expected = 0;                                                                               \
        for (int token = 0; token < parts.lengths[at]; ++token) {                                               \
          const int position = parts.position_of(request, token),                                               \
                    query = position - (parts.full[at] - parts.queries(request));                               \
          if (query < 0) continue;                                                                              \
          ++own;                                                                                                \
          const i64 row = 2 * (kRaggedQ ? (parts.q_offsets[at] + query) * 32 : (request * kQLen + query) * 32), \
                    cache = 2 * (request * parts.args.k_stride_batch + token * 16);                             \
          for (const bool keys : {true, false}) {                                                               \
            const auto* const base = static_cast<const char*>(keys ? parts.args.k : parts.args.v);              \
            const auto* const from = static_cast<const char*>(keys ? parts.args.k_new : parts.args.v_new);      \
            const auto found = std::count_if(written.begin(), written.end(), [&](const Written& w) {            \
              return w.to == base + cache && w.from == from + row && w.position == (keys ? position : -1);      \
            });                                                                                                 \
            ASSERT_EQ(found, 1) << "token " << token << " at " << position << (keys ? " of K" : " of V");       \
            ++expected;                                                                                         \
          }                                                                                                     \
        }                                                                                                       \
        others += parts.queries(request) - static_cast<int>(expected / 2);                                      \
        ASSERT_EQ(written.size(), expected);                                                                    \
      }                                                                                                         \
    }                                                                                                           \
    EXPECT_GT(own, 100);                                                                                        \
    EXPECT_GT(others, 100);                                                                                     \
  } while (false)

TEST(PartOfContext, NewTokensAreWrittenByTheRankOfTheirPositionAndByNoOther) {
  EXPECT_APPENDS(contiguous);
  EXPECT_APPENDS(contiguous_rows);
  EXPECT_APPENDS(single_tokens);
  EXPECT_APPENDS(units);
  EXPECT_APPENDS(large_units);
}

/// The walks of all CTAs together take every LeanTile of every output tile once.
#define EXPECT_WALKS(name, batch)                                                               \
  do {                                                                                          \
    using namespace name;                                                                       \
    std::mt19937 random(5);                                                                     \
    const Parts parts(random, kContextRanks, kInterleave, 1, kQLen, kRaggedQ, batch);           \
    LeanDecodeArgs args = parts.args;                                                           \
    constexpr unsigned kGrid = 7;                                                               \
    args.grid_reciprocal = lean_reciprocal(kGrid);                                              \
    std::vector<std::vector<int>> taken(static_cast<std::size_t>(batch) * 2);                   \
    std::array<u32, kParts> part_sums{};                                                        \
    run_lanes(kLanes, [&](u32 lane) {                                                           \
      gridDim.x = kGrid;                                                                        \
      for (unsigned cta = 0; cta < kGrid; ++cta) {                                              \
        blockIdx.x = cta;                                                                       \
        Walk walk{};                                                                            \
        if (!start_walk(args, first_length(args), part_sums.data(), walk)) continue;            \
        do {                                                                                    \
          const Segment& s = walk.segment;                                                      \
          if (lane != 0) continue;                                                              \
          auto& tiles = taken[static_cast<std::size_t>(s.request * 2 + s.kv_head)];             \
          tiles.resize(s.tiles, 0);                                                             \
          for (u32 tile = s.tile_begin; tile < s.tile_end; ++tile) tiles[tile]++;               \
          EXPECT_EQ(s.tiles, visible_of_part(args, s.request, parts.lengths[s.request]).tiles); \
        } while (next_segment(args, walk));                                                     \
      }                                                                                         \
    });                                                                                         \
    for (std::size_t output = 0; output < taken.size(); ++output) {                             \
      const bool asks = query_tokens(args.q_offsets, static_cast<int>(output / 2)).count > 0;   \
      EXPECT_EQ(taken[output].empty(), !asks) << output;                                        \
      for (const int times : taken[output]) EXPECT_EQ(times, 1) << output;                      \
    }                                                                                           \
  } while (false)

TEST(PartOfContext, TheLineHasTheTilesThatTheWindowShows) {
  EXPECT_WALKS(contiguous, 1);
  EXPECT_WALKS(contiguous_rows, 20);
  EXPECT_WALKS(units, 40);
  EXPECT_WALKS(large_units, 100);
  EXPECT_WALKS(single_tokens, 300);
}

}  // namespace part_of_context
}  // namespace
}  // namespace leanattn::device
