// seen_tokens_test.cpp -- what the query rows of a launch see, where requests have their own numbers of query tokens:
// all CTAs walk the line, and every row meets every token that the definition shows it once, and sees no other. A step
// in which a row does not see a token is masked. The modules of kernels are compiled here as they are, once for each
// set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/thoroughness.hpp"

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace seen_tokens {

/// The kernel of a namespace, for templates.
#define SEEING_KERNEL                                                                                          \
  struct Kernel {                                                                                              \
    using Line = Walk;                                                                                         \
    static constexpr int kMostTokens = kQLen, kHeads = kGroup, kRowsOfBlock = kRows, kStep = kStepTokens,      \
                         kSees = kWindow, kSinks = kSinkTokens;                                                \
    static constexpr bool kIsFull = kQueryMask == kFull, kSpans = kHasSpans, kPacked = kIsPacked;              \
    static bool start(const LeanDecodeArgs& args, u32* sums, Walk& at) {                                       \
      return start_walk(args, first_length(args), sums, at);                                                   \
    }                                                                                                          \
    static bool next(const LeanDecodeArgs& args, Walk& at) { return next_segment(args, at); }                  \
    static int first(const Segment& s) { return first_read(s); }                                               \
    static int end(const Segment& s) { return end_read(s); }                                                   \
    static Step step(const Segment& s, int read) { return step_at(s, read); }                                  \
    static bool masked(const Segment& s, const Step& step, int first_token, int last_token) {                  \
      return has_masked(s, step, first_token, last_token);                                                     \
    }                                                                                                          \
    static bool shows(const LeanDecodeArgs& args, const Segment& s, const Step& step, int offset, int token) { \
      return sees(args, s, step, offset, Row{token, 0, true});                                                 \
    }                                                                                                          \
  };

#include "tests/device/begin.cuh"
constexpr int kGroup = 3, kQLen = 40, kRowBlocks = 5, kTile = 16, kStepTokens = 8;  // 24 rows of a block
constexpr bool kRaggedQ = true, kHasSpans = false, kIsPacked = false;
namespace causal {
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace causal
namespace causal_window {
constexpr int kWindow = 21, kSinkTokens = 3, kPageRun = 4;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace causal_window
namespace full {
constexpr int kQueryMask = 2;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace full
#define LEAN_SEES_AHEAD
namespace window_both_ways {
constexpr int kQueryMask = 2, kWindow = 21;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace window_both_ways
namespace narrow_window_and_sinks {
constexpr int kQueryMask = 2, kWindow = 2, kSinkTokens = 37, kPageRun = 4;
constexpr unsigned kTilePositions = 5, kLightTilePositions = 4;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace narrow_window_and_sinks
namespace wide_window {
constexpr int kQueryMask = 2, kWindow = 1 << 30, kSinkTokens = 1;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace wide_window
#undef LEAN_SEES_AHEAD
#define LEAN_SPANS
namespace spans {
constexpr bool kHasSpans = true;
constexpr unsigned kTilePositions = 5, kLightTilePositions = 4;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace spans
namespace spans_and_window {
constexpr bool kHasSpans = true;
constexpr int kWindow = 6, kSinkTokens = 3, kPageRun = 4;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"
SEEING_KERNEL
}  // namespace spans_and_window
#undef LEAN_SPANS
#define LEAN_PACKED_KV
namespace packed {
constexpr bool kIsPacked = true;
constexpr int kWindow = 21, kSinkTokens = 3;
#include "tests/device/line.cuh"

#include "templates/kv/page_table.cuh"

#include "templates/attend/score.cuh"

#include "templates/kv/tokens.cuh"

#include "templates/kv/dense.cuh"
SEEING_KERNEL
/// The row of K at which a warp's first step of a segment begins.
inline i64 row_of_first_step(const LeanDecodeArgs& args, const Segment& s) {
  KvCursor cursor;
  cursor.init(args, 0);
  cursor.start(args, s, 0);
  return (cursor.k_row(0) - static_cast<const char*>(args.k)) / (2 * args.k_stride_token);
}
}  // namespace packed
#undef LEAN_PACKED_KV
#include "tests/device/end.cuh"

constexpr int kHeads = 2, kCapacity = 150;

/// A batch in which requests are empty, shorter than their query tokens, or as long as these.
struct Requests {
  std::vector<int> lengths, starts{0}, kv_offsets{0};
  std::vector<LeanSpan> spans;  // of all query tokens

  Requests(int batch, int most_tokens, unsigned seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    for (int i = 0; i < batch; ++i) {
      const int count = up_to(up_to(2) == 0 ? 1 : most_tokens);
      starts.push_back(starts.back() + count);
      lengths.push_back(up_to(3) == 0 ? count : up_to(5) == 0 ? -1 : up_to(kCapacity + 9));
      kv_offsets.push_back(kv_offsets.back() + length(i));
      // Every second piece of a context, which all have the same size, is a span, of which later query tokens may see
      // a later begin.
      const int size = up_to(3) == 0 ? kCapacity * 2 : 1 + up_to(40), odd = up_to(1),
                back = up_to(2) == 0 ? up_to(8) : kCapacity * 2;
      for (int query = 0; query < count; ++query) {
        const int position = length(i) - count + query, piece = position / size;
        const LeanSpan span{std::max(piece * size, position - back), (piece + 1) * size};
        spans.push_back(position < 0 || piece % 2 != odd ? LeanSpan{0, 0} : span);
      }
    }
  }
  int length(int request) const { return std::clamp(lengths[static_cast<std::size_t>(request)], 0, kCapacity); }
  int count(int request) const {
    return starts[static_cast<std::size_t>(request) + 1] - starts[static_cast<std::size_t>(request)];
  }
  LeanSpan span(int request, int query) const {
    return spans[static_cast<std::size_t>(starts[static_cast<std::size_t>(request)] + query)];
  }
};

/// Whether a query token sees a token of its context, by the definition (docs/features.md).
template <class Kernel>
bool is_shown(const Requests& requests, int request, int query, int token) {
  const int position = requests.length(request) - requests.count(request) + query;
  const LeanSpan span = requests.span(request, query);
  if (Kernel::kSpans && token >= span.first && token < span.end) return true;
  if (!Kernel::kIsFull && token > position) return false;
  return Kernel::kSees == 0 || token < Kernel::kSinks || std::abs(token - position) < Kernel::kSees;
}

template <class Kernel>
void expect_rows_see_what_is_shown(int batch, unsigned grid, unsigned seed) {
  const Requests requests(batch, Kernel::kMostTokens, seed);
  LeanDecodeArgs args{};
  args.batch = batch, args.kv_heads = kHeads, args.segment_cost = seed % 3;
  args.context_lengths = requests.lengths.data(), args.context_capacity = kCapacity;
  if (Kernel::kPacked)
    args.context_lengths = requests.kv_offsets.data(), args.context_capacity = requests.kv_offsets.back();
  args.q_offsets = requests.starts.data(), args.spans = requests.spans.data();
  args.grid_reciprocal = lean_reciprocal(grid);
  // How often each row of a request and KV head meets each token that it sees.
  std::map<std::tuple<int, int, int>, std::vector<int>> met;
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
      static u32 part_sums[32];
      typename Kernel::Line at;
      for (bool more = Kernel::start(args, part_sums, at); more; more = Kernel::next(args, at)) {
        if (lane != 0) continue;
        const auto& s = at.segment;
        const int first_row = s.row_block * Kernel::kRowsOfBlock,
                  rows = std::min(Kernel::kRowsOfBlock, requests.count(s.request) * Kernel::kHeads - first_row),
                  length = requests.length(s.request);
        ASSERT_GT(rows, 0);
        for (int read = Kernel::first(s); read < Kernel::end(s); read += Kernel::kStep) {
          const auto step = Kernel::step(s, read);
          const bool masked =
              Kernel::masked(s, step, first_row / Kernel::kHeads, (first_row + rows - 1) / Kernel::kHeads);
          for (int row = first_row; row < first_row + rows; ++row) {
            std::vector<int>& of_row = met[{s.request, s.kv_head, row}];
            of_row.resize(static_cast<std::size_t>(length));
            for (int offset = 0; offset < Kernel::kStep; ++offset) {
              const int query = row / Kernel::kHeads, token = step.token + offset;
              const bool shown = Kernel::shows(args, s, step, offset, query);
              ASSERT_TRUE(shown || masked) << "request " << s.request << ", query token " << query << ", " << token;
              if (offset >= step.count) continue;
              ASSERT_EQ(shown, is_shown<Kernel>(requests, s.request, query, token))
                  << "request " << s.request << ", query token " << query << ", token " << token;
              if (shown) ++of_row.at(static_cast<std::size_t>(token));
            }
          }
        }
      }
    }
  });
  for (int request = 0; request < batch; ++request)
    for (int head = 0; head < kHeads; ++head)
      for (int row = 0; row < requests.count(request) * Kernel::kHeads; ++row) {
        std::vector<int>& of_row = met[{request, head, row}];
        of_row.resize(static_cast<std::size_t>(requests.length(request)));
        for (int token = 0; token < requests.length(request); ++token)
          ASSERT_EQ(of_row[static_cast<std::size_t>(token)],
                    is_shown<Kernel>(requests, request, row / Kernel::kHeads, token))
              << "request " << request << " of " << batch << ", row " << row << ", token " << token << ", grid "
              << grid;
      }
}

template <class Kernel>
class SeenTokens : public testing::Test {};
using Kernels =
    testing::Types<causal::Kernel, causal_window::Kernel, full::Kernel, window_both_ways::Kernel,
                   narrow_window_and_sinks::Kernel, wide_window::Kernel, spans::Kernel, spans_and_window::Kernel>;
TYPED_TEST_SUITE(SeenTokens, Kernels);

TYPED_TEST(SeenTokens, EveryRowMeetsOnceWhatTheDefinitionShowsIt) {
  for (const auto& [batch, grid] : {std::pair{1, 7u}, {3, 1u}, {5, 20u}, {32, 13u}, {40, 7u}, {tries(70, 300), 5u}})
    expect_rows_see_what_is_shown<TypeParam>(batch, grid, grid + static_cast<unsigned>(batch));
}

TEST(SeenTokensOfPackedKeys, AreReadFromTheRowsOfTheirRequest) {
  const std::vector<int> offsets{0, 30, 30, 100, 90, 160}, starts{0, 5, 9, 40, 44, 60};  // the fourth one falls
  LeanDecodeArgs args{};
  args.batch = 5, args.kv_heads = 1, args.context_capacity = 120, args.grid_reciprocal = lean_reciprocal(1);
  args.context_lengths = offsets.data(), args.q_offsets = starts.data();
  args.k_stride_token = args.k_stride_batch = args.v_stride_token = args.v_stride_batch = 128;
  const std::vector<char> rows(2 * 160 * 128);
  args.k = args.v = rows.data();
  std::map<int, std::pair<int, int>> seen;  // of each request, its first row and its length
  run_lanes(kLanes, [&](u32 lane) {
    gridDim.x = 1, blockIdx.x = 0;
    packed::Walk at;
    for (bool more = packed::Kernel::start(args, nullptr, at); more; more = packed::Kernel::next(args, at)) {
      if (lane != 0) continue;
      const auto& s = at.segment;
      seen[s.request] = {s.kv_first, s.context_length};
      const auto step = packed::Kernel::step(s, packed::Kernel::first(s));
      EXPECT_EQ(packed::row_of_first_step(args, s), s.kv_first + step.token);
    }
  });
  // Rows that are not there belong to nobody.
  const std::map<int, std::pair<int, int>> expected{
      {0, {0, 30}}, {1, {30, 0}}, {2, {30, 70}}, {3, {100, 0}}, {4, {90, 30}}};
  EXPECT_EQ(seen, expected);
}

}  // namespace seen_tokens
}  // namespace
}  // namespace leanattn::device
