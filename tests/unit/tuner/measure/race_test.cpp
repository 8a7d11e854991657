// race_test.cpp -- races of candidates with known times and simulated noise.
#include "tuner/measure/race.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace leanattn {
namespace {

constexpr std::uint64_t kSeed = 11;

RoundTimes sample(const std::vector<std::size_t>& order, const std::vector<double>& truth, std::mt19937_64& random,
                  double noise) {
  std::normal_distribution<double> normal(0, noise);
  RoundTimes times;
  const double clock = 1 + std::abs(normal(random)) * 3;  // the whole round drifts more than its samples
  for (const std::size_t i : order) times.us.push_back(truth[i] * clock * (1 + normal(random)));
  times.sentinel_us = clock;
  return times;
}

TEST(Race, EveryRoundSamplesEveryCandidateOnceInAnotherOrder) {
  Race race(7);
  std::set<std::vector<std::size_t>> orders;
  std::set<std::size_t> firsts;
  for (int round = 0; round < 8; ++round) {
    const auto order = race.order();
    EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 7u);
    orders.insert(order);
    firsts.insert(order.front());
    race.add(order, {.us = std::vector<double>(7, 1.0), .sentinel_us = 1});
  }
  EXPECT_EQ(orders.size(), 8u);
  EXPECT_GE(firsts.size(), 4u);
}

TEST(Race, SamplesGoToTheirCandidates) {
  Race race(3);
  const std::vector<double> truth{5, 3, 4};
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 5; ++round) {
    const auto order = race.order();
    race.add(order, sample(order, truth, random, 0));
  }
  EXPECT_EQ(race.leader(), 1u);
  EXPECT_EQ(race.samples(0)[4], 5);
  EXPECT_NEAR(race.ratio(0, 1).ratio, 5.0 / 3.0, 1e-12);
}

TEST(Race, ClearLosersAreDroppedAndTheBestSurvives) {
  std::mt19937_64 random(kSeed);
  for (int repeat = 0; repeat < 30; ++repeat) {
    Race race(6);
    const std::vector<double> truth{10.0, 10.05, 10.8, 12, 15, 30};
    for (int round = 0; round < 10; ++round) {
      const auto order = race.order();
      race.add(order, sample(order, truth, random, 0.01));
      if (round >= 3) race.drop_slower(0.003);
    }
    EXPECT_TRUE(race.is_alive(0) || race.is_alive(1)) << "seed " << kSeed << ", repeat " << repeat;
    for (const std::size_t loser : {3u, 4u, 5u})
      EXPECT_FALSE(race.is_alive(loser)) << "seed " << kSeed << ", repeat " << repeat;
  }
}

TEST(Race, DroppedCandidatesAreNotSampledAgain) {
  Race race(3);
  race.add(race.order(), {.us = {1, 2, 3}, .sentinel_us = 1});
  race.keep_best(2);
  EXPECT_EQ(race.alive(), 2u);
  EXPECT_FALSE(race.is_alive(2));
  const auto order = race.order();
  EXPECT_EQ(std::find(order.begin(), order.end(), 2u), order.end());
  EXPECT_EQ(race.samples(2).size(), 1u);
}

TEST(Race, ThrottledAndDriftingRoundsAreDiscarded) {
  Race race(2);
  EXPECT_FALSE(race.add(race.order(), {.us = {1, 1}, .sentinel_us = 1, .throttle = "power cap"}));
  EXPECT_FALSE(race.add(race.order(), {.us = {1, 1}, .sentinel_us = 1, .sentinel_drift = 2 * kMostDrift}));
  EXPECT_EQ(race.rounds(), 0);
  EXPECT_EQ(race.discarded(), 2);
  EXPECT_TRUE(race.add(race.order(), {.us = {1, 1}, .sentinel_us = 1, .sentinel_drift = kMostDrift / 2}));
  EXPECT_TRUE(race.noise().empty());
}

TEST(Race, AGpuThatIsNeverQuietStillFinishes) {
  Race race(1);
  int offered = 0;
  while (race.rounds() < 5) {
    race.add(race.order(), {.us = {1}, .sentinel_us = 1, .throttle = "power cap"});
    ASSERT_LE(++offered, 15);
  }
  EXPECT_EQ(race.noise(), "power cap");
}

TEST(Race, OtherProcessesAreToldAndTheirRoundsCount) {
  Race race(1);
  EXPECT_TRUE(race.add(race.order(), {.us = {1}, .sentinel_us = 1, .neighbours = "shared with 1 other process"}));
  EXPECT_EQ(race.rounds(), 1);
  EXPECT_EQ(race.noise(), "shared with 1 other process");
}

TEST(Race, ClocksThatMovedAreTold) {
  Race steady(1), moved(1);
  for (const int mhz : {1980, 1965, 0, 1950})
    steady.add(steady.order(), {.us = {1}, .sentinel_us = 1, .sm_clock_mhz = mhz});
  EXPECT_EQ(steady.noise(), "");
  for (const int mhz : {1980, 1410}) {
    EXPECT_TRUE(moved.add(moved.order(), {.us = {1}, .sentinel_us = 1, .sm_clock_mhz = mhz, .neighbours = "shared"}));
  }
  EXPECT_EQ(moved.noise(), "SM clock 1410 to 1980 MHz; shared");
}

TEST(Race, WithinTheNoiseItIsATie) {
  std::mt19937_64 random(kSeed);
  Race race(3);
  const std::vector<double> truth{10.0, 10.01, 10.6};
  for (int round = 0; round < 20; ++round) {
    const auto order = race.order();
    race.add(order, sample(order, truth, random, 0.01));
  }
  const auto tied = race.tied_with_leader(0.003);
  EXPECT_EQ(tied, (std::vector<std::size_t>{0, 1})) << "seed " << kSeed;
}

}  // namespace
}  // namespace leanattn
