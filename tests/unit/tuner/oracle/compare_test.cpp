// compare_test.cpp -- right results pass the comparison, and every planted error is caught.
#include "tuner/oracle/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "tuner/oracle/oracle.hpp"

namespace leanattn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A small case whose "kernel" is the oracle's answer rounded to the dtype.
class Comparator : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const DecodeProblem problem{
        .q_heads = 8, .kv_heads = 2, .head_dim = 64, .dtype = GetParam(), .layout = KvLayout::contiguous, .lse = true};
    const std::vector<int> lengths{1, 200, 0, 3000};
    OracleOutput oracle = oracle_of_batch(problem, DataKind::uniform, 4, 0.125, lengths);
    for (const double value : oracle.o) o.push_back(bits_of(GetParam(), static_cast<float>(value)));
    for (const double value : oracle.lse) lse.push_back(static_cast<float>(value));
    reference = make_reference(GetParam(), 4, 8, 64, std::move(oracle.o), std::move(oracle.lse), o, false);
  }

  ComparisonReport run() const { return compare(reference, o, lse); }
  std::size_t at(int request, int head, int column) const {
    return static_cast<std::size_t>((request * 8 + head) * 64 + column);
  }

  Reference reference;
  std::vector<std::uint16_t> o;
  std::vector<float> lse;
};

INSTANTIATE_TEST_SUITE_P(DTypes, Comparator, testing::Values(DType::bf16, DType::fp16),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

TEST_P(Comparator, PassesTheRoundedOracle) {
  const ComparisonReport report = run();
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_EQ(report.elements, 4 * 8 * 64 + 4 * 8);
  EXPECT_LE(report.error_ratio, 1.0);
  EXPECT_TRUE(report.first_failure.empty());
}

TEST_P(Comparator, TheLastTokensOfALongPromptAreMeasuredWithErrorsOfTheirOwn) {
  // The first tokens of a prompt see little, so that their values and errors are large.
  const int tokens = kTokensOfYardstick + 44, long_ago = 3, late = kTokensOfYardstick + 7;
  std::vector<double> oracle;
  std::vector<std::uint16_t> plain;
  for (int token = 0; token < tokens; ++token) {
    oracle.push_back(token < kTokensOfYardstick ? 1.3 : 0.013);
    plain.push_back(bits_of(GetParam(), static_cast<float>(oracle.back())));
  }
  const auto size = static_cast<std::size_t>(tokens);
  const Reference prompt =
      make_reference(GetParam(), 1, 1, 1, oracle, std::vector<double>(size, 1.0), plain, false, {tokens});
  ASSERT_EQ(prompt.yardsticks.size(), 2u);
  const std::vector<float> right_lse(size, 1.0f);
  EXPECT_TRUE(compare(prompt, plain, right_lse).passed());
  const double error = 1.5 * prompt.yardsticks[0].largest;
  for (const int token : {long_ago, late}) {
    std::vector<std::uint16_t> wrong = plain;
    wrong[static_cast<std::size_t>(token)] =
        bits_of(GetParam(), static_cast<float>(oracle[static_cast<std::size_t>(token)] + error));
    const ComparisonReport report = compare(prompt, wrong, right_lse);
    EXPECT_EQ(report.error_ratio > 2, token == late) << report.first_failure;
  }
}

TEST_P(Comparator, PassesAnErrorOfOneUlpAtTheLargestValue) {
  // The last place of the request's largest value goes up and down in turn.
  const double ulp = 2 * reference.yardsticks[1].largest;
  o[at(1, 0, 5)] = bits_of(GetParam(), static_cast<float>(reference.o[at(1, 0, 5)] + ulp * 0.6));
  EXPECT_TRUE(run().passed()) << run().first_failure;
}

TEST_P(Comparator, CatchesASingleWrongElementAtAnyContextLength) {
  for (const int request : {0, 1, 3}) {
    const std::size_t i = at(request, 7, 63);
    const std::uint16_t right = o[i];
    o[i] = bits_of(GetParam(), static_cast<float>(reference.o[i] +
                                                  5 * reference.yardsticks[static_cast<std::size_t>(request)].largest));
    const ComparisonReport report = run();
    EXPECT_FALSE(report.passed()) << request;
    EXPECT_NE(report.first_failure.find("query head 7, column 63"), std::string::npos) << report.first_failure;
    o[i] = right;
  }
}

TEST_P(Comparator, CatchesAnUnwrittenElement) {
  o[at(3, 2, 10)] = 0xFFFF;
  const ComparisonReport report = run();
  EXPECT_EQ(report.unwritten, 1);
  EXPECT_FALSE(report.passed());
  EXPECT_NE(report.first_failure.find("never written"), std::string::npos);
}

TEST_P(Comparator, CatchesAnUnwrittenLse) {
  std::memset(&lse[5], kPoisonByte, sizeof(float));
  EXPECT_EQ(run().unwritten, 1);
  EXPECT_FALSE(run().passed());
}

TEST_P(Comparator, CatchesNaNAndInfinity) {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::uint16_t right = o[at(1, 1, 1)];
    o[at(1, 1, 1)] = bits_of(GetParam(), wrong);
    EXPECT_EQ(run().pattern_mismatches, 1);
    EXPECT_FALSE(run().passed());
    o[at(1, 1, 1)] = right;
  }
}

TEST_P(Comparator, CatchesAFlippedSign) {
  // The largest value of the request is taken, because a smaller one may be less than the rounding of its neighbours.
  std::size_t largest = at(3, 0, 0);
  for (std::size_t i = at(3, 0, 0); i < o.size(); ++i) {
    if (std::abs(reference.o[i]) > std::abs(reference.o[largest])) largest = i;
  }
  o[largest] ^= 0x8000;
  EXPECT_FALSE(run().passed());
}

TEST_P(Comparator, CatchesSwappedHeads) {
  for (int column = 0; column < 64; ++column) std::swap(o[at(3, 2, column)], o[at(3, 3, column)]);
  EXPECT_FALSE(run().passed());
}

TEST_P(Comparator, CatchesAnEmptyRequestLeftNonZero) {
  o[at(2, 0, 0)] = bits_of(GetParam(), 0.001f);
  EXPECT_FALSE(run().passed());
}

TEST_P(Comparator, CatchesALseThatIsNotMinusInfinityForAnEmptyRequest) {
  lse[2 * 8] = -1e30f;
  EXPECT_EQ(run().pattern_mismatches, 1);
}

TEST_P(Comparator, CatchesLseInBaseTwo) {
  for (float& value : lse) value = static_cast<float>(value * std::numbers::log2e);
  EXPECT_FALSE(run().passed());
  EXPECT_GT(run().lse_ratio, 100);
}

TEST_P(Comparator, CatchesALostTileByItsLse) {
  lse[3 * 8] = static_cast<float>(reference.lse[3 * 8] + std::log(1 - 16.0 / 3000));
  EXPECT_FALSE(run().passed());
}

TEST_P(Comparator, CatchesASystematicErrorBelowTheLargestOne) {
  // Every element is off by 1.5 yardsticks. No single one fails, but the mean does.
  for (std::size_t i = at(3, 0, 0); i < o.size(); ++i) {
    o[i] = bits_of(GetParam(), static_cast<float>(reference.o[i] + 1.5 * reference.yardsticks[3].largest));
  }
  const ComparisonReport report = run();
  EXPECT_GT(report.mean_ratio, 2);
  EXPECT_FALSE(report.passed());
}

TEST_P(Comparator, LeavesLseAloneWhenTheKernelDoesNotWriteIt) {
  const ComparisonReport report = compare(reference, o, {});
  EXPECT_TRUE(report.passed()) << report.first_failure;
  EXPECT_EQ(report.elements, 4 * 8 * 64);
}

TEST(RaggedReferences, EachRequestHasItsOwnRowsAndYardstick) {
  // The requests have two query tokens, none and one. There are two heads of one column.
  const std::vector<double> o{1, 2, 3, 4, 100, 200};
  std::vector<std::uint16_t> bits;
  for (const double value : o) bits.push_back(bits_of(DType::fp16, static_cast<float>(value)));
  const Reference reference =
      make_reference(DType::fp16, 3, 2, 1, o, std::vector<double>(6, 0.0), bits, false, {2, 0, 1});
  EXPECT_EQ(query_tokens_before(reference, 3), 3);
  EXPECT_EQ(query_tokens_of(reference, 1), 0);
  EXPECT_EQ(reference.yardsticks[0].largest, std::ldexp(1.0, -9));
  EXPECT_EQ(reference.yardsticks[2].largest, std::ldexp(1.0, -4));
  const std::vector<float> lse(6, 0.0f);
  EXPECT_TRUE(compare(reference, bits, lse).passed());
  auto wrong = bits;
  wrong[3] = bits_of(DType::fp16, 4.1f);
  EXPECT_NE(compare(reference, wrong, lse).first_failure.find("request 0, query token 1, query head 1, column 0"),
            std::string::npos)
      << compare(reference, wrong, lse).first_failure;
  wrong = bits;
  wrong[4] = 0xFFFF;
  EXPECT_NE(compare(reference, wrong, lse).first_failure.find("request 2, query head 0, column 0 was never written"),
            std::string::npos);
}

TEST(ComparisonReports, AnyCounterMakesThemFail) {
  for (auto counter :
       {&ComparisonReport::unwritten, &ComparisonReport::pattern_mismatches, &ComparisonReport::stray_writes,
        &ComparisonReport::workspace_left, &ComparisonReport::unequal_repeats, &ComparisonReport::wrong_appended}) {
    ComparisonReport report;
    EXPECT_TRUE(report.passed());
    report.*counter = 1;
    EXPECT_FALSE(report.passed());
  }
  ComparisonReport report;
  report.error_ratio = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(report.passed());
}

TEST(ComparisonReports, MergingKeepsTheWorst) {
  ComparisonReport a, b;
  a.error_ratio = 1.5;
  a.elements = 3;
  b.error_ratio = 0.5;
  b.elements = 4;
  b.unwritten = 2;
  b.first_failure = "there";
  merge(a, b);
  EXPECT_EQ(a.elements, 7);
  EXPECT_EQ(a.unwritten, 2);
  EXPECT_EQ(a.error_ratio, 1.5);
  EXPECT_EQ(a.first_failure, "there");
}

TEST(LseLimit, GrowsWithFp32RoundingAndTightensForExactWeights) {
  EXPECT_NEAR(lse_limit(0, false), 1e-4, 1e-12);
  EXPECT_LT(lse_limit(14, true), std::log1p(16.0 / (1 << 20))) << "16 tokens lost of a million must show";
  EXPECT_GT(lse_limit(1e4, true), 1e-3) << "an fp32 ulp at 1e4";
  EXPECT_EQ(lse_limit(-kInfinity, false), 0);
}

TEST(References, YardsticksNeverFallBelowTheRoundingOfTheOutput) {
  // A plain result that happens to be exact still allows one rounding.
  const std::vector<double> o{1.0, -0.5};
  const std::vector<std::uint16_t> plain{bits_of(DType::bf16, 1.0f), bits_of(DType::bf16, -0.5f)};
  const Reference reference = make_reference(DType::bf16, 1, 1, 2, o, {0.0}, plain, false);
  EXPECT_EQ(reference.yardsticks[0].largest, std::ldexp(1.0, -8));
  EXPECT_EQ(reference.yardsticks[0].mean, std::ldexp(1.0, -10));
}

}  // namespace
}  // namespace leanattn
