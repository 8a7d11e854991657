#include "cache/tuning/winner_rule.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <random>

namespace leanattn {
namespace {

using detail::ChosenTrials;
using detail::MeasuredTrial;

constexpr const char* kLatestCredible = "2026-12-31T00:00:00.000Z";

std::optional<ChosenTrials> choose_winner(std::vector<MeasuredTrial> trials) {
  return detail::choose_winner(std::move(trials), kLatestCredible);
}

MeasuredTrial measured(std::int64_t id, const std::string& config, double median, double low, double high,
                       const std::string& software = "r1", const std::string& created = "2026-01-01T00:00:00.000Z") {
  return {.id = id,
          .uuid = "uuid-" + std::to_string(id),
          .config = config,
          .created = created,
          .library = software,
          .kernel = software,
          .median_us = median,
          .low_us = low,
          .high_us = high};
}

TEST(WinnerRule, HasNoWinnerWithoutTrials) { EXPECT_FALSE(choose_winner({})); }

TEST(WinnerRule, TakesTheLowestMedianWhenIntervalsAreApart) {
  const auto chosen = choose_winner({measured(1, "a", 12, 11.9, 12.1), measured(2, "b", 10, 9.9, 10.1)});
  EXPECT_EQ(chosen->winner, 2);
  EXPECT_EQ(chosen->fastest, 2);
}

TEST(WinnerRule, GivesATieToTheSmallerConfigTextAndNotToTheLowerTime) {
  const auto chosen = choose_winner({measured(1, "b", 10.00, 9.9, 10.1), measured(2, "a", 10.05, 9.95, 10.15)});
  EXPECT_EQ(chosen->winner, 2);
  EXPECT_EQ(chosen->fastest, 1);
}

TEST(WinnerRule, DoesNotLetANoisyTrialTieByItsWideInterval) {
  const auto chosen = choose_winner({measured(1, "b", 10, 9.9, 10.1), measured(2, "a", 14, 9.0, 30.0)});
  EXPECT_EQ(chosen->winner, 1);
}

TEST(WinnerRule, RepresentsAConfigurationByItsMiddleTrialAndNotByItsLuckiest) {
  const auto chosen = choose_winner({measured(1, "lucky", 8, 7.9, 8.1), measured(2, "lucky", 12, 11.9, 12.1),
                                     measured(3, "lucky", 12.2, 12.1, 12.3), measured(4, "steady", 10, 9.9, 10.1)});
  EXPECT_EQ(chosen->winner, 4);
  EXPECT_EQ(choose_winner({measured(1, "lucky", 8, 7.9, 8.1), measured(2, "lucky", 12, 11.9, 12.1),
                           measured(4, "steady", 10, 9.9, 10.1)})
                ->winner,
            4)
      << "of two trials the slower one counts";
}

TEST(WinnerRule, AConfigurationThatWasWrongNeverWinsUnderThatSoftware) {
  const auto wrong = [](std::int64_t id, const std::string& config, const std::string& software,
                        const std::string& day) {
    MeasuredTrial made = measured(id, config, 0, 0, 0, software, day + "T00:00:00.000Z");
    made.wrong = true;
    return made;
  };
  const MeasuredTrial racy = measured(1, "racy", 8, 7.9, 8.1, "r1", "2026-01-05T00:00:00.000Z"),
                      right = measured(2, "right", 10, 9.9, 10.1, "r1", "2026-01-05T00:00:00.000Z");
  EXPECT_EQ(choose_winner({racy, right, wrong(3, "racy", "r1", "2026-01-06")})->winner, 2);
  EXPECT_EQ(choose_winner({racy, right, wrong(3, "racy", "r1", "2026-01-04")})->winner, 2) << "also if it was before";
  EXPECT_EQ(choose_winner({racy, right, wrong(3, "racy", "r0", "2026-01-06")})->winner, 1)
      << "what other software computes says nothing of this one";
  EXPECT_FALSE(choose_winner({racy, wrong(3, "racy", "r1", "2026-01-06")})) << "no winner rather than a wrong one";
  EXPECT_FALSE(choose_winner({wrong(3, "racy", "r1", "2026-01-06")}));
}

TEST(WinnerRule, ALaterLossInAsManySamplesOverrulesALuckyTime) {
  const auto of = [](std::int64_t id, const std::string& config, double us, int samples, const std::string& day,
                     bool lost = false) {
    MeasuredTrial made = measured(id, config, us, us - 0.1, us + 0.1, "r1", day + "T00:00:00.000Z");
    made.samples = samples, made.lost = lost;
    return made;
  };
  const MeasuredTrial lucky = of(1, "lucky", 9.7, 3, "2026-01-01"), steady = of(2, "steady", 10, 12, "2026-01-02");
  EXPECT_EQ(choose_winner({lucky, steady, of(3, "lucky", 10.2, 12, "2026-01-02", true)})->winner, 2);
  EXPECT_EQ(choose_winner({lucky, steady, of(3, "lucky", 10.2, 2, "2026-01-02", true)})->winner, 1)
      << "fewer samples say less";
  EXPECT_EQ(choose_winner({lucky, steady, of(3, "lucky", 10.2, 12, "2025-12-31", true)})->winner, 1)
      << "an earlier loss may have been bad luck";
  EXPECT_EQ(choose_winner({lucky, steady, of(3, "lucky", 10.2, 12, "2031-01-01", true)})->winner, 1)
      << "what a clock in the future says counts as the oldest";
  MeasuredTrial elsewhere = of(3, "lucky", 10.2, 12, "2026-01-02", true);
  elsewhere.library = elsewhere.kernel = "r0";
  EXPECT_EQ(choose_winner({lucky, steady, elsewhere})->winner, 1) << "other software says nothing of this one's times";
  EXPECT_EQ(choose_winner({lucky, of(3, "lucky", 10.2, 12, "2026-01-02", true)})->winner, 1) << "something has to win";
  EXPECT_EQ(choose_winner(
                {lucky, steady, of(3, "lucky", 10.2, 12, "2026-01-02", true), of(4, "lucky", 9.8, 12, "2026-01-03")})
                ->winner,
            4)
      << "it has won since";
  EXPECT_FALSE(choose_winner({of(3, "lucky", 10.2, 12, "2026-01-02", true)})) << "what lost does not win";
  MeasuredTrial newer = of(5, "other", 8, 12, "2026-01-03", true);
  newer.library = newer.kernel = "r2";
  EXPECT_EQ(choose_winner({lucky, newer})->winner, 1) << "a loss does not say whose software counts";
}

TEST(WinnerRule, ATimeOfAnEarlierKernelOfAConfigurationDoesNotCount) {
  const auto of = [](std::int64_t id, const std::string& config, double us, const std::string& kernel,
                     const std::string& day) {
    MeasuredTrial made = measured(id, config, us, us, us, "r1", day + "T00:00:00.000Z");
    made.kernel = kernel;
    return made;
  };
  const MeasuredTrial old = of(1, "a", 5, "k1", "2026-01-01"), slower = of(2, "a", 9, "k2", "2026-01-02"),
                      rival = of(3, "b", 8, "k3", "2026-01-01");
  for (const auto& trials : {std::vector{old, slower, rival}, {rival, slower, old}, {slower, old, rival}})
    EXPECT_EQ(choose_winner(trials)->winner, 3);
  EXPECT_EQ(choose_winner({slower, old})->winner, 2);
  EXPECT_EQ(choose_winner({old, rival})->winner, 1) << "its kernel has not changed";
  MeasuredTrial lost = slower;
  lost.lost = true;
  EXPECT_EQ(choose_winner({old, lost, rival})->winner, 3) << "it has lost with the new one";
  EXPECT_EQ(choose_winner({old, of(4, "a", 6, "k1", "2026-01-03"), slower, rival})->winner, 4)
      << "what runs again counts again";
}

TEST(WinnerRule, AKernelThatWasWrongNeverWinsWhateverElseOfTheLibraryHasChanged) {
  const auto of = [](std::int64_t id, const std::string& library, const std::string& kernel, bool wrong) {
    MeasuredTrial made = measured(id, "racy", 8, 8, 8, library, "2026-01-0" + std::to_string(id) + "T00:00:00.000Z");
    made.kernel = kernel, made.wrong = wrong;
    return made;
  };
  MeasuredTrial right = measured(9, "right", 10, 10, 10, "r2", "2026-01-03T00:00:00.000Z");
  EXPECT_EQ(choose_winner({of(1, "r1", "k1", true), of(2, "r2", "k1", false), right})->winner, 9);
  EXPECT_EQ(choose_winner({of(1, "r1", "k1", true), of(2, "r2", "k2", false), right})->winner, 2) << "it was mended";
  EXPECT_EQ(choose_winner({of(2, "r2", "k1", false), of(4, "r1", "k1", true), right})->winner, 9);
}

TEST(WinnerRule, CountsOnlyTheSoftwareOfTheNewestTrial) {
  const auto chosen = choose_winner({measured(1, "a", 5, 5, 5, "old", "2026-01-01T00:00:00.000Z"),
                                     measured(2, "b", 9, 9, 9, "new", "2026-01-02T00:00:00.000Z"),
                                     measured(3, "c", 8, 8, 8, "new", "2026-01-01T12:00:00.000Z")});
  EXPECT_EQ(chosen->winner, 3);
}

TEST(WinnerRule, CountsTheSoftwareOfTheNewestLibraryAndSchemaWhateverTheClocksSaid) {
  const auto of = [](std::int64_t id, int library, int schema, const std::string& software,
                     const std::string& created) {
    MeasuredTrial made = measured(id, "a", 5 + static_cast<double>(id), 0, 0, software, created);
    made.library_version = library, made.schema_version = schema;
    return made;
  };
  EXPECT_EQ(choose_winner(
                {of(1, 1000, 3, "old", "2026-05-01T00:00:00.000Z"), of(2, 2000, 3, "new", "2026-01-01T00:00:00.000Z")})
                ->winner,
            2);
  EXPECT_EQ(choose_winner(
                {of(1, 2000, 3, "old", "2026-05-01T00:00:00.000Z"), of(2, 2000, 4, "new", "2026-01-01T00:00:00.000Z")})
                ->winner,
            2);
}

TEST(WinnerRule, DoesNotLetATimestampInTheFuturePinOldSoftware) {
  EXPECT_EQ(choose_winner({measured(1, "a", 5, 5, 5, "old", "2031-01-01T00:00:00.000Z"),
                           measured(2, "b", 9, 9, 9, "new", "2026-01-02T00:00:00.000Z")})
                ->winner,
            2);
  EXPECT_EQ(choose_winner({measured(1, "a", 5, 5, 5, "old", "2031-01-01T00:00:00.000Z")})->winner, 1)
      << "alone it counts";
}

TEST(WinnerRule, TreatsAMissingIntervalAsThePointItself) {
  EXPECT_EQ(choose_winner({measured(1, "b", 10, 0, 0), measured(2, "a", 10.01, 0, 0)})->winner, 1);
  EXPECT_EQ(choose_winner({measured(1, "b", 10, 0, 0), measured(2, "a", 10, 0, 0)})->winner, 2);
}

TEST(WinnerRule, DependsOnTheSetOfTrialsAlone) {
  EXPECT_TRUE(rc::check("any order of the trials gives the same winner", [] {
    std::vector<MeasuredTrial> trials;
    const int count = *rc::gen::inRange(1, 20);
    for (int i = 0; i < count; ++i) {
      const double median = *rc::gen::inRange(90, 110) / 10.0;
      const double width = *rc::gen::inRange(0, 10) / 10.0;
      trials.push_back(measured(i, std::string(1, static_cast<char>('a' + *rc::gen::inRange(0, 5))), median,
                                median - width, median + width, *rc::gen::element<std::string>("r1", "r2"),
                                "2026-01-0" + std::to_string(*rc::gen::inRange(1, 4)) + "T00:00:00.000Z"));
      trials.back().kernel = *rc::gen::element<std::string>("k1", "k2");
      trials.back().samples = *rc::gen::inRange(3, 6);
      trials.back().lost = i > 0 && *rc::gen::arbitrary<bool>();
    }
    const auto chosen = choose_winner(trials);
    if (!chosen) RC_DISCARD("all trials that might win were followed by losses with another kernel");
    RC_ASSERT(!trials[static_cast<std::size_t>(chosen->winner)].lost);
    auto shuffled = trials;
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(*rc::gen::arbitrary<unsigned>()));
    const auto again = choose_winner(shuffled);
    RC_ASSERT(again->winner == chosen->winner);
    RC_ASSERT(again->fastest == chosen->fastest);
    const auto& winner = trials[static_cast<std::size_t>(chosen->winner)];
    const auto& fastest = trials[static_cast<std::size_t>(chosen->fastest)];
    RC_ASSERT(winner.library == fastest.library);
    RC_ASSERT(winner.median_us <= fastest.median_us * (1 + detail::kTieShare));
    RC_ASSERT(winner.config <= fastest.config);
  }));
}

}  // namespace
}  // namespace leanattn
