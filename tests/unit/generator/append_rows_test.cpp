// append_rows_test.cpp -- new rows of a cache whose rows have a format of their own, written by 128 threads as the
// lanes of the producer's warpgroup: bytes and scales are those that engines store, rotated columns are turned for
// their token, and each row is written by the warp that reads it. The modules of kernels are compiled here as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "generator/kv_encoding.hpp"
#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace append_rows {

/// Which warp wrote the rotated columns of a token, of which request.
std::mutex g_written_mutex;
std::map<std::pair<const char*, int>, std::set<int>> g_written;
/// Stands for the rotation: every element changes with its column and its token.
u32 turned(u32 pair, int column, int token) {
  return pair ^ (static_cast<u32>(column * 7 + token * 64) & 0xffffu) * 0x10001u;
}
uint4 rotated_16(const LeanDecodeArgs&, const char* row, int column, int token) {
  {
    const std::lock_guard lock(g_written_mutex);
    g_written[{row, token}].insert(static_cast<int>(threadIdx.x / 32));
  }
  uint4 x = load_cached<uint4>(row + 2 * column);
  x.x = turned(x.x, column, token), x.y = turned(x.y, column + 2, token), x.z = turned(x.z, column + 4, token),
  x.w = turned(x.w, column + 6, token);
  return x;
}

#include "tests/device/begin.cuh"
constexpr int kQLen = 3, kStrideBytes = 1, kGatherWarps = 4;
constexpr bool kGathers = true;
#include "tests/device/given_line.cuh"
#define FORMAT_OF(plane, latent_columns, rope_columns, group, latent_at, scales_at, rope_at, page)    \
  constexpr int kRowByteColumns = latent_columns, kRowGroup = group, kRowFirstByte = latent_at,       \
                kRowScales = scales_at, kRowRope = rope_at, kHeadDim = latent_columns + rope_columns, \
                kRowPlane = plane, kPageSize = page, kRowBytes = rope_at + 2 * rope_columns;
#define FORMAT(...) FORMAT_OF(0, __VA_ARGS__)
namespace dense {
FORMAT(512, 64, 128, 0, 512, 528, 0)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/row_scales.cuh"

#include "templates/kv/append_rows.cuh"

#include "templates/kv/append_to_cache.cuh"
}  // namespace dense
namespace pages {
FORMAT(512, 64, 128, 0, 512, 528, 24)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/row_scales.cuh"

#include "templates/kv/append_rows.cuh"

#include "templates/kv/append_to_cache.cuh"
}  // namespace pages
/// A format that nobody has: other widths, of which a warp's second round has a part only, small groups, everything in
/// another order.
namespace other {
FORMAT(384, 128, 32, 64, 0, 448, 1)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/row_scales.cuh"

#include "templates/kv/append_rows.cuh"

#include "templates/kv/append_to_cache.cuh"
}  // namespace other
/// Scales are powers of two in a plane behind the rows of a page.
namespace plane {
FORMAT_OF(8, 448, 64, 64, 0, 0, 448, 24)
#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/row_scales.cuh"

#include "templates/kv/append_rows.cuh"

#include "templates/kv/append_to_cache.cuh"
}  // namespace plane
#undef FORMAT
#undef FORMAT_OF
#include "tests/device/end.cuh"

// ---- the definition ----

struct Layout {
  int latent_columns, rope_columns, group, latent, scales, rope, bytes;
  int plane = 0, page = 1;  // bytes of a token's scales behind the rows of its page, and its tokens
  int columns() const { return latent_columns + rope_columns; }
};

/// Of each byte that is a number, its value.
const std::vector<std::pair<float, int>>& e4m3_values() {
  static const auto values = [] {
    std::vector<std::pair<float, int>> all;
    for (int byte = 0; byte < 0x7f; ++byte) {
      const int exponent = byte >> 3, fraction = byte & 7;
      all.emplace_back(exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                     : std::ldexp(static_cast<float>(8 + fraction), exponent - 10),
                       byte);
    }
    return all;
  }();
  return values;
}
/// The nearest one, that with an even byte where two are as near; by trying all.
int nearest_byte(float value) {
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [candidate, byte] : e4m3_values()) {
    const double away = std::abs(static_cast<double>(candidate) - std::abs(static_cast<double>(value)));
    if (away < least || (away == least && byte % 2 == 0)) least = away, best = byte;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

float value_of(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t bf16_of(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

/// The row that engines store for these columns at position `token`, on memory that was all `rest`, and behind it its
/// part of the plane.
std::vector<unsigned char> stored_row(const Layout& layout, const std::uint16_t* columns, int token, int rest) {
  std::vector<unsigned char> row(static_cast<std::size_t>(layout.bytes), static_cast<unsigned char>(rest));
  row.resize(static_cast<std::size_t>(layout.bytes + layout.plane));
  for (int group = 0; group < layout.latent_columns / layout.group; ++group) {
    float largest = 0;
    for (int i = group * layout.group; i < (group + 1) * layout.group; ++i)
      largest = std::max(largest, std::abs(value_of(columns[i])));
    float scale = std::max(largest / 448, std::numeric_limits<float>::min());
    if (layout.plane > 0) {
      const float least = std::max(largest, 1e-4f) / 448;
      int exponent = -127;
      while (std::ldexp(1.0f, exponent) < least) ++exponent;
      scale = std::ldexp(1.0f, exponent);
      row[static_cast<std::size_t>(layout.bytes + group)] = static_cast<unsigned char>(exponent + 127);
    } else {
      std::memcpy(row.data() + layout.scales + 4 * group, &scale, 4);
    }
    for (int i = group * layout.group; i < (group + 1) * layout.group; ++i)
      row[static_cast<std::size_t>(layout.latent + i)] =
          static_cast<unsigned char>(nearest_byte(value_of(columns[i]) / scale));
  }
  for (int i = 0; i < layout.rope_columns; i += 2) {
    u32 pair = 0;
    std::memcpy(&pair, columns + layout.latent_columns + i, 4);
    pair = turned(pair, layout.latent_columns + i, token);
    std::memcpy(row.data() + layout.rope + 2 * i, &pair, 4);
  }
  return row;
}

constexpr Layout kDsMla{512, 64, 128, 0, 512, 528, 656}, kOther{384, 128, 32, 64, 0, 448, 704},
    kDsV4{448, 64, 64, 0, 0, 448, 576, 8, 24};
constexpr int kCached = 400, kQueryTokens = kQLen, kRequests = 4, kRest = 0xa5;

/// A cache of 0xa5, and new rows whose groups are of any size: of zeros, of the smallest and the largest numbers, and
/// between.
struct Rows {
  Layout layout;
  std::vector<unsigned char> memory;
  std::vector<std::uint16_t> fresh;
  std::vector<int> table;
  LeanDecodeArgs args{};

  explicit Rows(const Layout& of) : layout(of) {
    memory.assign(static_cast<std::size_t>(offset(kRequests * kCached)), kRest);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int row = 0; row < kRequests * kQueryTokens; ++row) {
      for (int column = 0; column < of.columns(); ++column) {
        const int kind = (row * 5 + column / of.group) % 7;
        const float x = normal(random);
        fresh.push_back(bf16_of(kind == 0   ? (column % 2 == 0 ? 0.0f : -0.0f)
                                : kind == 1 ? std::ldexp(x, -130)
                                : kind == 2 ? std::copysign(3.38e38f, x) * (column % 3 == 0 ? 1.0f : 0.3f)
                                : kind == 3 ? std::ldexp(x, static_cast<int>(random() % 40) - 20)
                                            : x));
      }
    }
    args.k = memory.data(), args.k_new = fresh.data();
    args.k_stride_token = stride(), args.k_stride_batch = kCached * stride();
    args.k_new_stride_token = of.columns(), args.k_new_stride_batch = kQueryTokens * of.columns();
  }
  int stride() const { return layout.plane > 0 ? layout.bytes : layout.bytes + 16; }
  int page_stride() const { return layout.page * (stride() + layout.plane); }
  std::ptrdiff_t offset(int row) const { return row / layout.page * page_stride() + row % layout.page * stride(); }
  std::ptrdiff_t in_plane(int row) const {
    return row / layout.page * page_stride() + layout.page * stride() + row % layout.page * layout.plane;
  }
  const std::uint16_t* new_row(int request, int query) const {
    return fresh.data() + (request * kQueryTokens + query) * layout.columns();
  }

  /// Lets all four warps append to each of the segments, and compares every byte of the cache with what `place` says of
  /// a request's token: the row of the cache, or below 0. `appended` counts the rows that had to be written.
  template <class Append>
  void expect_rows(const std::vector<Segment>& segments, Append append, const std::function<int(int, int)>& place,
                   int appended) {
    std::vector<unsigned char> expected = memory;
    g_written.clear();
    std::map<std::pair<const char*, int>, std::set<int>> readers;
    for (const Segment& s : segments) {
      for (int query = 0; query < s.query.count; ++query) {
        const int token = s.context_length - s.query.count + query, read = token - s.visible.shift,
                  row = token < 0 || read < first_read(s) || read >= end_read(s) ? -1 : place(s.request, token);
        if (row < 0) continue;
        --appended;
        const auto stored = stored_row(layout, new_row(s.request, query), token, kRest);
        std::copy_n(stored.begin(), layout.bytes, expected.begin() + offset(row));
        std::copy_n(stored.begin() + layout.bytes, layout.plane, expected.begin() + in_plane(row));
        readers[{reinterpret_cast<const char*>(new_row(s.request, query)), token}] = {(read - first_read(s)) % 64 / 16};
      }
      run_lanes(128, [&](u32 lane) { append(args, s, static_cast<int>(lane / 32)); });
    }
    EXPECT_EQ(appended, 0);
    EXPECT_EQ(g_written, readers) << "the warp that reads a row writes it";
    for (std::size_t i = 0; i < memory.size(); ++i)
      ASSERT_EQ(static_cast<int>(memory[i]), static_cast<int>(expected[i]))
          << "byte " << i % static_cast<std::size_t>(page_stride()) << " of page "
          << i / static_cast<std::size_t>(page_stride());
  }
};

Segment segment(int request, int context, int first, int end, int shift = 0) {
  return segment_of(request, 0, context, first, end, shift);
}

TEST(AppendRows, TheTableSaysWhatIsTried) {
  for (const auto& [format, layout] : {std::pair(KvFormat::fp8_ds_mla, kDsMla), {KvFormat::fp8_ds_v4, kDsV4}}) {
    const RowFormat* const row = kv_encoding(format).row;
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->latent_columns, layout.latent_columns);
    EXPECT_EQ(row->rope_columns, layout.rope_columns);
    EXPECT_EQ(row->group_columns, layout.group);
    EXPECT_EQ(row->latent_offset, layout.latent);
    EXPECT_EQ(row->scales_offset, layout.scales);
    EXPECT_EQ(row->rope_offset, layout.rope);
    EXPECT_EQ(row->bytes, layout.bytes);
    EXPECT_EQ(row->plane_bytes, layout.plane);
  }
}

TEST(AppendRows, ADenseCacheGetsTheRowsThatEnginesStore) {
  Rows rows(kDsMla);
  // New tokens on both sides of a warp's and of a segment's end, a context that is shorter than the query tokens, and
  // one that does not end in the segment.
  rows.expect_rows(
      {segment(0, 129, 64, 128), segment(0, 129, 128, 129), segment(1, 83, 0, 83), segment(2, 2, 0, 2),
       segment(3, 300, 0, 128)},
      [](const LeanDecodeArgs& args, const Segment& s, int warp) { dense::append_tokens(args, s, warp, 4); },
      [](int request, int token) { return request * kCached + token; }, 8);
}

template <class Append>
void expect_rows_in_pages(const Layout& layout, const Append& append) {
  Rows rows(layout);
  rows.table = {5, 9, 40, 1, 3, 8, -1, 7, 2, 66, 60, 61, 4, 13, 62, 65};
  rows.args.page_table = rows.table.data(), rows.args.page_table_stride = 4, rows.args.pool_pages = 66;
  rows.args.k_stride_batch = layout.plane > 0 ? rows.page_stride() : 24 * rows.stride();
  // The second request's window begins 10 tokens later than its read indices.
  rows.expect_rows(
      {segment(0, 49, 0, 49), segment(1, 50, 0, 40, 10), segment(2, 26, 0, 26), segment(3, 96, 0, 96)}, append,
      [&](int request, int token) {
        const int page = rows.table[static_cast<std::size_t>(request * 4 + token / 24)];
        return page < 0 || page >= 66 ? -1 : page * 24 + token % 24;
      },
      // Of the second request one new token is in front of a hole, and of the third one.
      3 + 1 + 1 + 3);
}

TEST(AppendRows, PagesGetThemAndHolesGetNothing) {
  expect_rows_in_pages(
      kDsMla, [](const LeanDecodeArgs& args, const Segment& s, int warp) { pages::append_tokens(args, s, warp, 4); });
  expect_rows_in_pages(
      kDsV4, [](const LeanDecodeArgs& args, const Segment& s, int warp) { plane::append_tokens(args, s, warp, 4); });
}

TEST(AppendRows, AnotherFormatIsOnlyOtherNumbers) {
  Rows rows(kOther);
  for (int i = 0; i < 4 * 100; ++i) rows.table.push_back(i * 37 % 1600);
  rows.args.page_table = rows.table.data(), rows.args.page_table_stride = 100, rows.args.pool_pages = 1600;
  rows.args.k_stride_batch = rows.stride();
  rows.expect_rows(
      {segment(0, 1, 0, 1), segment(1, 100, 64, 100), segment(2, 17, 0, 17), segment(3, 66, 0, 66)},
      [](const LeanDecodeArgs& args, const Segment& s, int warp) { other::append_tokens(args, s, warp, 4); },
      [&](int request, int token) { return rows.table[static_cast<std::size_t>(request * 100 + token)]; }, 10);
}

}  // namespace append_rows
}  // namespace
}  // namespace leanattn::device
