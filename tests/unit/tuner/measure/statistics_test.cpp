// statistics_test.cpp -- medians, intervals and ratios of simulated timing samples.
#include "tuner/measure/statistics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace leanattn {
namespace {

constexpr std::uint64_t kStatisticsSeed = 7;

/// Noise like that of GPUs: above the true time there is a small jitter, and now and then an interruption.
std::vector<double> noisy_samples(std::mt19937_64& random, double truth, std::size_t count, double spoilt_share) {
  std::exponential_distribution<double> jitter(1 / (0.01 * truth));
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> samples;
  for (std::size_t i = 0; i < count; ++i) {
    samples.push_back(truth + jitter(random) +
                      (uniform(random) < spoilt_share ? truth * (1 + 9 * uniform(random)) : 0.0));
  }
  return samples;
}

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median(std::vector<double>{5}), 5);
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
}

TEST(Statistics, MadIsTheMedianDistance) {
  EXPECT_EQ(median_absolute_deviation(std::vector<double>{1, 1, 2, 2, 4, 6, 9}), 1);
  EXPECT_EQ(median_absolute_deviation(std::vector<double>{3, 3, 3}), 0);
}

TEST(Statistics, MedianShrugsOffATenthOfSpoiltSamples) {
  std::mt19937_64 random(kStatisticsSeed);
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_NEAR(median(noisy_samples(random, 10, 41, 0.1)), 10.0, 0.25)
        << "seed " << kStatisticsSeed << ", repeat " << repeat;
  }
}

TEST(Statistics, IntervalCoversTheTrueMedianAboutAsOftenAsItSays) {
  std::mt19937_64 random(kStatisticsSeed);
  const double truth = 10 + 0.1 * std::log(2.0);  // median of the exponential jitter
  int covered = 0;
  constexpr int kRepeats = 300;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const Interval interval = bootstrap_median(noisy_samples(random, 10, 25, 0));
    covered += interval.low <= truth && truth <= interval.high;
  }
  // Percentile intervals of 25 samples are a little optimistic; 85 % is far from what a wrong formula gives.
  EXPECT_GE(covered, kRepeats * 85 / 100) << "seed " << kStatisticsSeed;
  EXPECT_LT(covered, kRepeats);
}

TEST(Statistics, IntervalNarrowsWithSamples) {
  std::mt19937_64 random(kStatisticsSeed);
  const Interval few = bootstrap_median(noisy_samples(random, 10, 9, 0));
  const Interval many = bootstrap_median(noisy_samples(random, 10, 400, 0));
  EXPECT_LT(many.high - many.low, few.high - few.low);
}

TEST(Statistics, SameSamplesAlwaysGiveTheSameInterval) {
  std::mt19937_64 random(kStatisticsSeed);
  const std::vector<double> samples = noisy_samples(random, 10, 30, 0.1);
  const Interval a = bootstrap_median(samples), b = bootstrap_median(samples);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  EXPECT_GE(a.low, *least);
  EXPECT_LE(a.high, *most);
}

TEST(Statistics, OneSampleHasADegenerateInterval) {
  const std::vector<double> one{3.5};
  const Summary summary = summarize(one);
  EXPECT_EQ(summary.samples, 1);
  EXPECT_EQ(summary.low, 3.5);
  EXPECT_EQ(summary.high, 3.5);
  EXPECT_EQ(summary.mad, 0);
}

TEST(Statistics, NoSamplesSummariseToZero) {
  EXPECT_EQ(summarize({}).samples, 0);
  EXPECT_EQ(paired_ratio({}, {}).pairs, 0);
  EXPECT_FALSE(paired_ratio({}, {}).slower(0));
}

TEST(Statistics, PairingSeesTwoPercentThroughDriftOfThirty) {
  std::mt19937_64 random(kStatisticsSeed);
  std::uniform_real_distribution<double> drift(1.0, 1.3);
  std::normal_distribution<double> jitter(0, 0.003);
  std::vector<double> a, b;
  for (int round = 0; round < 15; ++round) {
    const double clock = drift(random);
    a.push_back(10.2 * clock * (1 + jitter(random)));
    b.push_back(10.0 * clock * (1 + jitter(random)));
  }
  const PairedRatio ratio = paired_ratio(a, b);
  EXPECT_TRUE(ratio.slower(0.01)) << ratio.ratio << " " << ratio.low << ", seed " << kStatisticsSeed;
  EXPECT_NEAR(ratio.ratio, 1.02, 0.005);
  EXPECT_FALSE(paired_ratio(b, a).slower(0));
}

TEST(Statistics, PairedIntervalsOfARaceCoverTheTrueRatioInSpiteOfDriftAndInterruptions) {
  std::mt19937_64 random(kStatisticsSeed);
  std::uniform_real_distribution<double> drift(1.0, 1.3);
  constexpr int kRepeats = 400;
  for (const std::size_t rounds : {12u, 28u}) {
    int covered = 0;
    double width = 0;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      auto a = noisy_samples(random, 10.15, rounds, 0.05), b = noisy_samples(random, 10, rounds, 0.05);
      for (std::size_t i = 0; i < rounds; ++i) {
        const double clock = drift(random);
        a[i] *= clock, b[i] *= clock;
      }
      const PairedRatio ratio = paired_ratio(a, b);
      covered += ratio.low <= 1.015 && 1.015 <= ratio.high;
      width += (ratio.high - ratio.low) / kRepeats;
    }
    EXPECT_GE(covered, kRepeats * 88 / 100) << rounds << " rounds, seed " << kStatisticsSeed;
    EXPECT_LT(width, rounds == 12 ? 0.06 : 0.03)
        << "wide intervals cover everything; " << rounds << " rounds, seed " << kStatisticsSeed;
  }
}

TEST(Statistics, EqualCandidatesAreSeldomCalledSlower) {
  std::mt19937_64 random(kStatisticsSeed);
  int wrong = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    wrong += paired_ratio(noisy_samples(random, 10, 15, 0.05), noisy_samples(random, 10, 15, 0.05)).slower(0.003);
  }
  EXPECT_LE(wrong, 20) << "seed " << kStatisticsSeed;
}

TEST(IndependentRatio, CoversTheTrueRatioOfTwoNoisySets) {
  int covered = 0;
  constexpr int kTrials = 200;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::mt19937_64 random(static_cast<std::uint64_t>(trial));
    std::exponential_distribution<double> noise(50);
    std::vector<double> a, b;
    for (int i = 0; i < 20; ++i) a.push_back(12 * (1 + noise(random)));
    for (int i = 0; i < 14; ++i) b.push_back(10 * (1 + noise(random)));
    const PairedRatio ratio = independent_ratio(a, b);
    EXPECT_LE(ratio.low, ratio.ratio);
    EXPECT_LE(ratio.ratio, ratio.high);
    EXPECT_EQ(ratio.pairs, 14);
    covered += ratio.low <= 1.2 && 1.2 <= ratio.high;
  }
  EXPECT_GE(covered, kTrials * 88 / 100);
}

TEST(IndependentRatio, DoesNotPair) {
  // Rounds vary alike on both sides. Pairs cancel that; samples of different times must not.
  const double a[] = {2, 4, 6, 8, 10}, b[] = {1, 2, 3, 4, 5};
  EXPECT_EQ(paired_ratio(a, b).low, paired_ratio(a, b).high);
  const PairedRatio ratio = independent_ratio(a, b);
  EXPECT_EQ(ratio.ratio, 2);
  EXPECT_LT(ratio.low, 1.5);
  EXPECT_GT(ratio.high, 2.5);
  EXPECT_EQ(independent_ratio({}, b).ratio, 0);
}

}  // namespace
}  // namespace leanattn
