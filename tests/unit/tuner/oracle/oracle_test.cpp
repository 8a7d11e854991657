// oracle_test.cpp -- the CPU's FP64 oracle agrees with closed forms.
#include "tuner/oracle/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>

#include "tests/no_threads.hpp"

namespace leanattn {
namespace {

std::vector<double> random_values(std::mt19937_64& random, std::size_t count) {
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

TEST(Oracle, EmptyContextGivesZeroAndMinusInfinity) {
  const std::vector<double> q(8, 1.0);
  const OracleOutput output =
      oracle({.rows = 2, .head_dim = 4, .context_length = 0, .scale = 1, .q = q, .k = {}, .v = {}});
  for (const double o : output.o) EXPECT_EQ(o, 0.0);
  for (const double lse : output.lse) EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
}

TEST(Oracle, OneTokenReturnsItsValueAndItsScore) {
  const std::vector<double> q{1, 2}, k{3, -1}, v{0.25, -7};
  const OracleOutput output =
      oracle({.rows = 1, .head_dim = 2, .context_length = 1, .scale = 0.5, .q = q, .k = k, .v = v});
  EXPECT_DOUBLE_EQ(output.o[0], 0.25);
  EXPECT_DOUBLE_EQ(output.o[1], -7);
  EXPECT_DOUBLE_EQ(output.lse[0], 0.5 * (3 - 2));
}

TEST(Oracle, EqualKeysAverageTheValuesAndAddLogOfTheCount) {
  std::mt19937_64 random(7);
  constexpr int kTokens = 37;
  const std::vector<double> q = random_values(random, 4), one_key = random_values(random, 4),
                            v = random_values(random, 4 * kTokens);
  std::vector<double> k, mean(4, 0.0);
  for (int token = 0; token < kTokens; ++token) k.insert(k.end(), one_key.begin(), one_key.end());
  for (std::size_t i = 0; i < v.size(); ++i) mean[i % 4] += v[i] / kTokens;
  const OracleOutput output =
      oracle({.rows = 1, .head_dim = 4, .context_length = kTokens, .scale = 0.3, .q = q, .k = k, .v = v});
  double score = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(output.o[i], mean[i], 1e-14);
    score += q[i] * one_key[i];
  }
  EXPECT_NEAR(output.lse[0], 0.3 * score + std::log(kTokens), 1e-13);
}

TEST(Oracle, TwoTokensWeighByTheLogisticFunction) {
  const std::vector<double> q{1}, k{2, -1}, v{10, 20};
  const OracleOutput output =
      oracle({.rows = 1, .head_dim = 1, .context_length = 2, .scale = 1, .q = q, .k = k, .v = v});
  const double first = 1 / (1 + std::exp(-3.0));
  EXPECT_NEAR(output.o[0], 10 * first + 20 * (1 - first), 1e-13);
  EXPECT_NEAR(output.lse[0], std::log(std::exp(2.0) + std::exp(-1.0)), 1e-14);
}

TEST(Oracle, ExtremeScoresDoNotOverflow) {
  const std::vector<double> q{1}, k{1e4, -1e4}, v{3, 5};
  const OracleOutput output =
      oracle({.rows = 1, .head_dim = 1, .context_length = 2, .scale = 1, .q = q, .k = k, .v = v});
  EXPECT_EQ(output.o[0], 3);
  EXPECT_EQ(output.lse[0], 1e4);
}

TEST(Oracle, SplitContextsMergeByLseToTheWhole) {
  std::mt19937_64 random(11);
  constexpr int kHeadDim = 16, kTokens = 90, kCut = 33;
  const auto q = random_values(random, kHeadDim), k = random_values(random, kHeadDim * kTokens),
             v = random_values(random, kHeadDim * kTokens);
  const std::span<const double> ks(k), vs(v);
  const auto part = [&](int begin, int end) {
    return oracle({.rows = 1,
                   .head_dim = kHeadDim,
                   .context_length = end - begin,
                   .scale = 0.25,
                   .q = q,
                   .k = ks.subspan(begin * kHeadDim),
                   .v = vs.subspan(begin * kHeadDim)});
  };
  const OracleOutput whole = part(0, kTokens), left = part(0, kCut), right = part(kCut, kTokens);
  const double lse = std::log(std::exp(left.lse[0]) + std::exp(right.lse[0]));
  EXPECT_NEAR(whole.lse[0], lse, 1e-13);
  for (std::size_t i = 0; i < kHeadDim; ++i) {
    EXPECT_NEAR(whole.o[i], left.o[i] * std::exp(left.lse[0] - lse) + right.o[i] * std::exp(right.lse[0] - lse), 1e-13);
  }
}

TEST(Oracle, BatchIsTheSameOnAnyNumberOfThreadsAndHoldsEveryHead) {
  const DecodeProblem problem{
      .q_heads = 6, .kv_heads = 2, .head_dim = 64, .dtype = DType::fp16, .layout = KvLayout::strided, .lse = true};
  const std::vector<int> lengths{5, 0, 40, -3};
  const OracleOutput one = oracle_of_batch(problem, DataKind::uniform, 5, 0.125, lengths, 1);
  const OracleOutput four = oracle_of_batch(problem, DataKind::uniform, 5, 0.125, lengths, 4);
  EXPECT_EQ(one.o, four.o);
  EXPECT_EQ(one.lse, four.lse);
  const NoThreads none;
  EXPECT_EQ(oracle_of_batch(problem, DataKind::uniform, 5, 0.125, lengths, 4).o, one.o);
  ASSERT_EQ(one.lse.size(), 4u * 6u);
  const OracleOutput part = oracle_of_data(problem, DataKind::uniform, 5, 0.125, 2, 1, 40);
  for (std::size_t head = 0; head < 3; ++head) EXPECT_EQ(one.lse[2 * 6 + 3 + head], part.lse[head]);
  for (std::size_t head = 0; head < 6; ++head) {
    EXPECT_EQ(one.lse[6 + head], -std::numeric_limits<double>::infinity()) << "an empty request";
    EXPECT_EQ(one.lse[18 + head], -std::numeric_limits<double>::infinity()) << "a negative length";
  }
}

TEST(Oracle, CoverageDataCountsTokens) {
  // Blocks of 16 tokens take the columns in turn. All weights are equal, so O has each column's share of the tokens and
  // LSE the logarithm of their number.
  const DecodeProblem problem{
      .q_heads = 1, .kv_heads = 1, .head_dim = 64, .dtype = DType::bf16, .layout = KvLayout::contiguous, .lse = true};
  constexpr int kTokens = 64 * 16 + 24;
  const OracleOutput output = oracle_of_data(problem, DataKind::coverage, 1, 0.125, 0, 0, kTokens);
  EXPECT_NEAR(output.lse[0], std::log(kTokens), 1e-13);
  EXPECT_NEAR(output.o[0], 32.0 / kTokens, 1e-15);
  EXPECT_NEAR(output.o[1], 24.0 / kTokens, 1e-15);
  EXPECT_NEAR(output.o[2], 16.0 / kTokens, 1e-15);
}

TEST(Oracle, ExtremeDataReachesTheLogitsItPromises) {
  for (const int head_dim : {64, 96, 128, 256}) {
    const DecodeProblem problem{.q_heads = 2,
                                .kv_heads = 1,
                                .head_dim = head_dim,
                                .dtype = DType::fp16,
                                .layout = KvLayout::contiguous,
                                .lse = true};
    double highest = 0;
    for (int request = 0; request < 4; ++request) {
      const OracleOutput output =
          oracle_of_data(problem, DataKind::extreme, 3, extreme_scale(head_dim), request, 0, 400);
      for (const double lse : output.lse) {
        EXPECT_GE(lse, 1e4 - 1e-6);
        highest = std::max(highest, lse);
      }
    }
    EXPECT_LE(highest, 1e4 + std::log(400.0) + 1e-6);
  }
}

TEST(Oracle, ScaleArgumentRoundTripsWithinAnFp32Ulp) {
  for (const double scale : {1.0, 0.125, 1 / std::sqrt(128.0), 1e-3}) {
    EXPECT_NEAR(scale_of_argument(scale_argument(scale)), scale, scale * std::ldexp(1.0, -24));
  }
}

}  // namespace
}  // namespace leanattn
