// random_data_test.cpp -- the formats in software are exact, and each kind of data is what it promises.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tuner/oracle/random_data.hpp"

namespace leanattn {
namespace {

/// The value of fp16 bits by the definition of sign, exponent and fraction.
double fp16_by_definition(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(DataFormats, EveryFp16ValueIsReadByItsDefinition) {
  for (int bits = 0; bits <= 0xFFFF; ++bits) {
    const double expected = fp16_by_definition(static_cast<std::uint16_t>(bits));
    const double got = value_of(DType::fp16, static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(got, expected) << bits;
    }
  }
}

TEST(DataFormats, EveryValueRoundTrips) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (int bits = 0; bits <= 0xFFFF; ++bits) {
      const double value = value_of(dtype, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(value_of(dtype, bits_of(dtype, static_cast<float>(value))))) << bits;
      } else {
        EXPECT_EQ(bits_of(dtype, static_cast<float>(value)), bits) << to_string(dtype);
      }
    }
  }
}

TEST(DataFormats, RoundingIsToTheNearestAndTiesGoToEven) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (int bits = 0; bits < 0x7A00; ++bits) {
      const double low = value_of(dtype, static_cast<std::uint16_t>(bits)),
                   high = value_of(dtype, static_cast<std::uint16_t>(bits + 1));
      if (!std::isfinite(high)) break;
      const double middle = low + (high - low) / 2;
      const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
      EXPECT_EQ(bits_of(dtype, static_cast<float>(middle)), even) << to_string(dtype) << " " << bits;
      EXPECT_EQ(bits_of(dtype, static_cast<float>(low + (high - low) * 0.25)), bits) << to_string(dtype);
      EXPECT_EQ(bits_of(dtype, static_cast<float>(low + (high - low) * 0.75)), bits + 1) << to_string(dtype);
      EXPECT_EQ(bits_of(dtype, static_cast<float>(-middle)), even | 0x8000) << to_string(dtype);
    }
  }
}

TEST(DataFormats, OverflowGivesInfinity) {
  EXPECT_EQ(bits_of(DType::fp16, 65520.0f), 0x7C00);
  EXPECT_EQ(bits_of(DType::fp16, 65519.0f), 0x7BFF);
  EXPECT_EQ(bits_of(DType::bf16, std::numeric_limits<float>::max()), 0x7F80);
}

TEST(DataFormats, UnitInLastPlaceIsTheDistanceToTheNextValue) {
  EXPECT_EQ(unit_in_last_place(DType::bf16, 1.0), std::ldexp(1.0, -7));
  EXPECT_EQ(unit_in_last_place(DType::bf16, 1.99), std::ldexp(1.0, -7));
  EXPECT_EQ(unit_in_last_place(DType::fp16, -2.0), std::ldexp(1.0, -9));
  EXPECT_EQ(unit_in_last_place(DType::fp16, 1e-9), std::ldexp(1.0, -24));
  EXPECT_EQ(unit_in_last_place(DType::fp16, 0), std::ldexp(1.0, -24));
}

TEST(Data, UniformHasZeroMeanAndUnitVariance) {
  double sum = 0, squares = 0;
  constexpr int kTokens = 2000, kHeadDim = 64;
  for (int token = 0; token < kTokens; ++token) {
    for (int column = 0; column < kHeadDim; ++column) {
      const double value = value_of(
          DType::fp16, data_bits(DataKind::uniform, 9, DataTensor::k, DType::fp16, 0, 0, token, column, kHeadDim));
      EXPECT_LE(std::abs(value), 1.7327);
      sum += value;
      squares += value * value;
    }
  }
  constexpr double kCount = kTokens * kHeadDim;
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

TEST(Data, EveryCoordinateChangesTheBits) {
  // An element has at least 12 random bits, so forty equal neighbours mean a mistake in the hash.
  const auto row = [](std::uint64_t seed, DataTensor tensor, int request, int head, std::int64_t token) {
    std::vector<std::uint16_t> bits;
    for (int column = 0; column < 64; ++column)
      bits.push_back(data_bits(DataKind::uniform, seed, tensor, DType::fp16, request, head, token, column, 64));
    return bits;
  };
  std::set<std::vector<std::uint16_t>> rows;
  int made = 0;
  for (std::uint64_t seed : {1ull, 2ull, 1ull << 40}) {
    for (DataTensor tensor : {DataTensor::q, DataTensor::k, DataTensor::v}) {
      for (int request : {0, 1, 1000}) {
        for (int head : {0, 1, 63}) {
          for (std::int64_t token : {0ll, 1ll, 1ll << 20}) {
            rows.insert(row(seed, tensor, request, head, token));
            ++made;
          }
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), static_cast<std::size_t>(made));
}

TEST(Data, CoverageValuesAreOneHotPerBlockOf16Tokens) {
  for (const int head_dim : {64, 96}) {
    for (std::int64_t token = 0; token < 16 * head_dim * 2; ++token) {
      int ones = 0;
      for (int column = 0; column < head_dim; ++column) {
        const double value = value_of(
            DType::bf16, data_bits(DataKind::coverage, 1, DataTensor::v, DType::bf16, 0, 0, token, column, head_dim));
        if (value != 0) {
          EXPECT_EQ(value, 1);
          EXPECT_EQ(column, token / 16 % head_dim);
          ++ones;
        }
      }
      EXPECT_EQ(ones, 1);
    }
  }
}

}  // namespace
}  // namespace leanattn
