// append_scaled_test.cpp -- new rows that get scales of their own beside them, written by the 32 lanes of a warp: bytes
// and scales are those that vLLM 0.33 stores (v1/attention/ops/int4_per_token_head.py and
// triton_reshape_and_cache_flash.py), of which its own code has worked these rows. The modules of kernels are compiled
// here as they are.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace append_scaled {

/// fp16, in which the numbers of these rows are exact.
std::uint16_t fp16_of(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), sign = bits >> 16 & 0x8000;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | 0x7c00);
  const float magnitude = std::abs(value);
  if (magnitude < std::ldexp(1.0f, -14))
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::lround(std::ldexp(magnitude, 24))));
  return static_cast<std::uint16_t>(sign | ((bits & 0x7fffffff) >> 13) - (112u << 10));
}
float value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 0x3ff;
  const float magnitude = exponent == 31  ? (fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                                                           : std::numeric_limits<float>::infinity())
                          : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                          : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}
struct Element {
  static float2 unpack(u32 x) {
    return {value_of(static_cast<std::uint16_t>(x)), value_of(static_cast<std::uint16_t>(x >> 16))};
  }
};
u32 __float_as_uint(float x) { return std::bit_cast<u32>(x); }  // NOLINT(bugprone-reserved-identifier): CUDA's name
u32 narrow_pair(float2 x) { return e4m3_pair(x.x, x.y); }
uint4 rotated_16(const LeanDecodeArgs&, const char* row, int column, int) {
  return load_cached<uint4>(row + 2 * column);
}

#include "tests/device/begin.cuh"
constexpr int kHeadDim = 64, kValueDim = 320, kStrideBytes = 1, kPageSize = 16;
#include "tests/device/given_line.cuh"

#include "templates/kv/row_pages.cuh"

#include "templates/kv/append.cuh"
enum { kE4m3, kE5m2, kInt8 };
namespace nibbles {
#include "templates/kv/quantise_4bit.cuh"

#include "templates/kv/append_scaled.cuh"
}  // namespace nibbles
namespace fp8 {
constexpr int kKvFormat = kE4m3;
#include "templates/kv/quantise_8bit.cuh"

#include "templates/kv/append_scaled.cuh"
}  // namespace fp8
namespace int8 {
constexpr int kKvFormat = kInt8;
#include "templates/kv/quantise_8bit.cuh"

#include "templates/kv/append_scaled.cuh"
}  // namespace int8
#include "tests/device/end.cuh"

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinite = std::numeric_limits<float>::infinity();

/// A row whose columns repeat these values.
std::vector<std::uint16_t> row_of(const std::vector<float>& values, int columns) {
  std::vector<std::uint16_t> row;
  for (int i = 0; i < columns; ++i) row.push_back(fp16_of(values[static_cast<std::size_t>(i) % values.size()]));
  return row;
}

/// Appends token 21 of a request to pages as vLLM lays them: in each slot of two KV heads a row of K, its scale, a row
/// of V, and its scale. Every byte but those of the token's second head stays as it was.
template <class Append>
void expect_row(Append append, int bits, const std::vector<float>& values, const std::vector<u32>& bytes, u32 word,
                int page = 3) {
  const int k_row = kHeadDim * bits / 8, v_row = kValueDim * bits / 8, head = k_row + v_row + 8, pages = 5;
  std::vector<unsigned char> cache(static_cast<std::size_t>(pages * kPageSize * 2 * head), 0xa5), expected = cache;
  const auto k_new = row_of(values, kHeadDim), v_new = row_of(values, kValueDim);
  const int table[] = {1, page};
  LeanDecodeArgs args{};
  unsigned char* const first = cache.data();
  args.k = first, args.v = first + k_row + 4;
  args.k_scale = reinterpret_cast<float*>(first + k_row), args.v_scale = reinterpret_cast<float*>(first + head - 4);
  args.k_stride_head = args.v_stride_head = head, args.k_stride_token = args.v_stride_token = 2 * head;
  args.k_stride_batch = args.v_stride_batch = kPageSize * 2 * head;
  args.kv_scale_stride_head = head / 4, args.kv_scale_stride_token = head / 2;
  args.kv_scale_stride_batch = kPageSize * head / 2;
  args.page_table = table, args.page_table_stride = 2, args.pool_pages = pages;
  Segment s{};
  s.kv_head = 1;
  const NewRows given{reinterpret_cast<const char*>(k_new.data()), reinterpret_cast<const char*>(v_new.data())};
  run_lanes(32, [&](u32) { append(args, s, 21, given, page); });
  if (page < pages) {
    unsigned char* const row = expected.data() + ((page * kPageSize + 5) * 2 + 1) * head;
    for (int i = 0; i < k_row; ++i)
      row[i] = static_cast<unsigned char>(bytes[static_cast<std::size_t>(i) % bytes.size()]);
    for (int i = 0; i < v_row; ++i)
      row[k_row + 4 + i] = static_cast<unsigned char>(bytes[static_cast<std::size_t>(i) % bytes.size()]);
    std::memcpy(row + k_row, &word, 4), std::memcpy(row + head - 4, &word, 4);
  }
  EXPECT_EQ(cache, expected);
}

const auto kAppendNibbles = [](auto... given) { nibbles::append_row(given...); };
const auto kAppendFp8 = [](auto... given) { fp8::append_row(given...); };
const auto kAppendInt8 = [](auto... given) { int8::append_row(given...); };

TEST(AppendScaled, RowsOfFourBitsAreThoseOfVllm) {
  struct Case {
    std::vector<float> values;
    std::vector<u32> bytes;
    u32 word;
  };
  std::vector<float> to_15, centred;
  for (int i = 0; i < 16; ++i) to_15.push_back(static_cast<float>(i)), centred.push_back(static_cast<float>(i) - 7.5f);
  const Case cases[] = {
      {to_15, {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}, 0x3f800000},
      {centred, {0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0xff}, 0x3f800008},
      {{0, 15, .5, 1.5, 2.5, 3.5, 14.5, 7.5}, {0xf0, 0x21, 0x43, 0x8f}, 0x3f800000},
      {{0}, {0}, 0x358637b0},
      {{3}, {0xff}, 0x358637b0},
      {{-3}, {0}, 0x358637bf},
      {{5e-6f}, {0x55}, 0x358637b0},
      {{10, 11, 12, 13, 14, 15, 16, 17}, {0xff}, 0x3eeeeee0},
      {{1e4, 1, 2, 3, -1, 0, .5, -2}, {0x0f, 0, 0, 0}, 0x4426b330},
      {{kNaN, 1, 2, 3, -1, 0, .5, -2}, {0x90, 0xfc, 0x63, 0x08}, 0x3eaaaaa6},
      {{kInfinite, 1, 2, 3, -1, 0, .5, -2}, {0}, 0x7f800000},
      {{-kInfinite, 1, 2, 3, -1, 0, .5, -2}, {0}, 0x7f800000},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.values.front());
    expect_row(kAppendNibbles, 4, c.values, c.bytes, c.word);
  }
}

TEST(AppendScaled, RowsOfOneByteAreThoseOfVllm) {
  // The largest magnitude is 448 or 127 times the scale, and int8 rounds half away from zero.
  expect_row(kAppendFp8, 8, {448, -224, 1, 1.0625, 0, -3, 17, 448}, {0x7e, 0xf6, 0x38, 0x38, 0, 0xc4, 0x58, 0x7e},
             std::bit_cast<u32>(1.0f));
  expect_row(kAppendFp8, 8, {-896, 2}, {0xfe, 0x38}, std::bit_cast<u32>(2.0f));
  expect_row(kAppendInt8, 8, {127, -127, .5, -.5, 1.5, -2.5, .25, 0}, {127, 0x81, 1, 0xff, 2, 0xfd, 0, 0},
             std::bit_cast<u32>(1.0f));
  expect_row(kAppendInt8, 8, {-254, 3}, {0x81, 2}, std::bit_cast<u32>(2.0f));
  expect_row(kAppendFp8, 8, {0}, {0}, std::bit_cast<u32>(1e-6f));
  expect_row(kAppendInt8, 8, {0}, {0}, std::bit_cast<u32>(1e-6f));
}

TEST(AppendScaled, NothingIsWrittenIntoAHole) {
  expect_row(kAppendNibbles, 4, {1, 2}, {0}, 0, 7);
  expect_row(kAppendInt8, 8, {1, 2}, {0}, 0, 7);
}

}  // namespace append_scaled
}  // namespace
}  // namespace leanattn::device
