// gathered_rows_test.cpp -- the producer that gathers the rows of tokens one by one, run on threads as the lanes of its
// four warps: stages hold what a swizzled tensor copy would bring if the tokens were adjacent, and its warps note the
// holes. The modules of kernels are compiled here as they are, once for each set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace gathered_rows {

// As many stages as a test has steps, so that each is filled once.
constexpr int kStages = 24, kMostParts = 2;
constexpr unsigned char kUntouched = 0xee;

/// Arrivals of each part of each stage: of the lanes' copies, and of their warps.
constexpr u32 kFullBarriers = 1000 << 10;  // where the barriers of the stages are
std::array<std::atomic<int>, kStages * kMostParts> g_copies, g_arrivals;
void arrive(u32 barrier) {
  ++g_arrivals.at((barrier - kFullBarriers) / 8);
  device::arrive(barrier);
}
void arrive_with_copies(u32 barrier) {
  ++g_copies.at((barrier - kFullBarriers) / 8);
  device::arrive_with_copies(barrier);
}

#include "tests/device/begin.cuh"
constexpr int kGatherWarps = 4, kWindow = 1;  // segments may begin behind tokens that nobody sees
constexpr bool kGathers = true;
#include "tests/device/given_line.cuh"
#define GATHERED(latent, k_panels, v_panels, parts, page) \
  constexpr bool kLatent = latent;                        \
  constexpr int kHeadDim = 64 * k_panels, kValueDim = 64 * v_panels, kStageParts = parts, kPageSize = page;

namespace pages_of_1 {
GATHERED(false, 2, 1, 1, 1)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/paged_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace pages_of_1
namespace pages_of_12 {
GATHERED(true, 5, 4, 2, 12)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/paged_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace pages_of_12
namespace pages_of_4 {
GATHERED(false, 2, 1, 2, 4)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/paged_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace pages_of_4
namespace two_caches {
GATHERED(false, 1, 2, 1, 4)
constexpr int kSelectionBlock = 16, kSelectionQueries = 2;
constexpr bool kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace two_caches
#undef GATHERED
#include "tests/device/end.cuh"

constexpr int kRequests = 4, kKvHeads = 3;

/// Pools of K and V rows of random bytes, whose strides differ. Strides count elements of two bytes.
struct Pool {
  int pages, page_size, k_row, v_row;  // bytes of rows
  std::vector<char> k, v;
  i64 k_head, k_token, k_page, v_head, v_token, v_page;

  Pool(int pool_pages, int tokens, int k_bytes, int v_bytes, std::mt19937& random)
      : pages(pool_pages), page_size(tokens), k_row(k_bytes), v_row(v_bytes) {
    // Tokens first, then heads; V the other way round and with room behind each row.
    k_head = k_row / 2, k_token = kKvHeads * k_head, k_page = page_size * k_token;
    v_token = v_row / 2 + 8, v_head = page_size * v_token, v_page = kKvHeads * v_head;
    k.resize(static_cast<std::size_t>(2 * pages * k_page));
    v.resize(static_cast<std::size_t>(2 * pages * v_page));
    for (char& byte : k) byte = static_cast<char>(random());
    for (char& byte : v) byte = static_cast<char>(random());
  }
  const char* k_of(int page, int token, int head) const {
    return k.data() + 2 * (page * k_page + token * k_token + head * k_head);
  }
  const char* v_of(int page, int token, int head) const {
    return v.data() + 2 * (page * v_page + token * v_token + head * v_head);
  }
};

/// What a token of a step should be: a row of a pool, a hole, or behind the last one.
struct Expected {
  const Pool* pool = nullptr;
  int page = -1, token = 0;
  bool hole = false;
};

/// A kernel's producer on a ring whose first stage is at address 0, and which tokens of a stage it says are holes.
struct Producer {
  void (*produce)(const LeanDecodeArgs& args, Walk& walk);
  u64 (*holes)(u32 stage);
  int k_panels, v_panels, parts;  // v_panels: those beside K's
};
#define PRODUCER(name)                                                                        \
  Producer {                                                                                  \
    [](const LeanDecodeArgs& given, Walk& walk) {                                             \
      name::produce(given, {}, {}, {0, kFullBarriers, kFullBarriers + (8 << 10)}, walk);      \
    },                                                                                        \
        [](u32 at) { return name::selected_holes().of_stage[at].tokens[0]; }, name::kKPanels, \
        name::kLatent ? 0 : name::kVPanels, name::kStageParts                                 \
  }
constexpr int kPanelBytes = kStepTokens * 128;

/// Runs the producer over the segments, each of which begins a step of its own.
void run(const LeanDecodeArgs& args, const std::vector<Segment>& segments, const Producer& producer) {
  g_shared.fill(kUntouched);
  for (int i = 0; i < kStages * kMostParts; ++i) {
    g_copies[i] = g_arrivals[i] = 0;
    init_barrier(kFullBarriers + static_cast<u32>(8 * i), kGatherWarps * 33);
  }
  run_lanes(kGatherWarps * 32, [&](u32) {
    Walk walk = walk_along(segments);
    producer.produce(args, walk);
  });
}

/// Compares the stage of a step with what `expected` says of its tokens.
void expect_stage(int stage, int kv_head, const std::vector<Expected>& expected, const Producer& producer) {
  const int k_panels = producer.k_panels;
  const unsigned char* const bytes = g_shared.data() + stage * (k_panels + producer.v_panels) * kPanelBytes;
  for (int part = 0; part < producer.parts; ++part) {
    EXPECT_EQ(g_copies[stage * producer.parts + part], kGatherWarps * 32) << "stage " << stage;
    EXPECT_EQ(g_arrivals[stage * producer.parts + part], kGatherWarps) << "stage " << stage;
  }
  for (int row = 0; row < kStepTokens; ++row) {
    const Expected token = row < static_cast<int>(expected.size()) ? expected[row] : Expected{};
    EXPECT_EQ(producer.holes(stage) >> row & 1, token.hole) << "stage " << stage << ", token " << row;
    for (int panel = 0; panel < k_panels + producer.v_panels; ++panel) {
      for (int chunk = 0; chunk < 8; ++chunk) {
        // 128-byte swizzle: the chunk's number is changed by the row's number in its swizzle atom of eight rows.
        const unsigned char* const got = bytes + panel * kPanelBytes + row * 128 + (chunk ^ row % 8) * 16;
        std::array<char, 16> want{};
        if (token.pool != nullptr) {
          const char* const from = panel < k_panels
                                       ? token.pool->k_of(token.page, token.token, kv_head) + panel * 128
                                       : token.pool->v_of(token.page, token.token, kv_head) + (panel - k_panels) * 128;
          std::memcpy(want.data(), from + chunk * 16, 16);
        }
        ASSERT_EQ(std::memcmp(got, want.data(), 16), 0)
            << "stage " << stage << ", token " << row << ", panel " << panel << ", chunk " << chunk;
      }
    }
  }
}

LeanDecodeArgs args_of(const Pool& pool, const std::vector<int>& table, int pages_of_request) {
  LeanDecodeArgs args{};
  args.k = pool.k.data(), args.v = pool.v.data();
  args.k_stride_head = pool.k_head, args.k_stride_token = pool.k_token, args.k_stride_batch = pool.k_page;
  args.v_stride_head = pool.v_head, args.v_stride_token = pool.v_token, args.v_stride_batch = pool.v_page;
  args.page_table = table.data(), args.page_table_stride = pages_of_request, args.pool_pages = pool.pages;
  args.kv_heads = kKvHeads, args.batch = kRequests;
  return args;
}

/// Pages in random order, some of them holes.
std::vector<int> table_of(int entries, int pool_pages, std::mt19937& random) {
  std::vector<int> table(static_cast<std::size_t>(entries));
  for (int& page : table)
    page = random() % 8 == 0 ? (random() % 2 == 0 ? -1 : pool_pages) : static_cast<int>(random() % pool_pages);
  return table;
}

/// Runs a paged cache that is read as a whole, and compares every stage.
void check_pages(int page_size, int v_panels, const Producer& producer) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 7);
  const int capacity = 600, pages_of_request = (capacity + page_size - 1) / page_size;
  const Pool pool(97, page_size, producer.k_panels * 128, v_panels * 128, random);
  const std::vector<int> table = table_of(kRequests * pages_of_request, pool.pages, random);
  const LeanDecodeArgs args = args_of(pool, table, pages_of_request);
  // Whole contexts, a part of one, one that ends inside a step, and one whose first tokens nobody sees.
  const std::vector<Segment> segments{segment_of(0, 1, 200, 0, 200), segment_of(3, 2, 600, 128, 384),
                                      segment_of(1, 0, 1, 0, 1), segment_of(2, 1, 500, 64, 300, 200)};
  run(args, segments, producer);
  int stage = 0;
  for (const Segment& s : segments) {
    for (int read = first_read(s); read < end_read(s); read += kStepTokens, ++stage) {
      std::vector<Expected> expected;
      for (int token = read; token < std::min(read + kStepTokens, end_read(s)); ++token) {
        const int index = token + s.visible.shift, page = table[s.request * pages_of_request + index / page_size];
        const bool hole = page < 0 || page >= pool.pages;
        expected.push_back(hole ? Expected{.hole = true}
                                : Expected{.pool = &pool, .page = page, .token = index % page_size});
      }
      expect_stage(stage, s.kv_head, expected, producer);
    }
  }
  for (; stage < kStages; ++stage)
    EXPECT_EQ(g_shared[stage * (producer.k_panels + producer.v_panels) * kPanelBytes], kUntouched)
        << "nobody asked for stage " << stage;
}

TEST(GatheredRows, OfPagesOfOneTokenLieInTheStageAsTensorCopiesPutThem) { check_pages(1, 1, PRODUCER(pages_of_1)); }

TEST(GatheredRows, OfALatentCacheAreCopiedPartByPart) { check_pages(12, 4, PRODUCER(pages_of_12)); }

TEST(GatheredRows, OfKAndVThatArePartsAreCopiedPartByPart) { check_pages(4, 1, PRODUCER(pages_of_4)); }

TEST(GatheredRows, OfSelectedBlocksComeFromTwoCaches) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 11);
  const int page_size = 4, block = 16, capacity = 512, pages_of_request = capacity / page_size, queries = 2;
  const Pool first(90, page_size, 128, 256, random), second(70, page_size, 128, 256, random);
  const std::vector<int> table = table_of(kRequests * pages_of_request, first.pages, random),
                         second_table = table_of(kRequests * pages_of_request, second.pages, random);
  LeanDecodeArgs args = args_of(first, table, pages_of_request);
  args.second_k = second.k.data(), args.second_v = second.v.data();
  args.second_page_table = second_table.data(), args.second_page_table_stride = pages_of_request;
  args.second_pool_pages = second.pages, args.second_capacity = capacity;
  std::vector<int> lengths(kRequests, 300), second_lengths(kRequests * queries, 37), selection;
  args.request_lengths = lengths.data(), args.request_capacity = capacity, args.second_lengths = second_lengths.data();
  const int entries = 9;
  for (int i = 0; i < kRequests * queries * kKvHeads * entries; ++i)
    selection.push_back(random() % 6 == 0 ? -1 : static_cast<int>(random() % 20));
  args.selection = selection.data(), args.selection_stride_head = entries;
  args.selection_stride_token = kKvHeads * entries, args.selection_stride_batch = queries * kKvHeads * entries;
  // Blocks of the list, and behind them three of the second cache, of which the last one has 5 tokens.
  Segment s = segment_of(5, 2, (entries + 3) * block, 0, (entries + 3) * block);
  s.selected = entries;
  run(args, {s}, PRODUCER(two_caches));
  const int query = s.request % queries, request = s.request / queries, visible = 300 - (queries - 1 - query);
  for (int read = 0, stage = 0; read < end_read(s); read += kStepTokens, ++stage) {
    std::vector<Expected> expected;
    for (int at = read; at < std::min(read + kStepTokens, end_read(s)); ++at) {
      const bool in_second = at / block >= entries;
      const Pool& pool = in_second ? second : first;
      const int entry = in_second
                            ? at / block - entries
                            : selection[((request * queries + query) * kKvHeads + s.kv_head) * entries + at / block];
      const int token = entry * block + at % block, tokens = in_second ? 37 : visible;
      const bool seen = entry >= 0 && token < tokens;
      const int page = seen ? (in_second ? second_table : table)[request * pages_of_request + token / page_size] : -1;
      const bool hole = !seen || page < 0 || page >= pool.pages;
      expected.push_back(hole ? Expected{.hole = true}
                              : Expected{.pool = &pool, .page = page, .token = token % page_size});
    }
    expect_stage(stage, s.kv_head, expected, PRODUCER(two_caches));
  }
}

#undef PRODUCER
}  // namespace gathered_rows
}  // namespace
}  // namespace leanattn::device
