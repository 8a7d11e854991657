// random_data_features_test.cpp -- one-byte formats, scales, masks and query tokens of generated data are what they
// promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "generator/kv_encoding.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::int8};

/// The value of a byte by the definition of its format's sign, exponent and fraction. The biases are 7 and 15.
double by_definition(KvFormat format, int byte) {
  if (format == KvFormat::int8) return byte < 128 ? byte : byte - 256;
  const double sign = byte & 0x80 ? -1 : 1;
  if (format == KvFormat::fp8_e4m3) {
    const int exponent = (byte >> 3) & 15, fraction = byte & 7;
    if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
    return sign * (exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
  }
  const int exponent = (byte >> 2) & 31, fraction = byte & 3;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(fraction, -16) : std::ldexp(4 + fraction, exponent - 17));
}

TEST(ByteFormats, EveryCodeIsReadByItsDefinition) {
  for (const KvFormat format : kFormats) {
    for (int byte = 0; byte < 256; ++byte) {
      const double expected = by_definition(format, byte),
                   got = byte_value(kv_encoding(format).element, static_cast<std::uint8_t>(byte));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(got)) << to_string(format) << " " << byte;
      } else {
        EXPECT_EQ(got, expected) << to_string(format) << " " << byte;
        EXPECT_EQ(std::signbit(got), format != KvFormat::int8 ? byte >= 128 : got < 0);
      }
    }
  }
  EXPECT_EQ(byte_value(KvElement::fp8_e4m3, 0x7e), 448);
  EXPECT_EQ(byte_value(KvElement::fp8_e5m2, 0x7b), 57344);
}

TEST(ByteFormats, EveryFiniteCodeOfModestSizeRoundTrips) {
  for (const KvFormat format : kFormats) {
    const double unit = format == KvFormat::int8 ? 64 : 1;
    for (int byte = 0; byte < 256; ++byte) {
      const double value = by_definition(format, byte);
      // -128 has no positive counterpart and is used for data that no kernel may read.
      if (!(std::abs(value) <= (format == KvFormat::fp8_e4m3 ? 448 : 30000)) || value == -128) continue;
      EXPECT_EQ(byte_of(kv_encoding(format).element, static_cast<float>(value / unit)), byte) << to_string(format);
    }
  }
}

TEST(ByteFormats, RoundingIsToTheNearest) {
  for (const KvFormat format : kFormats) {
    const double unit = format == KvFormat::int8 ? 64 : 1;
    for (int i = -1700; i <= 1700; ++i) {
      const auto value = static_cast<float>(i) * 0.001f;
      const double got = byte_value(kv_encoding(format).element, byte_of(kv_encoding(format).element, value)) / unit;
      double nearest = std::numeric_limits<double>::infinity();
      for (int byte = 0; byte < 256; ++byte) {
        const double other = by_definition(format, byte) / unit;
        if (std::abs(other - value) < std::abs(nearest - value)) nearest = other;
      }
      // The value goes through fp16, whose rounding may turn what is almost a tie into a tie.
      EXPECT_NEAR(std::abs(got - value), std::abs(nearest - value), std::ldexp(std::abs(value), -10) + 1e-7)
          << to_string(format) << " " << value;
    }
  }
}

/// A row of four-bit elements as vLLM writes it, two elements a byte (v1/attention/ops/int4_per_token_head.py).
struct NibbleRow {
  std::vector<std::uint8_t> bytes;
  std::uint32_t word = 0;  // the scale, and in its last four bits the zero point

  std::uint8_t element(std::size_t i) const {
    return static_cast<std::uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
  }
};

/// What vLLM writes for a row that is rotated already. Rounding is half away from zero.
NibbleRow quantised(const std::vector<float>& row) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const float scale = std::max((*high - *low) / 15.0f, 1e-6f), inverse = 1.0f / scale;
  const float zero = std::clamp(std::round(-*low / scale), 0.0f, 15.0f);
  NibbleRow written;
  written.bytes.resize(row.size() / 2);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto element = static_cast<unsigned>(std::clamp(std::round(row[i] * inverse + zero), 0.0f, 15.0f));
    written.bytes[i / 2] = static_cast<std::uint8_t>(written.bytes[i / 2] | element << i % 2 * 4);
  }
  written.word = (std::bit_cast<std::uint32_t>(scale) & ~15u) | static_cast<unsigned>(zero);
  return written;
}

TEST(NibbleFormat, RowsAreReadAsVllmReadsThem) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    std::vector<float> row;  // empty: only read
    NibbleRow written;
    std::vector<double> read;
  };
  const auto all = [](double value) { return std::vector<double>(8, value); };
  const Case cases[] = {
      {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
       {{0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}, 0x3f800000},
       {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
      {{-7.5, -6.5, -5.5, -4.5, -3.5, -2.5, -1.5, -.5, .5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5},
       {{0x21, 0x43, 0x65, 0x87, 0xa9, 0xcb, 0xed, 0xff}, 0x3f800008},
       {-7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 7}},
      {{0, 15, .5, 1.5, 2.5, 3.5, 14.5, 7.5}, {{0xf0, 0x21, 0x43, 0x8f}, 0x3f800000}, {0, 15, 1, 2, 3, 4, 15, 8}},
      {std::vector<float>(8, 0.0f), {{0, 0, 0, 0}, 0x358637b0}, all(0)},
      {std::vector<float>(8, 3.0f), {{0xff, 0xff, 0xff, 0xff}, 0x358637b0}, all(1.5e-5)},
      {std::vector<float>(8, -3.0f), {{0, 0, 0, 0}, 0x358637bf}, all(-1.5e-5)},
      {std::vector<float>(8, 5e-6f), {{0x55, 0x55, 0x55, 0x55}, 0x358637b0}, all(5e-6)},
      {{10, 11, 12, 13, 14, 15, 16, 17}, {{0xff, 0xff, 0xff, 0xff}, 0x3eeeeee0}, all(7)},
      {{1e4, 1, 2, 3, -1, 0, .5, -2}, {{0x0f, 0, 0, 0}, 0x4426b330}, {10002, 0, 0, 0, 0, 0, 0, 0}},
      {{}, {{0x90, 0xfc, 0x63, 0x08}, 0x3eaaaaa6}, {-2, 1, 2, 3, -1, 0, 2. / 3, -2}},
      {{}, {{0, 0, 0, 0}, 0x7f800000}, all(nan)},
      {{-18, 2, -2, 2, 26, -2, -10, 2},  // 0 to 7 after the rotation of eight
       {{0x70, 0x75, 0x5f, 0x73}, 0x403bbbb6},
       {-17.6, 2.93, -2.93, 2.93, 26.4, -2.93, -8.8, 2.93}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.written.word);
    if (!c.row.empty()) {
      const NibbleRow written = quantised(c.row);
      EXPECT_EQ(written.bytes, c.written.bytes);
      EXPECT_EQ(written.word, c.written.word);
    }
    for (std::size_t i = 0; i < c.read.size(); ++i) {
      const double got = scaled_value(KvElement::int4, c.written.element(i), std::bit_cast<float>(c.written.word));
      if (std::isnan(c.read[i])) {
        EXPECT_TRUE(std::isnan(got));
      } else {
        EXPECT_NEAR(got, c.read[i], 2e-3 * std::abs(c.read[i])) << "element " << i;
      }
    }
  }
}

TEST(FeatureData, FourBitRowsHaveAllZeroPointsAndWhatCancelsBesideThem) {
  const Features features{.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row};
  constexpr int kColumns = 128, kTokens = 400;
  for (const DataTensor tensor : {DataTensor::k, DataTensor::v}) {
    std::set<int> zeros;
    int near = 0, outliers = 0;
    for (int token = 0; token < kTokens; ++token) {
      const float word = data_kv_scale(DataKind::uniform, 3, tensor, features, 1, 2, token);
      const int zero = static_cast<int>(std::bit_cast<std::uint32_t>(word) % 16);
      zeros.insert(zero);
      int far = 0, within = 0;
      for (int column = 0; column < kColumns; ++column) {
        const int element = data_byte(DataKind::uniform, 3, tensor, KvElement::int4, 1, 2, token, column, kColumns);
        ASSERT_LE(element, 15);
        within += std::abs(element - zero) <= 1;
        far += std::abs(element - zero) > 7;
        if (tensor == DataTensor::k) {
          EXPECT_LT(std::abs(scaled_value(KvElement::int4, static_cast<std::uint8_t>(element), word)), 15 * 2 * 1.5);
        }
      }
      near += within == kColumns, outliers += within == kColumns - 1 && far == 1;
    }
    EXPECT_EQ(zeros.size(), 16u);
    EXPECT_GT(near, kTokens / 8) << "rows that are nearly their zero point";
    EXPECT_GT(outliers, kTokens / 8) << "the same but for one element";
  }
}

/// The definition of e2m1: a sign, two bits of exponent with a bias of 1, and one of mantissa.
double fp4_by_definition(int code) {
  const int exponent = code >> 1 & 3, fraction = code & 1;
  const double size = exponent == 0 ? fraction / 2.0 : std::ldexp(1 + fraction / 2.0, exponent - 1);
  return code >= 8 ? -size : size;
}

/// What FlashInfer's writer stores of a block (include/flashinfer/page.cuh): elements, and the byte of the scale.
std::pair<std::vector<int>, int> quantised_block(const std::vector<float>& values, float unit) {
  float largest = 0;
  for (const float value : values) largest = std::fmax(largest, std::abs(value));
  const auto nearest = [](float value, auto by_definition, int count) {
    int best = 0;  // the smaller one of two that are as near, unless that is odd
    for (int i = 1; i < count; ++i) {
      const double distance = std::abs(by_definition(i) - value), other = std::abs(by_definition(best) - value);
      if (distance < other || (distance == other && best % 2 == 1)) best = i;
    }
    return best;
  };
  const int scale = nearest(
      largest / (6.0f * unit), [](int i) { return byte_value(KvElement::fp8_e4m3, static_cast<std::uint8_t>(i)); },
      127);
  const float factor =
      scale > 0 ? 1.0f / (static_cast<float>(byte_value(KvElement::fp8_e4m3, static_cast<std::uint8_t>(scale))) * unit)
                : 0.0f;
  std::vector<int> elements;
  for (const float value : values)
    elements.push_back(nearest(std::abs(value * factor), fp4_by_definition, 8) + (std::signbit(value) ? 8 : 0));
  return {elements, scale};
}

TEST(Fp4Format, BitsHaveTheValuesOfTheirDefinition) {
  for (int code = 0; code < 16; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    EXPECT_EQ(byte_value(KvElement::fp4_e2m1, bits), fp4_by_definition(code));
    EXPECT_EQ(byte_of(KvElement::fp4_e2m1, static_cast<float>(fp4_by_definition(code))), code);
  }
  EXPECT_EQ(fp4_by_definition(7), 6);
  const std::pair<float, int> rounded[] = {{.25f, 0},  {.26f, 1},   {.75f, 2},  {1.25f, 2}, {1.75f, 4},
                                           {2.5f, 4},  {3.5f, 6},   {5, 6},     {5.1f, 7},  {100, 7},
                                           {-.25f, 8}, {-1.3f, 11}, {-3.5f, 14}};
  for (const auto& [value, code] : rounded) EXPECT_EQ(byte_of(KvElement::fp4_e2m1, value), code) << value;
}

TEST(FeatureData, BlocksHaveScalesOfAllSizesAndValuesOfA16BitCache) {
  for (const KvScale scale : {KvScale::tensor, KvScale::head}) {
    const Features features{.kv_format = KvFormat::nvfp4, .kv_scale = scale};
    std::set<double> scales;
    std::set<int> codes;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      for (int token = 0; token < 8; ++token) {
        for (int column = 0; column < 128; ++column) {
          const double block = data_block_scale(DataKind::uniform, seed, DataTensor::v, features, 1, 2, token, column);
          const auto code =
              data_byte(DataKind::uniform, seed, DataTensor::v, KvElement::fp4_e2m1, 1, 2, token, column, 128);
          const double unit = data_kv_scale(DataKind::uniform, seed, DataTensor::v, features, 1, 2, token);
          EXPECT_EQ(block,
                    data_block_scale(DataKind::uniform, seed, DataTensor::v, features, 1, 2, token, column / 16 * 16));
          EXPECT_LT(std::abs(fp4_by_definition(code) * block * unit), 2 * 1.74 * 1.5);
          scales.insert(block), codes.insert(code);
        }
      }
    }
    EXPECT_GT(scales.size(), 110u) << "nearly all of the 126 that are not 0";
    EXPECT_EQ(*scales.begin(), std::ldexp(1.0, -9));
    EXPECT_EQ(*scales.rbegin(), 448);
    EXPECT_EQ(codes.size(), 16u);
  }
}

TEST(FeatureData, WrittenBlocksAreWhatQuantisingThemGives) {
  for (const KvScale scale : {KvScale::tensor, KvScale::head}) {
    const Features features{.kv_format = KvFormat::nvfp4, .kv_scale = scale};
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      for (const DataTensor tensor : {DataTensor::k, DataTensor::v}) {
        const float unit = data_kv_scale(DataKind::written, seed, tensor, features, 1, 2, 0);
        for (int token = 0; token < 8; ++token) {
          for (int block = 0; block < 4; ++block) {
            const double scale_of =
                data_block_scale(DataKind::written, seed, tensor, features, 1, 2, token, block * 16);
            std::vector<int> codes;
            std::vector<float> values;
            for (int column = block * 16; column < block * 16 + 16; ++column) {
              codes.push_back(data_byte(DataKind::written, seed, tensor, KvElement::fp4_e2m1, 1, 2, token, column, 64));
              values.push_back(static_cast<float>(value_of(
                  DType::bf16,
                  bits_of(DType::bf16, static_cast<float>(fp4_by_definition(codes.back()) * scale_of * unit)))));
            }
            const auto [elements, byte] = quantised_block(values, unit);
            EXPECT_EQ(elements, codes);
            EXPECT_EQ(byte_value(KvElement::fp8_e4m3, static_cast<std::uint8_t>(byte)), scale_of);
          }
        }
      }
    }
  }
}

TEST(FeatureData, WrittenRowsAreWhatQuantisingThemGives) {
  constexpr int kColumns = 64;
  for (const auto& [format, largest] : {std::pair(KvFormat::int4, 15.0), std::pair(KvFormat::fp8_e4m3, 448.0),
                                        std::pair(KvFormat::fp8_e5m2, 57344.0), std::pair(KvFormat::int8, 127.0)}) {
    const Features features{.kv_format = format, .kv_scale = KvScale::in_row};
    const KvElement element = kv_encoding(format).element;
    for (const DataTensor tensor : {DataTensor::k, DataTensor::v}) {
      for (int token = 0; token < 100; ++token) {
        const float scale = data_kv_scale(DataKind::written, 5, tensor, features, 1, 2, token);
        std::vector<float> row;
        NibbleRow nibbles;
        double most = 0;
        for (int column = 0; column < kColumns; ++column) {
          const std::uint8_t byte = data_byte(DataKind::written, 5, tensor, element, 1, 2, token, column, kColumns);
          const double value = scaled_value(element, byte, scale);
          row.push_back(static_cast<float>(value)), most = std::max(most, std::abs(value));
          EXPECT_EQ(value_of(DType::fp16, bits_of(DType::fp16, static_cast<float>(value))), value);
          if (format != KvFormat::int4) continue;
          if (column % 2 == 0) nibbles.bytes.push_back(0);
          nibbles.bytes.back() = static_cast<std::uint8_t>(nibbles.bytes.back() | byte << column % 2 * 4);
        }
        if (format == KvFormat::int4) {
          EXPECT_EQ(quantised(row).bytes, nibbles.bytes);
          EXPECT_EQ(quantised(row).word, std::bit_cast<std::uint32_t>(scale));
        } else {
          EXPECT_EQ(most, largest * static_cast<double>(scale)) << to_string(format);
          EXPECT_EQ(static_cast<float>(most) / static_cast<float>(largest), scale);
        }
      }
    }
  }
}

TEST(FeatureData, ByteTimesScaleStaysCloseToTheElementOfA16BitCache) {
  for (const KvFormat format : kFormats) {
    const Features features{.kv_format = format, .kv_scale = KvScale::token};
    for (const DataTensor tensor : {DataTensor::k, DataTensor::v}) {
      for (int token = 0; token < 200; ++token) {
        const double scale = data_kv_scale(DataKind::uniform, 3, tensor, features, 1, 2, token);
        const double unit = format == KvFormat::int8 ? 1.0 / 64 : 1;
        EXPECT_GE(scale, (tensor == DataTensor::k ? 0.5 : 5e-5) * unit);
        EXPECT_LT(scale, (tensor == DataTensor::k ? 1.5 : 1e3) * unit);
        for (int column = 0; column < 32; ++column) {
          const double value =
              value_of(DType::fp16, data_bits(DataKind::uniform, 3, tensor, DType::fp16, 1, 2, token, column, 32));
          const double got =
              byte_value(kv_encoding(format).element,
                         data_byte(DataKind::uniform, 3, tensor, kv_encoding(format).element, 1, 2, token, column, 32));
          EXPECT_NEAR(got * unit, value, 0.01 + 0.13 * std::abs(value)) << to_string(format);
        }
      }
    }
  }
}

TEST(FeatureData, ScalesOfVByTokenLieFromTenThousandthsToAThousand) {
  const Features features{.kv_format = KvFormat::fp8_e4m3, .kv_scale = KvScale::token};
  double least = 1e9, most = 0;
  int narrow = 0, wide = 0;
  for (int request = 0; request < 200; ++request) {
    double lowest = 1e9, highest = 0;
    for (int token = 0; token < 200; ++token) {
      const double scale = data_kv_scale(DataKind::uniform, 3, DataTensor::v, features, request, 2, token);
      lowest = std::min(lowest, scale), highest = std::max(highest, scale);
      const double of_k = data_kv_scale(DataKind::uniform, 3, DataTensor::k, features, request, 2, token);
      EXPECT_TRUE(of_k >= 0.5 && of_k < 1.5) << of_k;
    }
    least = std::min(least, lowest), most = std::max(most, highest);
    (highest / lowest > 4 ? wide : narrow)++;
  }
  EXPECT_LT(least, 1e-4);
  EXPECT_GT(least, 5e-5);
  EXPECT_GT(most, 600);
  EXPECT_LT(most, 1e3);
  EXPECT_GT(narrow, 50);
  EXPECT_GT(wide, 50);
}

TEST(FeatureData, HolesComeAsOftenAsTheyShould) {
  for (const int every : {0, 1, 2, 10}) {
    int holes = 0;
    for (int request = 0; request < 10; ++request)
      for (int entry = 0; entry < 200; ++entry) holes += data_is_hole(5, request, entry, every);
    EXPECT_NEAR(holes, every == 0 ? 0 : 2000 / every, every < 2 ? 0 : 120) << every;
  }
}

TEST(FeatureData, ScalesDifferByWhatTheyAreGivenTo) {
  for (const KvScale granularity : {KvScale::tensor, KvScale::head, KvScale::token}) {
    const Features features{.kv_format = KvFormat::fp8_e4m3, .kv_scale = granularity};
    std::set<float> scales;
    for (int request = 0; request < 3; ++request) {
      for (int head = 0; head < 4; ++head) {
        for (int token = 0; token < 5; ++token)
          scales.insert(data_kv_scale(DataKind::uniform, 9, DataTensor::k, features, request, head, token));
      }
    }
    EXPECT_EQ(scales.size(), granularity == KvScale::tensor ? 1u : granularity == KvScale::head ? 4u : 60u);
  }
  EXPECT_EQ(data_kv_scale(DataKind::uniform, 9, DataTensor::k, {}, 0, 0, 0), 1);
}

TEST(FeatureData, ExtremeKeysAndScalesAreExact) {
  for (const KvFormat format : kFormats) {
    for (int token = 0; token < 50; ++token) {
      EXPECT_EQ(
          std::abs(byte_value(kv_encoding(format).element, data_byte(DataKind::extreme, 1, DataTensor::k,
                                                                     kv_encoding(format).element, 0, 0, token, 3, 64))),
          64);
      const double scale = data_kv_scale(DataKind::extreme, 1, DataTensor::k,
                                         {.kv_format = format, .kv_scale = KvScale::token}, 0, 0, token);
      EXPECT_TRUE(scale == 1 || scale == 0.5) << scale;
    }
  }
}

TEST(FeatureData, AQueryTokenSeesItselfAndAboutHalfOfTheOthers) {
  int set = 0, words = 0;
  for (int request = 0; request < 200; ++request) {
    for (int t = 0; t < 16; ++t, ++words) {
      const std::uint32_t word = data_tree_word(5, request, t);
      EXPECT_EQ(word >> t & 1u, 1u);
      set += std::popcount(word) - 1;
    }
  }
  EXPECT_NEAR(static_cast<double>(set) / words, 15.5, 0.3);
}

TEST(FeatureData, RaggedRequestsHaveEveryNumberOfQueryTokensFromNone) {
  std::set<int> counts;
  const Features features{.q_len = 5, .ragged_q = true};
  for (int request = 0; request < 400; ++request) counts.insert(data_query_tokens(8, features, request, 3));
  EXPECT_EQ(counts, (std::set<int>{0, 1, 2, 3, 4, 5}));
}

TEST(FeatureData, OfRequestsThatMayBringPrefillMostHaveOneTokenAndSomeAChunk) {
  const Features features{.q_len = kMostPrefillTokens, .ragged_q = true};
  int chunks = 0;
  for (int request = 0; request < 800; ++request) {
    const int tokens = data_query_tokens(8, features, request, 4000);
    EXPECT_TRUE(tokens >= 1 && tokens <= 512) << tokens;
    chunks += tokens > 1;
    EXPECT_LE(data_query_tokens(8, features, request, 30), 30);
    EXPECT_EQ(data_query_tokens(8, features, request, 0), 1);
  }
  EXPECT_NEAR(chunks, 100, 40);
}

TEST(FeatureData, SlopesAndSinkLogitsStayInTheirRangesAndDifferAndSomeHeadsHaveNoSink) {
  std::set<float> slopes, sinks;
  int without_sink = 0;
  for (int head = 0; head < 64; ++head) {
    const float slope = data_alibi_slope(2, head), sink = data_sink_logit(2, head);
    EXPECT_TRUE(slope > 0 && slope < 0.51f) << slope;
    slopes.insert(slope);
    if (std::isinf(sink) && sink < 0) {
      ++without_sink;
      continue;
    }
    EXPECT_TRUE(sink >= -4 && sink < 6.01f) << sink;
    sinks.insert(sink);
  }
  EXPECT_GT(slopes.size(), 60u);
  EXPECT_EQ(static_cast<int>(sinks.size()) + without_sink, 64);
  EXPECT_TRUE(without_sink > 8 && without_sink < 28) << without_sink;
}

TEST(FeatureData, GroupsOfARowHaveScalesOfAnySizeThatQMakesUpForAndThatRoundNothing) {
  const Features rows{.kv_format = KvFormat::fp8_ds_mla, .v_head_dim = 512, .latent = true};
  float least = 1, most = 1;
  bool apart = false, alike = false;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    std::set<int> exponents;
    for (int group = 0; group < 4; ++group) {
      std::set<int> of_group;
      for (int token = 0; token < 20; ++token) {
        const float scale = data_group_scale(DataKind::uniform, seed, *row_format(rows), token % 3, 0, token, group);
        least = std::min(least, scale), most = std::max(most, scale);
        of_group.insert(std::ilogb(scale));
        const double value =
            data_row_value(DataKind::uniform, seed, rows, token % 3, 0, token, group * 128 + token, 576);
        EXPECT_EQ(value_of(DType::bf16, bits_of(DType::bf16, static_cast<float>(value))), value) << "a bf16 number";
      }
      ASSERT_EQ(of_group.size(), 1u) << "all rows share the power of two";
      exponents.insert(*of_group.begin());
      const int column = group * 128 + 5;
      const double plain =
          value_of(DType::bf16, data_bits(DataKind::uniform, seed, DataTensor::q, DType::bf16, 0, 3, 1, column, 576));
      EXPECT_EQ(
          value_of(DType::bf16, data_query_bits(DataKind::uniform, seed, rows, DType::bf16, 0, 3, 1, column, 576)),
          std::ldexp(plain, -*of_group.begin() - 8))
          << "bytes are 256 times as large as elements of other caches";
    }
    (exponents.size() > 1 ? apart : alike) = true;
    EXPECT_EQ(data_query_bits(DataKind::uniform, seed, rows, DType::bf16, 0, 3, 1, 512, 576),
              data_bits(DataKind::uniform, seed, DataTensor::q, DType::bf16, 0, 3, 1, 512, 576))
        << "rotated columns have no scale";
    const double exact = data_row_value(DataKind::extreme, seed, rows, 0, 0, 7, 200, 576);
    EXPECT_TRUE(std::abs(exact) == 56 || std::abs(exact) == 28) << "scores stay exact";
  }
  EXPECT_TRUE(apart && alike);
  EXPECT_LT(least, 1.2e-6f);
  EXPECT_GT(most, 1.9f);
}

TEST(FeatureData, NewRowsBecomeTheRowsOfTheCacheOnceTheyAreQuantised) {
  constexpr std::array kKinds{DataKind::uniform, DataKind::peaked, DataKind::extreme, DataKind::coverage,
                              DataKind::ones};
  for (int i = 0; i < 2 * std::ssize(kKinds); ++i) {
    const DataKind kind = kKinds[static_cast<std::size_t>(i / 2)];
    const Features rows{
        .kv_format = i % 2 == 0 ? KvFormat::fp8_ds_mla : KvFormat::fp8_ds_v4, .v_head_dim = 512, .latent = true};
    const RowFormat& row = *row_format(rows);
    const int columns = row.group_columns, groups = row.latent_columns / columns, all = key_columns(row);
    int rounded = 0, largest_bytes = 0;
    for (int token = 0; token < 60; ++token) {
      const int group = token % groups;
      float largest = 0;
      for (int column = group * columns; column < (group + 1) * columns; ++column)
        largest = std::max(largest, std::abs(static_cast<float>(value_of(
                                        DType::bf16, data_new_latent(kind, 5, rows, 1, 0, token, column, all)))));
      float scale = largest / 448;
      if (row.plane_bytes > 0) scale = std::ldexp(1.0f, static_cast<int>(std::ceil(std::log2(scale))));
      ASSERT_EQ(scale, data_group_scale(kind, 5, row, 1, 0, token, group)) << to_string(kind) << ", token " << token;
      for (int column = group * columns; column < (group + 1) * columns; ++column) {
        const auto value =
            static_cast<float>(value_of(DType::bf16, data_new_latent(kind, 5, rows, 1, 0, token, column, all)));
        const std::uint8_t byte = data_row_byte(kind, 5, rows, 1, 0, token, column, all);
        ASSERT_EQ(byte_of(KvElement::fp8_e4m3, value / scale), byte) << to_string(kind) << ", column " << column;
        rounded += static_cast<double>(value) != data_row_value(kind, 5, rows, 1, 0, token, column, all);
        largest_bytes += (byte & 0x7f) == 0x7e;
      }
    }
    EXPECT_GE(largest_bytes, 60) << to_string(kind);
    if (kind == DataKind::uniform || kind == DataKind::peaked) {
      EXPECT_GT(rounded, 60 * columns / 2) << to_string(kind);
    }
  }
}

}  // namespace
}  // namespace leanattn
