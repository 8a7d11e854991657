// progress_test.cpp -- the best time so far follows from the trials and from when they were made.
#include "tuner/report/progress.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

using detail::search_progress;

Trial trial(const char* config, double us, int samples, const char* created, TrialStatus status = TrialStatus::pruned) {
  Trial made;
  made.config = config, made.median_us = us, made.samples = samples, made.created = created, made.status = status;
  made.environment.library_revision = "r1";
  return made;
}

std::vector<ProgressStep> progress(const std::vector<Trial>& trials) {
  std::vector<const Trial*> pointers;
  for (const Trial& one : trials) pointers.push_back(&one);
  Environment software;
  software.library_revision = "r1";
  return search_progress(pointers, software);
}

TEST(SearchProgress, EachImprovementIsAStepAndTheLastTrialEndsIt) {
  const auto steps =
      progress({trial("a", 9, 1, "2026-11-21T23:59:59.500Z"), trial("b", 10, 1, "2026-11-22T00:00:00.000Z"),
                trial("c", 7, 1, "2026-11-22T00:00:01.250Z"),
                trial("d", 0, 0, "2026-11-22T00:00:02.500Z", TrialStatus::incorrect)});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].trials, 1);
  EXPECT_EQ(steps[0].seconds, 0);
  EXPECT_EQ(steps[0].best_us, 9);
  EXPECT_EQ(steps[1].trials, 3);
  EXPECT_NEAR(steps[1].seconds, 1.75, 1e-6);
  EXPECT_EQ(steps[1].best_us, 7);
  EXPECT_EQ(steps[2].trials, 4) << "a failed trial is one, too";
  EXPECT_NEAR(steps[2].seconds, 3, 1e-6);
  EXPECT_EQ(steps[2].best_us, 7);
}

TEST(SearchProgress, AConfigurationCountsFromItsFirstTrialWithItsBestMeasuredTime) {
  const auto steps =
      progress({trial("a", 5, 1, "2026-11-22T00:00:00.000Z"), trial("b", 8, 12, "2026-11-22T00:00:01.000Z"),
                trial("a", 9, 12, "2026-11-22T00:00:02.000Z", TrialStatus::ok)});
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].best_us, 9) << "the one lucky sample is not the time of a";
  EXPECT_EQ(steps[1].best_us, 8);
  EXPECT_EQ(steps[2].trials, 3);
}

TEST(SearchProgress, PausesBetweenSessionsAreNoTimeOfTheSearch) {
  const auto steps =
      progress({trial("a", 9, 1, "2026-11-22T00:00:00.000Z"), trial("b", 8, 1, "2026-11-22T00:00:01.000Z"),
                trial("c", 7, 1, "2026-11-23T00:00:00.000Z"), trial("d", 6, 1, "2026-11-23T00:00:02.000Z")});
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_NEAR(steps[2].seconds, 1, 1e-6);
  EXPECT_NEAR(steps[3].seconds, 3, 1e-6);
}

TEST(SearchProgress, TrialsOfOtherSoftwareAndWrongClocksDoNotCount) {
  Trial other = trial("a", 1, 12, "2026-11-22T00:00:00.000Z");
  other.environment.library_revision = "r0";
  const auto steps =
      progress({other, trial("b", 8, 1, "2026-11-22T00:00:01.000Z"), trial("c", 7, 1, "yesterday"),
                trial("d", 6, 1, "2026-13-22T00:00:03.000Z"), trial("e", 5, 1, "2026-11-22T00:00:04.000Z")});
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].best_us, 8);
  EXPECT_EQ(steps[0].trials, 1);
  EXPECT_EQ(steps[2].seconds, 0);
  EXPECT_NEAR(steps[3].seconds, 3, 1e-6);
  EXPECT_TRUE(progress({trial("a", 0, 0, "", TrialStatus::compile_fail)}).empty());
}

}  // namespace
}  // namespace leanattn
