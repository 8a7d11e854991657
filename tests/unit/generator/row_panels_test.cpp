// row_panels_test.cpp -- the producers that convert rows of bytes, run on threads as the lanes of their warps, with
// copies that arrive late and in any order (late_copies.hpp): stages hold what a swizzled tensor copy of a bf16 cache
// would bring, and say so when it is there. The modules of kernels are compiled here as they are, once for each set of
// constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "generator/row_format.hpp"
#include "tests/unit/generator/late_copies.hpp"
#include "tests/unit/generator/warp_lanes.hpp"

namespace {
// Other tests of this folder include the modules too.
namespace row_panels {

#include "templates/kernel_args.cuh"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"

// ---- what CUDA and the modules before give ----
// Empty lines keep the modules in the order in which they build on each other.

using namespace leanattn::late_copies;
using namespace leanattn::warp_lanes;
using u64 = unsigned long long;
using std::max;
using std::min;

float __uint_as_float(u32 bits) { return std::bit_cast<float>(bits); }
int __popc(u32 bits) { return std::popcount(bits); }

/// The rows that L2 was asked for.
std::mutex g_prefetched_mutex;
std::vector<const char*> g_prefetched;
template <int kBytes>
void prefetch_row(const char* row, bool exists) {
  const std::scoped_lock lock(g_prefetched_mutex);
  if (exists) g_prefetched.push_back(row);
}

float value_of_e4m3(u32 byte) {
  const int exponent = static_cast<int>(byte >> 3 & 15), fraction = static_cast<int>(byte & 7);
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(8.0f + static_cast<float>(fraction), exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}
u32 bf16_of(float value) {
  const u32 bits = std::bit_cast<u32>(value);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
u32 operands_of_two(u32 bytes, float scale) {
  return bf16_of(value_of_e4m3(bytes & 0xff) * scale) | bf16_of(value_of_e4m3(bytes >> 8 & 0xff) * scale) << 16;
}

struct LeanTensorMap {};
struct Segment {
  int request, kv_head, first, end, selected = 0;  // first, end: read indices
};
struct Step {
  int token, count;
};
int second_tokens(int length, int capacity) { return min(max(length, 0), capacity); }
int first_read(const Segment& s) { return s.first; }
int end_read(const Segment& s) { return s.end; }
struct Walk {
  Segment segment;
  const std::vector<Segment>* segments;
  std::size_t at;
};
bool next_segment(const LeanDecodeArgs&, Walk& walk) {
  if (++walk.at == walk.segments->size()) return false;
  walk.segment = (*walk.segments)[walk.at];
  return true;
}

constexpr int kStages = 2, kStepTokens = 64, kPanelBytes = kStepTokens * 128;
constexpr bool kLatent = true;
constexpr bool kAppend = false, kPdl = true;  // pages: with new rows
bool holds_newest(const Segment&) { return true; }

/// What the producers have to do before it asks for a row of a segment, of which it tells the warp.
std::function<void(const Segment&, int)> g_append;
int g_append_warps = 4;
thread_local bool t_waited = false;
void wait_for_previous_kernel() { t_waited = true; }
void append_tokens(const LeanDecodeArgs&, const Segment& s, int warp, int warps) {
  EXPECT_EQ(warps, g_append_warps);
  EXPECT_TRUE(std::exchange(t_waited, false)) << "the previous kernel may write the new rows";
  if (threadIdx.x % 32 == 0) g_append(s, warp);
  __syncwarp();
}
Step step_at(const Segment& s, int read) { return {read, min(kStepTokens, s.end - read)}; }

struct KvRing {
  u32 stages, full, empty;
};
struct RingPosition {
  u32 stage = 0, parity = 0;
  void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};
struct SelectedHoles {
  std::array<u64, kStages> of_stage;
};
using Holes = u64;
void wait_for_tokens(const Segment&, int) {}
SelectedHoles& selected_holes() {
  static std::array<SelectedHoles, 2> holes;
  return holes[t_cta];
}
void publish_rows() { __syncwarp(); }

#define LEAN_DEVICE inline
// Where there are no roles, eight warps copy rows.
#define ROWS(values, byte_columns, rope_columns, group, bytes_at, scales_at, rope_at, parts, page, roles) \
  ROWS_OF_CTAS(values, byte_columns, rope_columns, group, bytes_at, scales_at, rope_at, parts, page, roles, 1)
#define ROWS_OF_CTAS(values, byte_columns, rope_columns, group, bytes_at, scales_at, rope_at, parts, page, roles,    \
                     ctas)                                                                                           \
  constexpr bool kHasRoles = roles;                                                                                  \
  constexpr int kConvertingCtas = ctas;                                                                              \
  constexpr int kRowByteColumns = byte_columns, kRowGroup = group, kRowFirstByte = bytes_at, kRowScales = scales_at, \
                kScaleColumns = group > 0 ? group : 1, kRowRope = rope_at, kRowBytes = rope_at + rope_columns * 2,   \
                kValueDim = values, kVPanels = values / 64, kKPanels = (byte_columns + rope_columns) / 64,           \
                kStageParts = parts, kStageBytes = kKPanels * kPanelBytes, kPageSize = page,                         \
                kGatherWarps = roles ? 4 : 8;                                                                        \
  struct RowBuffers {                                                                                                \
    float scales[kStages][kStepTokens][group > 0 ? kRowByteColumns / kScaleColumns : 1];                             \
    u64 arrived[kGatherWarps][kStages];                                                                              \
  };                                                                                                                 \
  inline RowBuffers& row_buffers() {                                                                                 \
    return *reinterpret_cast<RowBuffers*>(g_shared.data() + (200 << 10) + t_cta * kToOtherCta);                      \
  }                                                                                                                  \
  inline u32 arrived_barrier(u32 stage) {                                                                            \
    return shared_address(&row_buffers().arrived[threadIdx.x / 32 % kGatherWarps][stage]);                           \
  }                                                                                                                  \
  inline u32 row_barrier() { return shared_address(&row_buffers().arrived[threadIdx.x / 32 % kGatherWarps][0]); }    \
  inline void init_row_barrier() { init_barrier(row_barrier(), 1); }                                                 \
  inline void copy_row(u32 to, const char* row, u32 barrier) { copy_bulk(to, row, kRowBytes, barrier); }             \
  inline u32 full_barriers(const KvRing& ring, const RingPosition& at) {                                             \
    return ring.full + at.stage * (kStageParts * 8);                                                                 \
  }                                                                                                                  \
  inline u32 empty_barriers(const KvRing& ring, const RingPosition& at) {                                            \
    return ring.empty + at.stage * (kStageParts * 8);                                                                \
  }                                                                                                                  \
  constexpr int first_panel(int part) { return part == 0 ? 0 : part < kStageParts ? kVPanels / 2 : kKPanels; }       \
  inline void arrive_for_warp(u32 barriers) {                                                                        \
    for (int part = 0; part < kStageParts && threadIdx.x % 32 == 0; part++)                                          \
      arrive(barriers + static_cast<u32>(part * 8), 33);                                                             \
  }                                                                                                                  \
  struct RingWriter {                                                                                                \
    RingPosition at;                                                                                                 \
    u32 filled = 0;                                                                                                  \
    u32 stage(const KvRing& ring) const { return ring.stages + at.stage * kStageBytes; }                             \
  };                                                                                                                 \
  inline void claim_all(const LeanDecodeArgs&, const KvRing& ring, RingWriter& writer) {                             \
    for (int part = 0; part < kStageParts && writer.filled == kStages; part++)                                       \
      wait_for(empty_barriers(ring, writer.at) + static_cast<u32>(part * 8), writer.at.parity ^ 1);                  \
    if (writer.filled < kStages) writer.filled++;                                                                    \
  }

namespace dense {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 0, true)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace dense
namespace pages {
constexpr bool kAppend = true;
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 24, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace pages
namespace selected {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 16, true)
constexpr int kSelectionBlock = 1, kSelectionQueries = 1, kPageRun = 1;
constexpr bool kSelectionInPool = true, kSelectionCausal = true, kSecondCache = false;
#include "templates/kv/selection.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace selected
/// Two CTAs that convert half of the rows each.
namespace shared {
ROWS_OF_CTAS(512, 512, 64, 128, 0, 512, 528, 2, 0, true, 2)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace shared
namespace shared_selected {
ROWS_OF_CTAS(512, 512, 64, 128, 0, 512, 528, 2, 16, true, 2)
constexpr int kSelectionBlock = 1, kSelectionQueries = 1, kPageRun = 1;
constexpr bool kSelectionInPool = true, kSelectionCausal = true, kSecondCache = false;
#include "templates/kv/selection.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace shared_selected
namespace two_caches {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 16, true)
constexpr int kSelectionBlock = 1, kSelectionQueries = 1, kPageRun = 1;
constexpr bool kSelectionInPool = true, kSelectionCausal = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace two_caches
namespace buffered {
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 0, false)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered
namespace buffered_pages {
constexpr bool kAppend = true;
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 24, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_pages
namespace buffered_caches {
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 16, false)
constexpr int kSelectionBlock = 1, kSelectionQueries = 1, kPageRun = 1;
constexpr bool kSelectionInPool = true, kSelectionCausal = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_caches
/// Rows of one-byte elements: with an odd number of panels, and with an even one.
namespace bytes {
ROWS(512, 576, 0, 0, 0, 0, 576, 2, 0, true)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace bytes
namespace even_bytes {
ROWS(256, 384, 0, 0, 0, 0, 384, 2, 0, true)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace even_bytes
namespace buffered_bytes {
ROWS(512, 576, 0, 0, 0, 0, 576, 1, 0, false)
inline bool is_hole(int, int) { return false; }
#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_bytes
/// A format that nobody has: other widths, small groups, everything in another order.
namespace other {
ROWS(256, 256, 128, 64, 32, 16, 288, 1, 1, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace other
namespace other_buffered {
ROWS(256, 256, 128, 64, 32, 16, 288, 1, 1, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/row_lanes.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace other_buffered
#pragma GCC diagnostic pop

/// Where the parts of a row lie, and how stages are divided.
struct Layout {
  int values, byte_columns, rope_columns, group, first_byte, scales, rope, bytes, parts;
};

/// A cache of random rows with random arguments; what `place` says of a token of a segment is where its row lies, in
/// rows of the cache, or below 0.
struct Rows {
  static constexpr int kRows = 900, kTokenBytes = 16;  // rows are that much apart beside their own bytes
  Layout layout;
  std::vector<char> memory, drawn;  // the rows, and as they were drawn: what stages are to hold of them
  std::vector<int> table, selection;
  LeanDecodeArgs args{};

  explicit Rows(const Layout& of) : layout(of), memory(static_cast<std::size_t>(kRows * stride())) {
    std::mt19937 random(11);
    for (char& byte : memory) byte = static_cast<char>(random() % 0x7f | (random() % 2) << 7);  // no NaN
    for (int row = 0; row < kRows; ++row)
      for (int group = 0; of.group > 0 && group < of.byte_columns / of.group; ++group) {
        const float scale =
            std::ldexp(1.0f + static_cast<float>(random() % 8191) / 8192.0f, static_cast<int>(random() % 23) - 13);
        std::memcpy(memory.data() + row * stride() + of.scales + 4 * group, &scale, 4);
      }
    drawn = memory;
    args.k = memory.data();
    args.k_stride_token = stride();
  }
  int stride() const { return layout.bytes + kTokenBytes; }
  const char* at(int row) const { return memory.data() + row * stride(); }

  /// The bits of a column of a row, as it was drawn, as bf16.
  u32 column(int row, int column) const {
    const char* const from = drawn.data() + row * stride();
    if (column < layout.byte_columns) {
      float scale = 1;
      if (layout.group > 0) std::memcpy(&scale, from + layout.scales + 4 * (column / layout.group), 4);
      return bf16_of(value_of_e4m3(static_cast<unsigned char>(from[layout.first_byte + column])) * scale);
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + layout.rope + 2 * (column - layout.byte_columns), 2);
    return bits;
  }
};

/// Runs a producer of `warps` warps over the segments, in one CTA or in the two of a cluster, and reads every step as
/// its parts become full. As the readers of two parts do, it frees the first one only once the next step is there.
/// Readers of a cluster free the stages of both CTAs. Producers of four warps ask L2 for each row once.
void expect_panels(const Rows& rows, const std::vector<Segment>& segments, bool has_holes,
                   const std::function<void(const KvRing&, Walk&)>& produce,
                   const std::function<int(const Segment&, int)>& place, unsigned warps = 4, unsigned ctas = 1) {
  constexpr KvRing kRing{0, 210 << 10, 220 << 10};
  const auto ring_of = [&](unsigned cta) {
    const u32 to = cta * kToOtherCta;
    return KvRing{kRing.stages + to, kRing.full + to, kRing.empty + to};
  };
  const Layout& layout = rows.layout;
  const int panels = (layout.byte_columns + layout.rope_columns) / 64;
  const auto first_column = [&](int part) {
    return part == 0 ? 0 : part < layout.parts ? layout.values / 2 : 64 * panels;
  };
  g_prefetched.clear();
  std::vector<const char*> existing;
  g_shared.fill(0xfe);  // finite as a scale, so that not even zeros times it are the zeros that are expected
  for (unsigned cta = 0; cta < ctas; ++cta) {
    for (int i = 0; i < kStages * layout.parts; ++i) {
      init_barrier(ring_of(cta).full + static_cast<u32>(8 * i), static_cast<int>(warps) * 33);
      init_barrier(ring_of(cta).empty + static_cast<u32>(8 * i), static_cast<int>(ctas));
    }
  }
  const auto release = [&](u32 empty) {  // by one reader, as each of a cluster does
    for (unsigned cta = 0; cta < ctas; ++cta) arrive(empty + cta * kToOtherCta, 1);
  };
  std::vector<std::jthread> lanes;
  for (unsigned lane = 0; lane < 32 * warps * ctas; ++lane) {
    lanes.emplace_back([&, lane] {
      threadIdx.x = lane, t_cta = lane / (32 * warps);
      Walk walk{segments.front(), &segments, 0};
      produce(ring_of(t_cta), walk);
    });
  }
  RingPosition at;
  int steps = 0, hidden = 0, wrong = 0;
  std::optional<u32> kept;  // the barrier of the first part of the step before
  for (const Segment& s : segments) {
    for (int read = s.first; read < s.end; read += kStepTokens, at.next(), ++steps) {
      for (int of_both = 0; of_both < layout.parts * static_cast<int>(ctas); ++of_both) {
        const int part = of_both % layout.parts;
        t_cta = static_cast<u32>(of_both / layout.parts);
        const KvRing ring = ring_of(t_cta);
        wait_for(ring.full + at.stage * static_cast<u32>(layout.parts * 8) + static_cast<u32>(part * 8), at.parity);
        for (int token = 0; token < kStepTokens; ++token) {
          const int row = read + token < s.end ? place(s, read + token) : -1;
          hidden += row < 0 && part == 0;
          if (row >= 0 && part == 0) existing.push_back(rows.at(row));
          for (int column = first_column(part); column < first_column(part + 1); ++column) {
            const u32 chunk = static_cast<u32>(column % 64 / 8 ^ token % 8);
            const std::size_t address = ring.stages + at.stage * static_cast<u32>(panels * kPanelBytes) +
                                        static_cast<std::size_t>(column / 64 * kPanelBytes + token * 128) + chunk * 16 +
                                        static_cast<std::size_t>(column % 8 * 2);
            std::uint16_t found = 0;
            std::memcpy(&found, g_shared.data() + address, 2);
            const u32 value = row < 0 ? 0 : rows.column(row, column);
            if (found != value && wrong++ < 5)
              ADD_FAILURE() << "read " << read + token << ", column " << column << ": " << found << ", not " << value;
          }
          if (has_holes && part == 0 && read + token < s.end) {
            EXPECT_EQ(selected_holes().of_stage[at.stage] >> token & 1, row < 0 ? 1u : 0u) << read + token;
          }
        }
      }
      t_cta = 0;
      const u32 empty = kRing.empty + at.stage * static_cast<u32>(layout.parts * 8);
      for (unsigned reader = 0; reader < ctas; ++reader) {
        if (layout.parts > 1) {
          if (kept) release(*kept);
          release(empty + 8);
        } else {
          release(empty);
        }
      }
      kept = empty;
    }
  }
  lanes.clear();
  std::sort(existing.begin(), existing.end());
  std::sort(g_prefetched.begin(), g_prefetched.end());
  EXPECT_EQ(g_prefetched, warps == 4 ? existing : std::vector<const char*>());
  EXPECT_GT(steps, 2 * kStages);
  EXPECT_GT(hidden, 0);
  EXPECT_EQ(wrong, 0);
}

constexpr Layout kDsMla{512, 512, 64, 128, 0, 512, 528, 656, 2}, kInOnePart{512, 512, 64, 128, 0, 512, 528, 656, 1};

TEST(RowPanels, TheTableSaysWhatTheLoaderIsTriedWith) {
  const leanattn::RowFormat* const row = leanattn::row_format(leanattn::KvFormat::fp8_ds_mla);
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->latent_columns, kDsMla.byte_columns);
  EXPECT_EQ(row->rope_columns, kDsMla.rope_columns);
  EXPECT_EQ(row->group_columns, kDsMla.group);
  EXPECT_EQ(row->latent_offset, kDsMla.first_byte);
  EXPECT_EQ(row->scales_offset, kDsMla.scales);
  EXPECT_EQ(row->rope_offset, kDsMla.rope);
  EXPECT_EQ(row->bytes, kDsMla.bytes);
}

/// A dense cache. The second segment has no tokens, and others end inside a step.
void expect_panels_of_dense_rows(const Layout& layout, unsigned warps,
                                 const std::function<void(const LeanDecodeArgs&, const KvRing&, Walk&)>& produce,
                                 unsigned ctas = 1) {
  Rows rows(layout);
  rows.args.k_stride_batch = 300 * rows.stride();
  const std::vector<Segment> segments{{0, 0, 0, 290}, {1, 0, 0, 0}, {2, 0, 64, 130}, {1, 0, 0, 1}, {0, 0, 128, 192}};
  expect_panels(
      rows, segments, false, [&](const KvRing& ring, Walk& walk) { produce(rows.args, ring, walk); },
      [](const Segment& s, int read) { return s.request * 300 + read; }, warps, ctas);
}

TEST(RowPanels, RowsOfADenseCacheBecomePanels) {
  expect_panels_of_dense_rows(kDsMla, 4, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    dense::produce(args, {}, {}, ring, walk);
  });
}

TEST(RowPanels, RowsThatWaitInABufferBecomePanels) {
  expect_panels_of_dense_rows(kInOnePart, 8, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    buffered::produce(args, {}, {}, ring, walk);
  });
}

TEST(RowPanels, RowsOfElementsOfOneByteBecomePanels) {
  expect_panels_of_dense_rows(
      {512, 576, 0, 0, 0, 0, 0, 576, 2}, 4,
      [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) { bytes::produce(args, {}, {}, ring, walk); });
  expect_panels_of_dense_rows({256, 384, 0, 0, 0, 0, 0, 384, 2}, 4,
                              [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
                                even_bytes::produce(args, {}, {}, ring, walk);
                              });
  expect_panels_of_dense_rows({512, 576, 0, 0, 0, 0, 0, 576, 1}, 8,
                              [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
                                buffered_bytes::produce(args, {}, {}, ring, walk);
                              });
}

/// A paged cache with holes. No row is there before the warp that reads it has appended it.
void expect_panels_of_appended_rows(int warps,
                                    const std::function<void(const LeanDecodeArgs&, const KvRing&, Walk&)>& produce) {
  Rows rows(kInOnePart);
  std::mt19937 random(5);
  for (int i = 0; i < 2 * 20; ++i)
    rows.table.push_back(random() % 4 == 0 ? 36 + static_cast<int>(random() % 3) : static_cast<int>(random() % 36));
  rows.table[3] = -1;
  rows.args.k_stride_batch = 24 * rows.stride();
  rows.args.page_table = rows.table.data(), rows.args.page_table_stride = 20, rows.args.pool_pages = 36;
  const std::vector<Segment> segments{{0, 0, 0, 333}, {1, 0, 128, 450}};
  const auto place = [&](const Segment& s, int read) {
    const int page = rows.table[static_cast<std::size_t>(s.request * 20 + read / 24)];
    return page < 0 || page >= 36 ? -1 : page * 24 + read % 24;
  };
  std::fill(rows.memory.begin(), rows.memory.end(), '\x7f');
  g_append_warps = warps;
  g_append = [&](const Segment& s, int warp) {
    for (int read = s.first; read < s.end; ++read) {
      const std::ptrdiff_t row = place(s, read), bytes = rows.stride();
      if ((read - s.first) % 64 / (64 / warps) == warp && row >= 0)
        std::copy_n(rows.drawn.begin() + row * bytes, bytes, rows.memory.begin() + row * bytes);
    }
  };
  expect_panels(
      rows, segments, true, [&](const KvRing& ring, Walk& walk) { produce(rows.args, ring, walk); }, place,
      static_cast<unsigned>(warps));
}

TEST(RowPanels, RowsOfPagesBecomePanelsOnceTheyAreAppendedAndHolesZeros) {
  expect_panels_of_appended_rows(
      4, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) { pages::produce(args, {}, {}, ring, walk); });
  expect_panels_of_appended_rows(8, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    buffered_pages::produce(args, {}, {}, ring, walk);
  });
}

/// A cache of which random tokens are selected, with holes and tokens that the pool does not have.
void expect_panels_of_selected_rows(const Layout& layout, unsigned warps,
                                    const std::function<void(const LeanDecodeArgs&, const KvRing&, Walk&)>& produce,
                                    unsigned ctas = 1) {
  Rows rows(layout);
  std::mt19937 random(6);
  for (int i = 0; i < 2 * 400; ++i)
    rows.selection.push_back(random() % 9 == 0   ? -1
                             : random() % 9 == 1 ? 800 + static_cast<int>(random() % 9)
                                                 : static_cast<int>(random() % 800));
  rows.args.k_stride_batch = 16 * rows.stride();
  rows.args.pool_pages = 50;
  rows.args.selection = rows.selection.data(), rows.args.selection_capacity = 400;
  rows.args.selection_stride_batch = 400;
  const std::vector<Segment> segments{{0, 0, 0, 400}, {1, 0, 192, 350}, {1, 0, 0, 5}};
  expect_panels(
      rows, segments, true, [&](const KvRing& ring, Walk& walk) { produce(rows.args, ring, walk); },
      [&](const Segment& s, int read) {
        const int token = rows.selection[static_cast<std::size_t>(s.request * 400 + read)];
        return token < 0 || token >= 800 ? -1 : token;
      },
      warps, ctas);
}

TEST(RowPanels, SelectedRowsBecomePanels) {
  expect_panels_of_selected_rows(kDsMla, 4, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    selected::produce(args, {}, {}, ring, walk);
  });
}

TEST(RowPanels, TwoCtasConvertHalfOfTheRowsEachForBoth) {
  const auto dense = [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    shared::produce(args, {}, {}, ring, walk);
  };
  expect_panels_of_dense_rows(kDsMla, 4, dense, 2);
  const auto selected = [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    shared_selected::produce(args, {}, {}, ring, walk);
  };
  expect_panels_of_selected_rows(kDsMla, 4, selected, 2);
}

/// Selected rows and those of a second cache, which lies before or behind the first one.
void expect_panels_of_two_caches(const Layout& layout, unsigned warps,
                                 const std::function<void(const LeanDecodeArgs&, const KvRing&, Walk&)>& produce) {
  for (const bool before : {true, false}) {
    Rows rows(layout);
    std::mt19937 random(9);
    for (int i = 0; i < 2 * 400; ++i)
      rows.selection.push_back(random() % 9 == 0 ? -1 : static_cast<int>(random() % 432));
    for (int i = 0; i < 2 * 10; ++i) rows.table.push_back(static_cast<int>(random() % 30) - 1);
    const int first = before ? 448 : 0, second = before ? 0 : 448;  // rows at which the two pools begin
    const std::array<int, 2> lengths{150, 37};
    rows.args.k = rows.at(first), rows.args.second_k = rows.at(second);
    rows.args.k_stride_batch = 16 * rows.stride();
    rows.args.pool_pages = 27, rows.args.second_pool_pages = 28;
    rows.args.selection = rows.selection.data(), rows.args.selection_capacity = 400;
    rows.args.selection_stride_batch = 400;
    rows.args.second_page_table = rows.table.data(), rows.args.second_page_table_stride = 10;
    rows.args.second_lengths = lengths.data(), rows.args.second_capacity = 160;
    const std::vector<Segment> segments{{0, 0, 0, 350, 200}, {1, 0, 192, 337, 300}, {1, 0, 0, 37, 0}};
    expect_panels(
        rows, segments, true, [&](const KvRing& ring, Walk& walk) { produce(rows.args, ring, walk); },
        [&](const Segment& s, int read) {
          if (read >= s.selected) {
            const int token = read - s.selected,
                      page = rows.table[static_cast<std::size_t>(s.request * 10 + token / 16)];
            return page < 0 || page >= 28 ? -1 : second + page * 16 + token % 16;
          }
          const int token = rows.selection[static_cast<std::size_t>(s.request * 400 + read)];
          return token < 0 || token >= 432 ? -1 : first + token;
        },
        warps);
  }
}

TEST(RowPanels, SelectedRowsAndThoseOfASecondCacheBecomePanels) {
  expect_panels_of_two_caches(kDsMla, 4, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    two_caches::produce(args, {}, {}, ring, walk);
  });
  expect_panels_of_two_caches(kInOnePart, 8, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    buffered_caches::produce(args, {}, {}, ring, walk);
  });
}

/// A format that no engine has, in pages of one token, of which some are holes.
void expect_panels_of_another_format(unsigned warps,
                                     const std::function<void(const LeanDecodeArgs&, const KvRing&, Walk&)>& produce) {
  Rows rows({256, 256, 128, 64, 32, 16, 288, 544, 1});
  std::mt19937 random(8);
  for (int i = 0; i < 300; ++i) rows.table.push_back(static_cast<int>(random() % 900) - 5);
  rows.args.k_stride_batch = rows.stride();
  rows.args.page_table = rows.table.data(), rows.args.pool_pages = 890;
  const std::vector<Segment> segments{{0, 0, 0, 300}};
  expect_panels(
      rows, segments, true, [&](const KvRing& ring, Walk& walk) { produce(rows.args, ring, walk); },
      [&](const Segment&, int read) {
        const int row = rows.table[static_cast<std::size_t>(read)];
        return row < 0 || row >= 890 ? -1 : row;
      },
      warps);
}

TEST(RowPanels, AnotherFormatIsOnlyOtherNumbers) {
  expect_panels_of_another_format(
      4, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) { other::produce(args, {}, {}, ring, walk); });
  expect_panels_of_another_format(8, [](const LeanDecodeArgs& args, const KvRing& ring, Walk& walk) {
    other_buffered::produce(args, {}, {}, ring, walk);
  });
}

}  // namespace row_panels
}  // namespace
