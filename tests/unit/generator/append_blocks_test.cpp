// append_blocks_test.cpp -- new rows whose blocks of 16 columns get scales, written by the 32 lanes of a warp: bytes
// and scales are those that FlashInfer 0.7.2's writer stores (include/flashinfer/page.cuh), whose own code has worked
// these blocks. And elements of such rows as kernels read them. The modules of kernels are compiled here as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace append_blocks_test {

#include "templates/check/data.cuh"  // formats by their definitions

float fp16_value(std::uint16_t bits) { return check_to_float(kCheckFp16, bits); }
std::uint16_t fp16_of(float value) { return check_from_float(kCheckFp16, value); }
struct Element {
  static float2 unpack(u32 x) {
    return {fp16_value(static_cast<std::uint16_t>(x)), fp16_value(static_cast<std::uint16_t>(x >> 16))};
  }
};
u32 __float_as_uint(float x) { return std::bit_cast<u32>(x); }    // NOLINT(bugprone-reserved-identifier): CUDA's name
float __uint_as_float(u32 x) { return std::bit_cast<float>(x); }  // NOLINT(bugprone-reserved-identifier): likewise
u32 multiply_add(u32 x, u32 factor, u32 y) { return x * factor + y; }
u32 masked_or(u32 a, u32 b, u32 mask) { return (a | b) & mask; }
uint4 rotated_16(const LeanDecodeArgs&, const char* row, int column, int) {
  return load_cached<uint4>(row + 2 * column);
}
/// Nothing is multiplied here.
void leanattn_ptx(const char* instruction) { FAIL() << instruction; }

#include "tests/device/begin.cuh"
constexpr int kHeadDim = 320, kValueDim = kHeadDim, kStrideBytes = 1, kPageSize = 16, kKvScale = 1;
#include "tests/device/given_line.cuh"

#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"

#include "templates/kv/elements_fp4.cuh"

#include "templates/kv/append_blocks.cuh"
#include "tests/device/end.cuh"

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinite = std::numeric_limits<float>::infinity();

struct Block {
  std::vector<float> values;  // those of 16 columns; the last one counts for the rest
  std::vector<u32> bytes;     // likewise
  u32 scale;
  float unit = 1.0f;  // the scale of the KV head
};

/// Appends token 21 of a request to pages as vLLM lays them: K of all heads, the scales of its blocks, V of all heads,
/// and its scales. All blocks of both rows are the same. Every byte but those of the token's second head stays.
void expect_block(const Block& block, int page = 3) {
  constexpr int kHeads = 2, kPages = 5, kRow = kHeadDim / 2, kScales = kHeadDim / 16, kSlots = kHeads * kPageSize,
                kSide = kSlots * (kRow + kScales), kPageBytes = 2 * kSide, kSlot = kPageSize + 5;
  std::vector<unsigned char> cache(kPages * kPageBytes, 0xa5), expected = cache;
  std::vector<std::uint16_t> row;
  for (std::size_t i = 0; i < kHeadDim; ++i)
    row.push_back(fp16_of(block.values[std::min(i % 16, block.values.size() - 1)]));
  const int table[] = {1, page};
  const float units[] = {7.0f, block.unit};
  LeanDecodeArgs args{};
  args.k = cache.data(), args.k_block_scales = cache.data() + kSlots * kRow;
  args.v = cache.data() + kSide, args.v_block_scales = cache.data() + kSide + kSlots * kRow;
  args.k_stride_token = args.v_stride_token = kRow, args.k_stride_head = args.v_stride_head = kPageSize * kRow;
  args.kv_scale_stride_token = kScales, args.kv_scale_stride_head = kPageSize * kScales;
  args.k_stride_batch = args.v_stride_batch = args.kv_scale_stride_batch = kPageBytes;
  args.k_scale = args.v_scale = units;
  args.page_table = table, args.page_table_stride = 2, args.pool_pages = kPages;
  Segment s{};
  s.kv_head = 1;
  const NewRows given{reinterpret_cast<const char*>(row.data()), reinterpret_cast<const char*>(row.data())};
  run_lanes(32, [&](u32) { append_row(args, s, 21, given, page); });
  for (int side = 0; side < 2 && page < kPages; ++side) {
    unsigned char* const data = expected.data() + page * kPageBytes + side * kSide;
    for (std::size_t i = 0; i < kRow; ++i)
      data[kSlot * kRow + i] = static_cast<unsigned char>(block.bytes[std::min(i % 8, block.bytes.size() - 1)]);
    std::fill_n(data + kSlots * kRow + kSlot * kScales, kScales, static_cast<unsigned char>(block.scale));
  }
  EXPECT_EQ(cache, expected);
}

TEST(AppendBlocks, RowsAreThoseOfFlashInfer) {
  const std::vector<float> values{6, -6, 3, 1.5, 1, .5, .25, .75, 0};
  const std::vector<u32> bytes{0xf7, 0x35, 0x12, 0x20, 0};
  const Block blocks[] = {
      {values, bytes, 0x38},
      {values, bytes, 0x30, 2},
      {{7}, {0x77}, 0x39},
      {{10}, {0x77}, 0x3d},
      {{6.3f}, {0x77}, 0x38},
      {{.1f}, {0x77}, 0x09},
      {{0}, {0}, 0},
      {{-0.0f}, {0x88}, 0},
      {{.0058f}, {0}, 0},  // half of the smallest scale and less
      {{.0059f}, {0x55}, 0x01},
      {{-.0058f, 0}, {0x08, 0}, 0},
      {{kInfinite, 1}, {0x07, 0}, 0x7e},
      {{kNaN, 3}, {0x70, 0x77}, 0x30},
      // Ties of elements go to the even one of the two, and what is above 5 to 6; a tie of scales, 17/16, to 1.
      {{6, .25, .75, 1.25, 1.75, 2.5, 3.5, 5, 5.01f, -.25, -.75, 0}, {0x07, 0x22, 0x44, 0x66, 0x87, 0x0a, 0}, 0x38},
      {{6.375f, 6}, {0x77}, 0x38},
      {{1344, 1344, 0}, {0x77, 0}, 0x76},
      {{60000, -60000, 224, 0}, {0xf7, 0x01, 0}, 0x7e},
  };
  for (const Block& block : blocks) {
    SCOPED_TRACE(block.values.front());
    expect_block(block);
  }
}

TEST(AppendBlocks, NothingIsWrittenIntoAHole) { expect_block({{1, 2}, {0}, 0}, 7); }

TEST(AppendBlocks, ScalesAreTheNearestOnes) {
  for (int byte = 0; byte < 0x7e; ++byte) {
    const float low = value_of_e4m3(static_cast<u32>(byte)), high = value_of_e4m3(static_cast<u32>(byte + 1)),
                middle = (low + high) / 2;
    EXPECT_EQ(nearest_e4m3(low), static_cast<u32>(byte));
    EXPECT_EQ(nearest_e4m3(std::nextafter(middle, 0.0f)), static_cast<u32>(byte));
    EXPECT_EQ(nearest_e4m3(middle), static_cast<u32>(byte + byte % 2));
    EXPECT_EQ(nearest_e4m3(std::nextafter(middle, 1e9f)), static_cast<u32>(byte + 1));
    EXPECT_EQ(e4m3_value(static_cast<u32>(byte)), low);
  }
  for (const float large : {448.0f, 449.0f, 1e30f, kInfinite}) EXPECT_EQ(nearest_e4m3(large), 0x7eu);
}

TEST(Fp4, ElementsTimesScalesAreExactInFp16) {
  std::set<float> products;
  for (u32 code = 0; code < 16; ++code) {
    const float element = check_byte_to_float(kCheckFp4, static_cast<unsigned char>(code));
    for (int at = 0; at < 8; ++at) {
      // All other elements of the word are the largest, which must not show.
      const u32 word = (0xffffffffu & ~(15u << 4 * at)) | code << 4 * at;
      const auto half = static_cast<std::uint16_t>(fp4_pair(word, at % 4) >> (at < 4 ? 0 : 16));
      EXPECT_EQ(std::ldexp(fp16_value(half), 14), element) << code << " at " << at;
      EXPECT_EQ(half >> 15, code >> 3);
    }
    for (u32 byte = 0; byte < 0x7f; ++byte) {
      const float scale = value_of_e4m3(byte), product = std::ldexp(element, -14) * scale;
      EXPECT_EQ(fp16_value(fp16_of(scale)), scale);
      EXPECT_EQ(fp16_value(fp16_of(product)), product);
      EXPECT_EQ(product * kBlockUnit, element * scale);
      products.insert(std::abs(product * kBlockUnit));
    }
  }
  EXPECT_EQ(*products.rbegin(), 2688) << "the largest";
  EXPECT_EQ(*std::next(products.begin()), std::ldexp(1.0f, -10)) << "the smallest but 0";
}

}  // namespace append_blocks_test
}  // namespace
}  // namespace leanattn::device
