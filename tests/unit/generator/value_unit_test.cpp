// value_unit_test.cpp -- the units of O where tokens of V have scales of their own (templates/attend/value_unit.cuh):
// what weights lose as fp16, in a simulation of the kernel's arithmetic for one row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/device/instructions.hpp"
#include "tests/thoroughness.hpp"

namespace leanattn::device {
namespace {
namespace value_unit {

#include "tests/device/begin.cuh"

#include "templates/attend/value_unit.cuh"

#include "templates/check/data.cuh"

#include "tests/device/end.cuh"

constexpr int kStep = 16;  // tokens

struct Token {
  double score;  // in base 2
  float scale, v;
};

double exact(const std::vector<Token>& tokens) {
  double max = tokens.front().score, sum = 0, o = 0;
  for (const Token& token : tokens) max = std::max(max, token.score);
  for (const Token& token : tokens) {
    const double p = std::exp2(token.score - max);
    sum += p, o += p * token.scale * token.v;
  }
  return o / sum;
}

/// The scale of what the result is made of, against which errors are measured.
double magnitude(const std::vector<Token>& tokens) {
  std::vector<Token> positive = tokens;
  for (Token& token : positive) token.v = std::abs(token.v);
  return exact(positive);
}

float as_fp16(float x) { return check_to_float(kCheckFp16, check_from_float(kCheckFp16, x)); }

/// The kernel's arithmetic (templates/attend/mma.cuh): an online softmax, and weights in the row's unit as fp16.
double in_units(const std::vector<Token>& tokens) {
  float max = -INFINITY, sum = 0, out = 0, unit = kLeanLeastUnit;
  for (std::size_t first = 0; first < tokens.size(); first += kStep) {
    const std::size_t end = std::min(tokens.size(), first + kStep);
    float step_max = max;
    for (std::size_t i = first; i < end; ++i) step_max = std::max(step_max, static_cast<float>(tokens[i].score));
    bool changes = false;
    if (step_max > max) {
      const float factor = std::exp2(max - step_max);
      sum *= factor, unit *= factor, max = step_max, changes = true;
    }
    float top = 0;
    std::vector<float> products;
    for (std::size_t i = first; i < end; ++i) {
      const float p = std::exp2(static_cast<float>(tokens[i].score) - max);
      sum += p;
      products.push_back(p * tokens[i].scale);
      top = std::max(top, std::abs(products.back()));
    }
    if (changes || top > unit) {
      const float now = lean_value_unit(unit, top);
      out *= lean_ratio(unit, now);
      unit = now;
    }
    for (std::size_t i = first; i < end; ++i) {
      const float weight = as_fp16(products[i - first] * lean_ratio(kLeanUnitWeight, unit));
      EXPECT_LE(std::abs(weight), kLeanUnitWeight);
      out += weight * tokens[i].v;
    }
  }
  return static_cast<double>(out) * unit / kLeanUnitWeight / sum;
}

/// The same with products of weight and scale as fp16, whatever they are.
double as_they_are(const std::vector<Token>& tokens) {
  double max = tokens.front().score, sum = 0, o = 0;
  for (const Token& token : tokens) max = std::max(max, token.score);
  for (const Token& token : tokens) {
    const auto p = static_cast<float>(std::exp2(token.score - max));
    sum += p, o += static_cast<double>(as_fp16(p * token.scale)) * token.v;
  }
  return o / sum;
}

/// The yardstick of `leanattn verify`: weights as fp16, times the scale.
double rounded_before(const std::vector<Token>& tokens) {
  double max = tokens.front().score, sum = 0, o = 0;
  for (const Token& token : tokens) max = std::max(max, token.score);
  for (const Token& token : tokens) {
    const auto p = static_cast<float>(std::exp2(token.score - max));
    sum += p, o += static_cast<double>(as_fp16(p)) * token.scale * token.v;
  }
  return o / sum;
}

/// `spread`: octaves within which scales lie, around `scale`.
std::vector<Token> draw(std::mt19937_64& random, int count, double scale, double spread) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> octave(-0.5, 0.5);
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back({.score = 2 * normal(random),
                      .scale = static_cast<float>(scale * std::exp2(spread * octave(random))),
                      .v = static_cast<float>(normal(random))});
  return tokens;
}

/// The root mean square of an error over that of the yardstick.
template <class Arithmetic>
double loss(Arithmetic arithmetic, double scale, double spread) {
  std::mt19937_64 random(7);
  double mine = 0, yardstick = 0;
  for (int i = 0; i < 60; ++i) {
    const auto tokens = draw(random, 700, scale, spread);
    const double right = exact(tokens), unit = magnitude(tokens);
    mine += std::pow((arithmetic(tokens) - right) / unit, 2);
    yardstick += std::pow((rounded_before(tokens) - right) / unit, 2);
  }
  return std::sqrt(mine / yardstick);
}

TEST(ValueUnit, ScalesOfAnySizeLoseNoMoreThanTheRoundingOfWeights) {
  std::size_t number = 0;
  for (const double scale : {1e-20, 1e-10, 1e-4, 5e-4, 1e-3, 3e-3, 0.02, 1.0, 30.0, 1e3, 1e6, 1e20}) {
    if (!leanattn::in_turn(number++ % 3, 3)) continue;
    for (const double spread : {0.0, 1.0, 6.0, 20.0})
      EXPECT_LT(loss(in_units, scale, spread), 1.25) << scale << " within " << spread << " octaves";
  }
}

TEST(ValueUnit, ProductsAsFp16LoseManyTimesAsMuch) {
  EXPECT_GT(loss(as_they_are, 1e-4, 1), 8);
  EXPECT_GT(loss(as_they_are, 5e-4, 1), 2);
  EXPECT_LT(loss(as_they_are, 1, 1), 1.6);
}

TEST(ValueUnit, TheHeaviestTokenLosesNothing) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 50; ++i) {
    auto tokens = draw(random, 100, 1e-3, 4);
    tokens[static_cast<std::size_t>(i)].score = 60;
    EXPECT_NEAR(in_units(tokens) / exact(tokens), 1, 2e-6) << i;
  }
}

TEST(ValueUnit, AUnitMayFallAgainWhenAnotherTokenWins) {
  // The first steps have large scales and scores that soon count for nothing.
  std::vector<Token> tokens;
  for (int i = 0; i < 64; ++i) tokens.push_back({.score = -200.0 + i, .scale = 1e3f, .v = 1});
  for (int i = 0; i < 64; ++i) tokens.push_back({.score = 0.01 * i, .scale = 1e-4f, .v = 0.3f});
  const double right = exact(tokens);
  EXPECT_NEAR(in_units(tokens) / right, 1, 2e-4);
  // And the other way round.
  std::reverse(tokens.begin(), tokens.end());
  EXPECT_NEAR(in_units(tokens) / right, 1, 2e-4);
}

TEST(ValueUnit, NoTokenOrNoScaleGivesNothing) {
  std::vector<Token> tokens(40, {.score = 1, .scale = 0, .v = 1});
  EXPECT_EQ(in_units(tokens), 0);
  tokens.push_back({.score = -3, .scale = 0.5f, .v = 1});
  EXPECT_NEAR(in_units(tokens) / exact(tokens), 1, 2e-4);
}

}  // namespace value_unit
}  // namespace
}  // namespace leanattn::device
