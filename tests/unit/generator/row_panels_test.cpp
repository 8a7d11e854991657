// row_panels_test.cpp -- the producers that convert rows of bytes, run on threads as the lanes of their warps, with
// copies that arrive late and in any order (late_copies.hpp): stages hold what a swizzled tensor copy of a bf16 cache
// would bring, and say so when it is there. The modules of kernels are compiled here as they are, once for each set of
// constants.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "generator/kv_encoding.hpp"
#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace row_panels {

thread_local bool t_waited = false;
void wait_for_previous_kernel() { t_waited = true; }

#include "tests/device/begin.cuh"
constexpr bool kLatent = true, kGathers = true, kPdl = true;
#include "tests/device/given_line.cuh"

/// What the producers have to do before it asks for a row of a segment, of which it tells the warp.
std::function<void(const Segment&, int)> g_append;
int g_append_warps = 4;
void append_tokens(const LeanDecodeArgs&, const Segment& s, int warp, int warps) {
  EXPECT_EQ(warps, g_append_warps);
  EXPECT_TRUE(t_waited) << "the previous kernel may write the new rows";
  if (threadIdx.x % 32 == 0) g_append(s, warp);
  __syncwarp();
}

// Where there are no roles, eight warps copy rows.
#define ROWS_OF(plane, values, byte_columns, rope_columns, group, bytes_at, scales_at, rope_at, parts, page, roles)  \
  constexpr int kRowByteColumns = byte_columns, kRowGroup = group, kRowFirstByte = bytes_at, kRowScales = scales_at, \
                kRowRope = rope_at, kRowBytes = rope_at + rope_columns * 2, kHeadDim = byte_columns + rope_columns,  \
                kValueDim = values, kStageParts = parts, kPageSize = page, kGatherWarps = roles ? 4 : 8,             \
                kRowPlane = plane;                                                                                   \
  constexpr bool kHasRoles = roles;
#define ROWS(...) ROWS_OF(0, __VA_ARGS__)

namespace dense {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 0, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace dense
namespace pages {
constexpr bool kAppend = true;
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 24, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace pages
namespace selected {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 16, true)
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = false;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace selected
/// Two CTAs that convert half of the rows each.
namespace shared {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 0, true)
constexpr int kConvertingCtas = 2;
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace shared
namespace shared_selected {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 16, true)
constexpr int kConvertingCtas = 2;
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = false;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace shared_selected
namespace two_caches {
ROWS(512, 512, 64, 128, 0, 512, 528, 2, 16, true)
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace two_caches
namespace buffered {
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 0, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered
namespace buffered_pages {
constexpr bool kAppend = true;
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 24, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_pages
namespace buffered_caches {
ROWS(512, 512, 64, 128, 0, 512, 528, 1, 16, false)
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_caches
/// Rows of one-byte elements: with an odd number of panels, and with an even one.
namespace bytes {
ROWS(512, 576, 0, 0, 0, 0, 576, 2, 0, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace bytes
namespace even_bytes {
ROWS(256, 384, 0, 0, 0, 0, 384, 2, 0, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace even_bytes
namespace buffered_bytes {
ROWS(512, 576, 0, 0, 0, 0, 576, 1, 0, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_bytes
/// Rows whose scales lie in a plane behind those of their page, and whose values are all columns.
namespace plane {
ROWS_OF(8, 512, 448, 64, 64, 0, 0, 448, 2, 16, true)
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace plane
namespace buffered_plane {
ROWS_OF(8, 512, 448, 64, 64, 0, 0, 448, 1, 16, false)
constexpr int kSelectionBlock = 1;
constexpr bool kSelectionInPool = true, kSecondCache = true;
#include "templates/kv/selection.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/selected_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace buffered_plane
/// A format that nobody has: other widths, small groups, everything in another order.
namespace other {
ROWS(256, 256, 128, 64, 32, 16, 288, 1, 1, true)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/byte_panels.cuh"

#include "templates/kv/row_panels.cuh"

#include "templates/kv/produce_rows.cuh"
}  // namespace other
namespace other_buffered {
ROWS(256, 256, 128, 64, 32, 16, 288, 1, 1, false)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/token_holes.cuh"

#include "tests/device/ring.cuh"

#include "templates/kv/row_lanes.cuh"

#include "tests/device/row_copies.cuh"

#include "templates/kv/row_places.cuh"

#include "templates/kv/row_buffer.cuh"

#include "templates/kv/produce_buffered_rows.cuh"
}  // namespace other_buffered
#undef ROWS
#include "tests/device/end.cuh"

/// A kernel's producer on a ring at these addresses of shared memory, and which tokens of a stage it says are holes.
struct Producer {
  void (*produce)(const LeanDecodeArgs& args, u32 stages, u32 full, u32 empty, Walk& walk);
  u64 (*holes)(u32 stage);
};
#define PRODUCER(name)                                                             \
  Producer {                                                                       \
    [](const LeanDecodeArgs& args, u32 stages, u32 full, u32 empty, Walk& walk) {  \
      name::produce(args, {}, {}, {stages, full, empty}, walk);                    \
    },                                                                             \
        [](u32 stage) { return name::selected_holes().of_stage[stage].tokens[0]; } \
  }
constexpr int kPanelBytes = kStepTokens * 128;

Segment segment(int request, int first, int end, int selected = 0) {
  Segment s = segment_of(request, 0, end, first, end);
  s.selected = selected;
  return s;
}

/// Where the parts of a row lie, and how stages are divided.
struct Layout {
  int values, byte_columns, rope_columns, group, first_byte, scales, rope, bytes, parts;
  int plane = 0;  // bytes of a token's scales behind the rows of its page of kPlanePage tokens; 0: they are in the row
};
constexpr int kPlanePage = 16;

/// A cache of random rows with random arguments; what `place` says of a token of a segment is where its row lies, in
/// rows of the cache, or below 0.
struct Rows {
  static constexpr int kRows = 900, kTokenBytes = 16;  // rows are that much apart beside their own bytes
  Layout layout;
  std::vector<char> memory, drawn;  // the rows, and as they were drawn: what stages are to hold of them
  std::vector<int> table, selection;
  LeanDecodeArgs args{};

  explicit Rows(const Layout& of) : layout(of), memory(static_cast<std::size_t>(offset(kRows) + page_stride())) {
    std::mt19937 random(11);
    for (char& byte : memory) byte = static_cast<char>(random() % 0x7f | (random() % 2) << 7);  // no NaN
    for (int row = 0; row < kRows; ++row)
      for (int group = 0; of.group > 0 && group < of.byte_columns / of.group; ++group) {
        const int exponent = static_cast<int>(random() % 23) - 13;
        if (of.plane > 0) {
          memory[static_cast<std::size_t>(in_plane(row) + group)] = static_cast<char>(127 + exponent);
          continue;
        }
        const float scale = std::ldexp(1.0f + static_cast<float>(random() % 8191) / 8192.0f, exponent);
        std::memcpy(memory.data() + offset(row) + of.scales + 4 * group, &scale, 4);
      }
    drawn = memory;
    args.k = memory.data();
    args.k_stride_token = stride();
  }
  int stride() const { return layout.plane > 0 ? layout.bytes : layout.bytes + kTokenBytes; }
  /// Of pages of kPlanePage tokens.
  int page_stride() const { return kPlanePage * (stride() + layout.plane) + (layout.plane > 0 ? 2 * kTokenBytes : 0); }
  std::ptrdiff_t offset(int row) const { return row / kPlanePage * page_stride() + row % kPlanePage * stride(); }
  std::ptrdiff_t in_plane(int row) const {
    return row / kPlanePage * page_stride() + kPlanePage * layout.bytes + row % kPlanePage * layout.plane;
  }
  const char* at(int row) const { return memory.data() + offset(row); }

  /// The bits of a column of a row, as it was drawn, as an operand.
  u32 column(int row, int column) const {
    const char* const from = drawn.data() + offset(row);
    if (column < layout.byte_columns) {
      float scale = 1;
      if (layout.plane > 0)
        scale = std::ldexp(
            1.0f,
            static_cast<unsigned char>(drawn[static_cast<std::size_t>(in_plane(row) + column / layout.group)]) - 127);
      else if (layout.group > 0)
        std::memcpy(&scale, from + layout.scales + 4 * (column / layout.group), 4);
      const u32 byte = static_cast<unsigned char>(from[layout.first_byte + column]);
      return layout.group > 0 ? Bf16::of(value_of_e4m3(byte) * scale) : fp16_of_e4m3(byte);
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + layout.rope + 2 * (column - layout.byte_columns), 2);
    return bits;
  }
};

/// Runs a producer of `warps` warps over the segments, in one CTA or in the two of a cluster, and reads every step as
/// its parts become full. As the readers of two parts do, it frees the first one only once the next step is there.
/// Readers of a cluster free the stages of both CTAs. Producers of four warps ask L2 for each row once.
void expect_panels(const Rows& rows, const std::vector<Segment>& segments, bool has_holes, const Producer& producer,
                   const std::function<int(const Segment&, int)>& place, unsigned warps = 4, unsigned ctas = 1) {
  struct Ring {
    u32 stages, full, empty;
  };
  constexpr Ring kRing{0, 210 << 10, 220 << 10};
  const auto ring_of = [&](unsigned cta) {
    const u32 to = cta * kToOtherCta;
    return Ring{kRing.stages + to, kRing.full + to, kRing.empty + to};
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
  std::vector<std::jthread> lanes = start_lanes(32 * warps * ctas, [&](u32 lane) {
    t_cta = lane / (32 * warps);
    const Ring ring = ring_of(t_cta);
    Walk walk = walk_along(segments);
    producer.produce(rows.args, ring.stages, ring.full, ring.empty, walk);
  });
  dense::RingPosition at;
  int steps = 0, hidden = 0, wrong = 0;
  std::optional<u32> kept;  // the barrier of the first part of the step before
  for (const Segment& s : segments) {
    for (int read = first_read(s); read < end_read(s); read += kStepTokens, at.next(), ++steps) {
      for (int of_both = 0; of_both < layout.parts * static_cast<int>(ctas); ++of_both) {
        const int part = of_both % layout.parts;
        t_cta = static_cast<u32>(of_both / layout.parts);
        const Ring ring = ring_of(t_cta);
        wait_for(ring.full + at.stage * static_cast<u32>(layout.parts * 8) + static_cast<u32>(part * 8), at.parity);
        for (int token = 0; token < kStepTokens; ++token) {
          const int row = read + token < end_read(s) ? place(s, read + token) : -1;
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
          if (has_holes && part == 0 && read + token < end_read(s)) {
            EXPECT_EQ(producer.holes(at.stage) >> token & 1, row < 0 ? 1u : 0u) << read + token;
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

constexpr Layout kDsV4{512, 448, 64, 64, 0, 0, 448, 576, 2, 8}, kDsV4InOnePart{512, 448, 64, 64, 0, 0, 448, 576, 1, 8};
constexpr Layout kDsMla{512, 512, 64, 128, 0, 512, 528, 656, 2}, kInOnePart{512, 512, 64, 128, 0, 512, 528, 656, 1};

TEST(RowPanels, TheTableSaysWhatTheLoaderIsTriedWith) {
  for (const auto& [format, layout] : {std::pair(KvFormat::fp8_ds_mla, kDsMla), {KvFormat::fp8_ds_v4, kDsV4}}) {
    const RowFormat* const row = kv_encoding(format).row;
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->value_columns, layout.values);
    EXPECT_EQ(row->latent_columns, layout.byte_columns);
    EXPECT_EQ(row->rope_columns, layout.rope_columns);
    EXPECT_EQ(row->group_columns, layout.group);
    EXPECT_EQ(row->latent_offset, layout.first_byte);
    EXPECT_EQ(row->scales_offset, layout.scales);
    EXPECT_EQ(row->rope_offset, layout.rope);
    EXPECT_EQ(row->bytes, layout.bytes);
    EXPECT_EQ(row->plane_bytes, layout.plane);
  }
}

/// A dense cache. The second segment has no tokens, and others end inside a step.
void expect_panels_of_dense_rows(const Layout& layout, unsigned warps, const Producer& producer, unsigned ctas = 1) {
  Rows rows(layout);
  rows.args.k_stride_batch = 300 * rows.stride();
  const std::vector<Segment> segments{segment(0, 0, 290), segment(1, 0, 0), segment(2, 64, 130), segment(1, 0, 1),
                                      segment(0, 128, 192)};
  expect_panels(
      rows, segments, false, producer, [](const Segment& s, int read) { return s.request * 300 + read; }, warps, ctas);
}

TEST(RowPanels, RowsOfADenseCacheBecomePanels) { expect_panels_of_dense_rows(kDsMla, 4, PRODUCER(dense)); }

TEST(RowPanels, RowsThatWaitInABufferBecomePanels) { expect_panels_of_dense_rows(kInOnePart, 8, PRODUCER(buffered)); }

TEST(RowPanels, RowsOfElementsOfOneByteBecomePanels) {
  expect_panels_of_dense_rows({512, 576, 0, 0, 0, 0, 0, 576, 2}, 4, PRODUCER(bytes));
  expect_panels_of_dense_rows({256, 384, 0, 0, 0, 0, 0, 384, 2}, 4, PRODUCER(even_bytes));
  expect_panels_of_dense_rows({512, 576, 0, 0, 0, 0, 0, 576, 1}, 8, PRODUCER(buffered_bytes));
}

/// A paged cache with holes. No row is there before the warp that reads it has appended it.
void expect_panels_of_appended_rows(int warps, const Producer& producer) {
  Rows rows(kInOnePart);
  std::mt19937 random(5);
  for (int i = 0; i < 2 * 20; ++i)
    rows.table.push_back(random() % 4 == 0 ? 36 + static_cast<int>(random() % 3) : static_cast<int>(random() % 36));
  rows.table[3] = -1;
  rows.args.k_stride_batch = 24 * rows.stride();
  rows.args.page_table = rows.table.data(), rows.args.page_table_stride = 20, rows.args.pool_pages = 36;
  const std::vector<Segment> segments{segment(0, 0, 333), segment(1, 128, 450)};
  const auto place = [&](const Segment& s, int read) {
    const int page = rows.table[static_cast<std::size_t>(s.request * 20 + read / 24)];
    return page < 0 || page >= 36 ? -1 : page * 24 + read % 24;
  };
  std::fill(rows.memory.begin(), rows.memory.end(), '\x7f');
  g_append_warps = warps;
  g_append = [&](const Segment& s, int warp) {
    for (int read = first_read(s); read < end_read(s); ++read) {
      const std::ptrdiff_t row = place(s, read), bytes = rows.stride();
      if ((read - first_read(s)) % 64 / (64 / warps) == warp && row >= 0)
        std::copy_n(rows.drawn.begin() + row * bytes, bytes, rows.memory.begin() + row * bytes);
    }
  };
  expect_panels(rows, segments, true, producer, place, static_cast<unsigned>(warps));
}

TEST(RowPanels, RowsOfPagesBecomePanelsOnceTheyAreAppendedAndHolesZeros) {
  expect_panels_of_appended_rows(4, PRODUCER(pages));
  expect_panels_of_appended_rows(8, PRODUCER(buffered_pages));
}

/// A cache of which random tokens are selected, with holes and tokens that the pool does not have.
void expect_panels_of_selected_rows(const Layout& layout, unsigned warps, const Producer& producer, unsigned ctas = 1) {
  Rows rows(layout);
  std::mt19937 random(6);
  for (int i = 0; i < 2 * 400; ++i)
    rows.selection.push_back(random() % 9 == 0   ? -1
                             : random() % 9 == 1 ? 800 + static_cast<int>(random() % 9)
                                                 : static_cast<int>(random() % 800));
  rows.args.k_stride_batch = rows.page_stride();
  rows.args.pool_pages = 50;
  rows.args.selection = rows.selection.data(), rows.args.selection_capacity = 400;
  rows.args.selection_stride_batch = 400;
  const std::vector<Segment> segments{segment(0, 0, 400), segment(1, 192, 350), segment(1, 0, 5)};
  expect_panels(
      rows, segments, true, producer,
      [&](const Segment& s, int read) {
        const int token = rows.selection[static_cast<std::size_t>(s.request * 400 + read)];
        return token < 0 || token >= 800 ? -1 : token;
      },
      warps, ctas);
}

TEST(RowPanels, SelectedRowsBecomePanels) { expect_panels_of_selected_rows(kDsMla, 4, PRODUCER(selected)); }

TEST(RowPanels, TwoCtasConvertHalfOfTheRowsEachForBoth) {
  const auto dense = PRODUCER(shared);
  expect_panels_of_dense_rows(kDsMla, 4, dense, 2);
  const auto selected = PRODUCER(shared_selected);
  expect_panels_of_selected_rows(kDsMla, 4, selected, 2);
}

/// Selected rows and those of a second cache, which lies before or behind the first one.
void expect_panels_of_two_caches(const Layout& layout, unsigned warps, const Producer& producer) {
  for (const bool before : {true, false}) {
    Rows rows(layout);
    std::mt19937 random(9);
    for (int i = 0; i < 2 * 400; ++i)
      rows.selection.push_back(random() % 9 == 0 ? -1 : static_cast<int>(random() % 432));
    for (int i = 0; i < 2 * 10; ++i) rows.table.push_back(static_cast<int>(random() % 30) - 1);
    const int first = before ? 448 : 0, second = before ? 0 : 448;  // rows at which the two pools begin
    const std::array<int, 2> lengths{150, 37};
    rows.args.k = rows.at(first), rows.args.second_k = rows.at(second);
    rows.args.k_stride_batch = rows.page_stride();
    rows.args.pool_pages = 27, rows.args.second_pool_pages = 28;
    rows.args.selection = rows.selection.data(), rows.args.selection_capacity = 400;
    rows.args.selection_stride_batch = 400;
    rows.args.second_page_table = rows.table.data(), rows.args.second_page_table_stride = 10;
    rows.args.second_lengths = lengths.data(), rows.args.second_capacity = 160;
    const std::vector<Segment> segments{segment(0, 0, 350, 200), segment(1, 192, 337, 300), segment(1, 0, 37, 0)};
    expect_panels(
        rows, segments, true, producer,
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
  expect_panels_of_two_caches(kDsMla, 4, PRODUCER(two_caches));
  expect_panels_of_two_caches(kInOnePart, 8, PRODUCER(buffered_caches));
  expect_panels_of_two_caches(kDsV4, 4, PRODUCER(plane));
  expect_panels_of_two_caches(kDsV4InOnePart, 8, PRODUCER(buffered_plane));
}

/// A format that no engine has, in pages of one token, of which some are holes.
void expect_panels_of_another_format(unsigned warps, const Producer& producer) {
  Rows rows({256, 256, 128, 64, 32, 16, 288, 544, 1});
  std::mt19937 random(8);
  for (int i = 0; i < 300; ++i) rows.table.push_back(static_cast<int>(random() % 900) - 5);
  rows.args.k_stride_batch = rows.stride();
  rows.args.page_table = rows.table.data(), rows.args.pool_pages = 890;
  const std::vector<Segment> segments{segment(0, 0, 300)};
  expect_panels(
      rows, segments, true, producer,
      [&](const Segment&, int read) {
        const int row = rows.table[static_cast<std::size_t>(read)];
        return row < 0 || row >= 890 ? -1 : row;
      },
      warps);
}

TEST(RowPanels, AnotherFormatIsOnlyOtherNumbers) {
  expect_panels_of_another_format(4, PRODUCER(other));
  expect_panels_of_another_format(8, PRODUCER(other_buffered));
}

#undef PRODUCER
}  // namespace row_panels
}  // namespace
}  // namespace leanattn::device
