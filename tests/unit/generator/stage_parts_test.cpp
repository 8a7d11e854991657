// stage_parts_test.cpp -- the producers of load path "tensor" that copy boxes of a tensor map, where K and V are parts
// of a stage that have a warp each: run on threads as the lanes of these two warps, with a reader that frees K of a
// stage before V. Every box lies inside its part, brings the tokens of its step, and comes only once the part is free.
// The modules of kernels are compiled here as they are, once for each set of constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace stage_parts {

constexpr int kStages = 3, kKvHeads = 3;
constexpr u32 kBarriers = 1000 << 10;  // where the barriers of the stages are
constexpr u32 kEmptyBarriers = kBarriers + (8 << 10);

/// One of the two caches as a tensor map has it: rows of `panels` * 128 random bytes. An outer index is a request or,
/// of a paged cache, a page. A box has `box_tokens` tokens and `box_panels` panels.
struct Cache {
  int outers = 0, tokens = 0, panels = 0, box_tokens = 0, box_panels = 0;
  bool is_k = false;
  std::vector<unsigned char> bytes;
  const unsigned char* row(int outer, int token, int head, int panel) const {
    return bytes.data() + (((outer * kKvHeads + head) * tokens + token) * panels + panel) * 128;
  }
};
const Cache *g_k = nullptr, *g_v = nullptr;
int g_stage_bytes = 0, g_v_offset = 0;

/// As the copy engine does: a box outside the cache brings zeros; rows are swizzled by their addresses.
template <class Map, class Part>
void copy_box(u32 destination, const Map& map, int token, int panel, const Part& part, int outer, u32 barrier) {
  const int head = part.kv_head;
  const Cache& cache = map.opaque[0] == 'k' ? *g_k : *g_v;
  const u32 stage = destination / static_cast<u32>(g_stage_bytes), in_stage = destination % g_stage_bytes,
            end = cache.is_k ? g_v_offset : g_stage_bytes,
            bytes = static_cast<u32>(cache.box_tokens * cache.box_panels) * 128;
  EXPECT_LT(stage, static_cast<u32>(kStages));
  EXPECT_EQ(barrier, kBarriers + stage * 16 + (cache.is_k ? 0 : 8)) << "a box tells the barrier of its part";
  EXPECT_GE(in_stage, static_cast<u32>(cache.is_k ? 0 : g_v_offset));
  const u32 panel_bytes = kStepTokens * 128;
  EXPECT_LE(in_stage + (cache.box_panels - 1) * panel_bytes + cache.box_tokens * 128u, end)
      << "a box goes behind its part of the stage";
  EXPECT_LE(panel + cache.box_panels, cache.panels);
  for (int p = 0; p < cache.box_panels; ++p) {
    for (int t = 0; t < cache.box_tokens; ++t) {
      const u32 to = destination + p * panel_bytes + t * 128;
      const bool inside = outer >= 0 && outer < cache.outers && token + t < cache.tokens;
      for (u32 chunk = 0; chunk < 8; ++chunk) {
        unsigned char* const at = g_shared.data() + to + (chunk ^ to / 128 % 8) * 16;
        if (inside)
          std::memcpy(at, cache.row(outer, token + t, head, panel + p) + chunk * 16, 16);
        else
          std::memset(at, 0, 16);
      }
    }
  }
  bytes_came(barrier, bytes);
}
std::atomic<bool> g_noted = false;  // that the page table has a hole
void note_hole() { g_noted = true; }
/// Ends a wait for what never comes, so that the test says so.
bool goes_on_waiting(const LeanDecodeArgs&, u32& waited) { return ++waited < 40; }

#include "tests/device/begin.cuh"
constexpr int kHeadDim = 192, kValueDim = 128, kStageParts = 2, kPartProducers = 2, kStageReaders = 1;
namespace dense {
#include "tests/device/given_line.cuh"

#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/produce_dense.cuh"
}  // namespace dense
namespace pages_of_16 {
constexpr int kPageSize = 16, kPageRun = 16;
#include "tests/device/given_line.cuh"

#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/produce_paged.cuh"
}  // namespace pages_of_16
namespace pages_of_128 {
constexpr int kPageSize = 128, kPageRun = 64;
#include "tests/device/given_line.cuh"

#include "templates/kv/page_table.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/produce_paged.cuh"
}  // namespace pages_of_128
namespace blocks_of_32 {
constexpr int kPageSize = 16, kPageRun = 16, kSelectionBlock = 32;
#include "tests/device/given_line.cuh"

#include "templates/kv/selection.cuh"

#include "templates/kv/run_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/produce_selected.cuh"
}  // namespace blocks_of_32
#include "tests/device/end.cuh"

constexpr int kPanelBytes = kStepTokens * 128, kKPanels = kHeadDim / 64, kVPanels = kValueDim / 64;

/// A segment that reads [first, end). context_length: in tokens, or entries of a list.
struct Given {
  int request, kv_head, context_length, first, end;
};

/// A kernel's producer, which both warps call, and what the kernel knows of the tokens of a stage: that one may be a
/// hole, or if `exactly`, that it is.
struct Producer {
  void (*produce)(const LeanDecodeArgs& args, const std::vector<Given>& segments);
  bool (*knows_hole)(int stage, int token);
  bool exactly;
};
#define PRODUCE(name)                                                                          \
  [](const LeanDecodeArgs& given, const std::vector<Given>& given_segments) {                  \
    std::vector<name::Segment> own;                                                            \
    for (const Given& s : given_segments)                                                      \
      own.push_back(name::segment_of(s.request, s.kv_head, s.context_length, s.first, s.end)); \
    name::Walk walk = name::walk_along(own);                                                   \
    name::produce(given, {{'k'}}, {{'v'}}, {0, kBarriers, kEmptyBarriers}, walk);              \
  }

/// Where a token lies. outer below 0: nowhere, and nobody sees it.
struct Place {
  int outer = -1, token = 0;
};
/// What a launch reads, step by step: the places of the tokens that count.
struct Read {
  int head;
  std::vector<Place> tokens;
};
template <class PlaceOf>
std::vector<Read> reads_of(const std::vector<Given>& segments, PlaceOf place_of) {
  std::vector<Read> reads;
  for (const Given& s : segments) {
    for (int read = s.first; read < s.end; read += kStepTokens) {
      reads.push_back({s.kv_head, {}});
      for (int token = read; token < std::min(read + kStepTokens, s.end); ++token)
        reads.back().tokens.push_back(place_of(s, token));
    }
  }
  return reads;
}

Cache cache_of(bool is_k, int outers, int tokens, int box_tokens, bool all_panels, std::mt19937& random) {
  Cache cache;
  cache.outers = outers, cache.tokens = tokens, cache.panels = is_k ? kKPanels : kVPanels;
  cache.box_tokens = box_tokens;
  cache.box_panels = all_panels ? cache.panels : 1, cache.is_k = is_k;
  cache.bytes.resize(static_cast<std::size_t>(outers * kKvHeads * tokens * cache.panels) * 128);
  for (unsigned char& byte : cache.bytes) byte = static_cast<unsigned char>(random());
  return cache;
}

/// Compares a part of a stage with the rows of `cache`. Rows that nobody sees are zeros.
void expect_part(int stage, const Cache& cache, const Read& read) {
  const unsigned char* const part = g_shared.data() + stage * g_stage_bytes + (cache.is_k ? 0 : g_v_offset);
  for (std::size_t token = 0; token < read.tokens.size(); ++token) {
    const Place place = read.tokens[token];
    for (int panel = 0; panel < cache.panels; ++panel) {
      for (std::size_t chunk = 0; chunk < 8; ++chunk) {
        std::array<unsigned char, 16> want{};
        if (place.outer >= 0)
          std::memcpy(want.data(), cache.row(place.outer, place.token, read.head, panel) + chunk * 16, 16);
        const unsigned char* const got =
            part + panel * kPanelBytes + static_cast<int>(token * 128 + (chunk ^ token % 8) * 16);
        ASSERT_EQ(std::memcmp(got, want.data(), 16), 0)
            << (cache.is_k ? "K" : "V") << ", stage " << stage << ", token " << token << ", panel " << panel;
      }
    }
  }
}

/// Runs the producer and its reader.
void check(const LeanDecodeArgs& args, const Cache& k, const Cache& v, const std::vector<Given>& segments,
           const std::vector<Read>& reads, const Producer& producer) {
  g_k = &k, g_v = &v, g_noted = false;
  g_stage_bytes = (kKPanels + kVPanels) * kPanelBytes, g_v_offset = kKPanels * kPanelBytes;
  for (u32 i = 0; i < kStages * 2; ++i) init_barrier(kBarriers + 8 * i, 1), init_barrier(kEmptyBarriers + 8 * i, 1);
  const auto stage_of = [](std::size_t step) { return static_cast<int>(step % kStages); };
  const auto await = [&](std::size_t step, u32 part) {
    u32 waited = 0;
    while (!is_complete(kBarriers + stage_of(step) * 16 + part * 8, step / kStages % 2)) {
      if (!goes_on_waiting(args, waited)) {
        ADD_FAILURE() << "part " << part << " of step " << step << " never comes";
        break;
      }
    }
  };
  // While the reader still holds a part, the producer goes as far as it may.
  const auto free_part = [&](std::size_t step, u32 part) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    expect_part(stage_of(step), part == 0 ? k : v, reads[step]);
    for (std::size_t token = 0; part == 0 && token < reads[step].tokens.size(); ++token) {
      const bool hole = reads[step].tokens[token].outer < 0;
      if (hole || producer.exactly) {
        EXPECT_EQ(producer.knows_hole(stage_of(step), static_cast<int>(token)), hole)
            << "step " << step << ", token " << token;
      }
    }
    arrive(kEmptyBarriers + stage_of(step) * 16 + part * 8);
  };
  run_lanes(3 * kLanes, [&](u32 thread) {
    if (thread >= kLanes) return producer.produce(args, segments);
    if (thread > 0) return;
    for (std::size_t step = 0; step < reads.size(); ++step) {
      await(step, 0);
      if (step > 0) await(step - 1, 1), free_part(step - 1, 1);
      free_part(step, 0);
    }
    await(reads.size() - 1, 1), free_part(reads.size() - 1, 1);
  });
}

constexpr int kRequests = 4, kCapacity = 700;
/// Whole contexts, parts of some, ones that end inside a step, and more steps than the ring has stages.
const std::vector<Given> kSegments{{0, 1, 200, 0, 200}, {3, 2, 640, 128, 512}, {1, 0, 1, 0, 1}, {2, 1, 500, 64, 500}};

TEST(StageParts, OfADenseCacheAreKAndVOfAStepWhateverTheirWidths) {
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) + 1);
  const Cache k = cache_of(true, kRequests, kCapacity, kStepTokens, true, random),
              v = cache_of(false, kRequests, kCapacity, kStepTokens, true, random);
  const auto reads = reads_of(kSegments, [](const Given& s, int token) { return Place{s.request, token}; });
  check({}, k, v, kSegments, reads, {PRODUCE(dense), [](int, int) { return false; }, true});
}

void check_pages(int page_size, int run, const Producer& producer) {
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) + 2);
  constexpr int kPool = 60;
  const int pages_of_request = (kCapacity + page_size - 1) / page_size;
  const Cache k = cache_of(true, kPool, page_size, run, run == kStepTokens, random),
              v = cache_of(false, kPool, page_size, run, run == kStepTokens, random);
  std::vector<int> table(static_cast<std::size_t>(kRequests * pages_of_request));
  for (int& page : table)
    page = random() % 8 == 0 ? (random() % 2 == 0 ? -1 : kPool) : static_cast<int>(random() % kPool);
  LeanDecodeArgs args{};
  args.page_table = table.data(), args.page_table_stride = pages_of_request, args.pool_pages = kPool;
  const auto reads = reads_of(kSegments, [&](const Given& s, int token) {
    const int page = table[static_cast<std::size_t>(s.request * pages_of_request + token / page_size)];
    return page < 0 || page >= kPool ? Place{} : Place{page, token % page_size};
  });
  check(args, k, v, kSegments, reads, producer);
}

TEST(StageParts, OfPagesOf16AreMadeOfRunsAndPanels) {
  check_pages(16, 16, {PRODUCE(pages_of_16), [](int, int) { return g_noted.load(); }, false});
}

TEST(StageParts, OfPagesThatHoldWholeStepsAreOneBoxEach) {
  check_pages(128, 64, {PRODUCE(pages_of_128), [](int, int) { return g_noted.load(); }, false});
}

TEST(StageParts, OfASelectionKeepTheHolesOfAStageUntilKOfItIsFree) {
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) + 3);
  constexpr int kPool = 60, kPage = 16, kBlock = 32, kEntries = 18, kPagesOfRequest = 40;
  const Cache k = cache_of(true, kPool, kPage, 16, false, random), v = cache_of(false, kPool, kPage, 16, false, random);
  std::vector<int> table(kRequests * kPagesOfRequest), lengths(kRequests, 600), selection;
  for (int& page : table) page = random() % 8 == 0 ? -1 : static_cast<int>(random() % kPool);
  for (int i = 0; i < kRequests * kKvHeads * kEntries; ++i)
    selection.push_back(random() % 5 == 0 ? -1 : static_cast<int>(random() % 18));
  LeanDecodeArgs args{};
  args.page_table = table.data(), args.page_table_stride = kPagesOfRequest, args.pool_pages = kPool;
  args.request_lengths = lengths.data(), args.request_capacity = kCapacity;
  args.selection = selection.data(), args.selection_stride_head = kEntries;
  args.selection_stride_token = args.selection_stride_batch = kKvHeads * kEntries;
  const std::vector<Given> segments{{0, 1, 18, 0, 576}, {2, 2, 13, 64, 416}, {3, 0, 17, 128, 320}};
  const auto reads = reads_of(segments, [&](const Given& s, int read) {
    const int entry =
        selection[static_cast<std::size_t>((s.request * kKvHeads + s.kv_head) * kEntries + read / kBlock)];
    const int token = entry * kBlock + read % kBlock;
    if (entry < 0 || token >= 600) return Place{};
    const int page = table[static_cast<std::size_t>(s.request * kPagesOfRequest + token / kPage)];
    return page < 0 ? Place{} : Place{page, token % kPage};
  });
  check(args, k, v, segments, reads,
        {PRODUCE(blocks_of_32),
         [](int stage, int token) {
           return blocks_of_32::in_hole(blocks_of_32::selected_holes().of_stage[stage], token);
         },
         true});
}

#undef PRODUCE
}  // namespace stage_parts
}  // namespace
}  // namespace leanattn::device
