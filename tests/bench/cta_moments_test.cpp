// cta_moments_test.cpp -- the moments of a launch follow from the stamps of its CTAs.
#include "bench/phases/cta_moments.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace leanattn {
namespace {

/// LeanStamp[launches][ctas][kMoments] with nothing in it.
std::vector<LeanStamp> no_stamps(std::size_t launches, std::size_t ctas) {
  return std::vector<LeanStamp>(launches * ctas * kMoments, LeanStamp{0, 0});
}

LeanStamp& stamp_of(std::vector<LeanStamp>& stamps, std::size_t ctas, std::size_t launch, std::size_t cta,
                    LeanMoment moment) {
  return stamps[(launch * ctas + cta) * kMoments + static_cast<std::size_t>(moment)];
}

TEST(CtaMoments, AreCountedFromTheFirstStartOfTheLaunchAcrossAWrapOfTheTimer) {
  auto stamps = no_stamps(1, 3);
  const unsigned starts[] = {0xffffff00u, 0xfffffff0u, 16};  // the second CTA starts 240 ns late, the third one 272 ns
  for (std::size_t cta = 0; cta < 3; ++cta) {
    stamp_of(stamps, 3, 0, cta, kStarted) = {7, starts[cta]};
    stamp_of(stamps, 3, 0, cta, kDone) = {107, starts[cta] + 1000};
  }
  CtaMoments moments;
  moments.add(stamps, 1);
  const auto json = moments.json();
  ASSERT_EQ(json.size(), 2u) << "moments without a stamp are left out";
  EXPECT_EQ(json[1].at("moment"), "done");
  EXPECT_EQ(json[1].at("earliest_ns"), 1000);
  EXPECT_EQ(json[1].at("median_ns"), 1240);
  EXPECT_EQ(json[1].at("latest_ns"), 1272);
  EXPECT_EQ(json[1].at("cycles"), 100);
}

/// Two CTAs that gather `late` nanoseconds apart, plus and minus what each launch adds.
CtaMoments gathered(unsigned late, const std::vector<int>& added) {
  CtaMoments moments;
  auto stamps = no_stamps(added.size(), 2);
  for (std::size_t launch = 0; launch < added.size(); ++launch) {
    for (std::size_t cta = 0; cta < 2; ++cta) {
      stamp_of(stamps, 2, launch, cta, kStarted) = {1, 100};
      stamp_of(stamps, 2, launch, cta, kGathered) = {
          9, static_cast<unsigned>(5000 + (cta == 0 ? -added[launch] : static_cast<int>(late) + added[launch]))};
    }
  }
  moments.add(stamps, added.size());
  return moments;
}

TEST(CtaMoments, WhatACtaIsAlwaysLateByIsToldFromWhatChanges) {
  const auto always = gathered(100, {0, 0, 0, 0}).gathered_spread();
  ASSERT_TRUE(always);
  EXPECT_NEAR(always->always_ns, 100 / std::sqrt(2.0), 1e-9);
  EXPECT_NEAR(always->now_ns, 0, 1e-9);

  const auto changing = gathered(0, {50, -50, 50, -50}).gathered_spread();
  ASSERT_TRUE(changing);
  EXPECT_NEAR(changing->always_ns, 0, 1e-9);
  EXPECT_NEAR(changing->now_ns, std::sqrt(8.0 * 50 * 50 / 3), 1e-9);
}

TEST(CtaMoments, ASpreadNeedsTwoLaunches) {
  EXPECT_FALSE(gathered(100, {0}).gathered_spread());
  EXPECT_FALSE(CtaMoments().gathered_spread());
}

}  // namespace
}  // namespace leanattn
