// gathered_rows_test.cpp -- the producer that gathers the rows of tokens one by one, run on threads as the lanes of its
// four warps: stages hold what a swizzled tensor copy would bring if the tokens were adjacent, and its warps note the
// holes. The modules of kernels are compiled here as they are, once for each set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/generator/warp_lanes.hpp"

namespace {
// Other tests of this folder include the modules too.
namespace gathered_rows {

#include "templates/kernel_args.cuh"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"

// ---- what CUDA and the modules before give ----
// Empty lines keep the modules in the order in which they build on each other.

using namespace leanattn::warp_lanes;
using std::max;
using std::min;

// As many stages as a test has steps, so that each is filled once.
constexpr int kStages = 24, kStepTokens = 64, kPanelBytes = kStepTokens * 128, kGatherWarps = 4, kPageRun = 1;
constexpr unsigned char kUntouched = 0xee;

/// Shared memory, whose addresses count from its beginning.
std::vector<unsigned char> g_shared;
/// Arrivals of each part of each stage: of the lanes' copies, and of their warps.
std::array<std::array<int, 2>, kStages> g_copies, g_arrivals;
std::mutex g_arriving;

struct Segment {
  int request = 0, kv_head = 0, context_length = 0;
  int first = 0, end = 0;  // read indices
  int shift = 0, selected = 0;
};
struct Step {
  int token, count;
};
int first_read(const Segment& s) { return s.first; }
int end_read(const Segment& s) { return s.end; }
Step step_at(const Segment& s, int read) { return {read + s.shift, max(min(kStepTokens, s.end - read), 0)}; }
struct Walk {
  Segment segment;
  std::vector<Segment> others;
};
bool next_segment(const LeanDecodeArgs&, Walk& walk) {
  if (walk.others.empty()) return false;
  walk.segment = walk.others.front();
  walk.others.erase(walk.others.begin());
  return true;
}
void wait_for_tokens(const Segment&, int) {}
int second_tokens(int length, int capacity) { return min(max(length, 0), capacity); }

struct LeanTensorMap {};
struct KvRing {
  u32 stages;
};
struct RingPosition {
  u32 stage = 0;
  void next() { ++stage; }
};
using Holes = unsigned long long;
struct SelectedHoles {
  std::array<Holes, kStages> of_stage;
};
SelectedHoles& selected_holes() {
  static SelectedHoles holes;
  return holes;
}
// Barriers are the number of their stage and part.
u32 full_barriers(const KvRing&, const RingPosition& at) { return at.stage * 16; }
void arrive(u32 barrier) {
  const std::lock_guard lock(g_arriving);
  ++g_arrivals[barrier / 16][barrier / 8 % 2];
}
void arrive_with_copies(u32 barrier) {
  const std::lock_guard lock(g_arriving);
  ++g_copies[barrier / 16][barrier / 8 % 2];
}
void copy_async_16(u32 to, const char* from, bool valid) {
  // A place without a row has an address all the same, which nobody may read.
  if (valid) {
    std::memcpy(g_shared.data() + to, from, 16);
  } else {
    std::memset(g_shared.data() + to, 0, 16);
  }
}

#define LEAN_DEVICE inline
#define LEAN_SECOND_CACHE
#define GATHERED(latent, k_panels, v_panels, parts, page)                                                      \
  constexpr bool kLatent = latent;                                                                             \
  constexpr int kKPanels = k_panels, kVPanels = v_panels, kStageParts = parts, kPageSize = page,               \
                kKStageBytes = kKPanels * kPanelBytes,                                                         \
                kStageBytes = kKStageBytes + (kLatent ? 0 : kVPanels * kPanelBytes);                           \
  constexpr int first_panel(int part) { return part == 0 ? 0 : part < kStageParts ? kVPanels / 2 : kKPanels; } \
  struct RingWriter {                                                                                          \
    RingPosition at;                                                                                           \
    u32 stage(const KvRing& ring) const { return ring.stages + at.stage * kStageBytes; }                       \
    void claim(const LeanDecodeArgs&, const KvRing&, int) {}                                                   \
    void finish(const LeanDecodeArgs&, const KvRing&) {}                                                       \
  };
#define SELECTION(block, queries, in_pool, second)                    \
  constexpr int kSelectionBlock = block, kSelectionQueries = queries; \
  constexpr bool kSelectionInPool = in_pool, kSelectionCausal = true, kSecondCache = second;

namespace pages_of_1 {
GATHERED(false, 2, 1, 1, 1)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/paged_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace pages_of_1
namespace pages_of_12 {
GATHERED(true, 5, 4, 2, 12)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/paged_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace pages_of_12
namespace two_caches {
GATHERED(false, 1, 2, 1, 4)
SELECTION(16, 2, false, true)
#include "templates/kv/selection.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_tokens.cuh"

#include "templates/kv/produce_gathered.cuh"
}  // namespace two_caches

#pragma GCC diagnostic pop

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

/// Runs the producer over the segments, each of which begins a step of its own.
template <class Produce>
void run(const LeanDecodeArgs& args, const std::vector<Segment>& segments, Produce produce, std::size_t stage_bytes) {
  g_shared.assign(stage_bytes * kStages, kUntouched);
  g_copies = g_arrivals = {};
  selected_holes().of_stage.fill(~Holes{0});
  std::vector<std::thread> lanes;
  for (unsigned lane = 0; lane < kGatherWarps * 32; ++lane) {
    lanes.emplace_back([&, lane] {
      threadIdx.x = lane;
      Walk walk{segments.front(), {segments.begin() + 1, segments.end()}};
      produce(args, LeanTensorMap{}, LeanTensorMap{}, KvRing{0}, walk);
    });
  }
  for (std::thread& lane : lanes) lane.join();
}

/// Compares the stage of a step with what `expected` says of its tokens.
void expect_stage(int stage, int kv_head, const std::vector<Expected>& expected, std::size_t stage_bytes, int k_panels,
                  int v_panels, bool latent, int parts) {
  const unsigned char* const bytes = g_shared.data() + stage_bytes * static_cast<std::size_t>(stage);
  for (int part = 0; part < parts; ++part) {
    EXPECT_EQ(g_copies[stage][part], kGatherWarps * 32) << "stage " << stage;
    EXPECT_EQ(g_arrivals[stage][part], kGatherWarps) << "stage " << stage;
  }
  for (int row = 0; row < kStepTokens; ++row) {
    const Expected token = row < static_cast<int>(expected.size()) ? expected[row] : Expected{};
    EXPECT_EQ(selected_holes().of_stage[stage] >> row & 1, token.hole) << "stage " << stage << ", token " << row;
    for (int panel = 0; panel < k_panels + (latent ? 0 : v_panels); ++panel) {
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
template <class Produce>
void check_pages(int page_size, int k_panels, int v_panels, bool latent, int parts, Produce produce) {
  std::mt19937 random(testing::UnitTest::GetInstance()->random_seed() + 7);
  const int capacity = 600, pages_of_request = (capacity + page_size - 1) / page_size;
  const Pool pool(97, page_size, k_panels * 128, v_panels * 128, random);
  const std::vector<int> table = table_of(kRequests * pages_of_request, pool.pages, random);
  const LeanDecodeArgs args = args_of(pool, table, pages_of_request);
  // Whole contexts, a part of one, one that ends inside a step, and one whose first tokens nobody sees.
  const std::vector<Segment> segments{
      {.request = 0, .kv_head = 1, .context_length = 200, .first = 0, .end = 200},
      {.request = 3, .kv_head = 2, .context_length = 600, .first = 128, .end = 384},
      {.request = 1, .kv_head = 0, .context_length = 1, .first = 0, .end = 1},
      {.request = 2, .kv_head = 1, .context_length = 500, .first = 64, .end = 300, .shift = 200}};
  const std::size_t stage_bytes = static_cast<std::size_t>(k_panels + (latent ? 0 : v_panels)) * kPanelBytes;
  run(args, segments, produce, stage_bytes);
  int stage = 0;
  for (const Segment& s : segments) {
    for (int read = s.first; read < s.end; read += kStepTokens, ++stage) {
      std::vector<Expected> expected;
      for (int token = read; token < std::min(read + kStepTokens, s.end); ++token) {
        const int index = token + s.shift, page = table[s.request * pages_of_request + index / page_size];
        const bool hole = page < 0 || page >= pool.pages;
        expected.push_back(hole ? Expected{.hole = true}
                                : Expected{.pool = &pool, .page = page, .token = index % page_size});
      }
      expect_stage(stage, s.kv_head, expected, stage_bytes, k_panels, v_panels, latent, parts);
    }
  }
  for (; stage < kStages; ++stage)
    EXPECT_EQ(g_shared[stage * stage_bytes], kUntouched) << "nobody asked for stage " << stage;
}

TEST(GatheredRows, OfPagesOfOneTokenLieInTheStageAsTensorCopiesPutThem) {
  check_pages(1, 2, 1, false, 1, pages_of_1::produce);
}

TEST(GatheredRows, OfALatentCacheAreCopiedPartByPart) { check_pages(12, 5, 4, true, 2, pages_of_12::produce); }

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
  const Segment s{.request = 5,
                  .kv_head = 2,
                  .context_length = entries + 3,
                  .first = 0,
                  .end = (entries + 3) * block,
                  .selected = entries};
  const std::size_t stage_bytes = 3 * kPanelBytes;
  run(args, {s}, two_caches::produce, stage_bytes);
  const int query = s.request % queries, request = s.request / queries, visible = 300 - (queries - 1 - query);
  for (int read = 0, stage = 0; read < s.end; read += kStepTokens, ++stage) {
    std::vector<Expected> expected;
    for (int at = read; at < std::min(read + kStepTokens, s.end); ++at) {
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
    expect_stage(stage, s.kv_head, expected, stage_bytes, 1, 2, false, 1);
  }
}

}  // namespace gathered_rows
}  // namespace
