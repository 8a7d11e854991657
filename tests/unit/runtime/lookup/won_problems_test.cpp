// won_problems_test.cpp -- winners are read when a look-up needs them: which ones, how often, and that the answers are
// the same as those of a table that has read all of them.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <barrier>
#include <map>
#include <thread>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/winner_table.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const DecodeProblem kSliced{.q_heads = 8, .kv_heads = 2, .head_dim = 128};  // has the same kernels
const DecodeProblem kSmall{.q_heads = 16, .kv_heads = 16, .head_dim = 64};  // has other kernels
const DecodeProblem kOther{.q_heads = 64, .kv_heads = 4, .head_dim = 256};  // has other kernels
const Shape kFar{.batch = 500, .longest_context = 100};                     // in another bucket than kMeasured

/// Winners in memory, which count how often each problem was read, and in how many visits.
struct Watched {
  explicit Watched(LayeredWinners winners) : source(by_problem(std::move(winners))) {
    source.read = [this, inner = std::move(source.read)](std::span<const std::string> problems) {
      ++visits;
      for (const std::string& problem : problems) ++reads[problem];
      return inner(problems);
    };
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  int of(const DecodeProblem& problem) const {
    const auto found = reads.find(to_json(problem));
    return found != reads.end() ? found->second : 0;
  }

  WinnersByProblem source;
  std::map<std::string, int> reads;
  int visits = 0;
};

LayeredWinners one_winner_each() {
  std::vector<LayeredWinners::Entry> entries;
  for (const DecodeProblem& problem : {kLlama, kSliced, kSmall, kOther})
    entries.push_back(winner(problem, kMeasured, tuned_config(problem, problem.q_heads), problem.q_heads));
  return layered(std::move(entries));
}

TEST(WonProblems, NothingIsReadBeforeALookUp) {
  Watched watched(one_winner_each());
  const WinnerTable table(fictional_gpu(), watched.source);
  EXPECT_EQ(watched.visits, 0);
  EXPECT_EQ(table.size(), 0u);
}

TEST(WonProblems, AnExactHitReadsItsOwnProblemOnce) {
  Watched watched(one_winner_each());
  const WinnerTable table(fictional_gpu(), watched.source);
  for (int i = 0; i < 3; ++i) {
    const Choice choice = table.find(kLlama, kMeasured);
    EXPECT_EQ(choice.provenance, Provenance::exact);
    EXPECT_EQ(choice.tuned_us, 32);
  }
  EXPECT_EQ(table.find(kLlama, kMeasured).provenance, Provenance::exact);
  EXPECT_EQ(watched.visits, 1);
  EXPECT_EQ(watched.of(kLlama), 1);
  EXPECT_EQ(watched.reads.size(), 1u);
  EXPECT_EQ(table.size(), 1u);
}

TEST(WonProblems, AShapeOutsideOfItsBucketReadsTheProblemsWithTheSameKernels) {
  Watched watched(one_winner_each());
  const WinnerTable table(fictional_gpu(), watched.source);
  EXPECT_EQ(table.find(kLlama, kMeasured).provenance, Provenance::exact);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(table.find(kLlama, kFar).provenance, Provenance::nearest);
  EXPECT_EQ(watched.visits, 2) << "one for its own winners, and one for all that were missing";
  EXPECT_EQ(watched.of(kLlama), 1);
  EXPECT_EQ(watched.of(kSliced), 1);
  EXPECT_EQ(watched.reads.size(), 2u);
}

TEST(WonProblems, WithoutAnyOfTheSameKernelsAllAreRead) {
  Watched watched(one_winner_each());
  const WinnerTable table(fictional_gpu(), watched.source);
  const DecodeProblem unknown{.q_heads = 12, .kv_heads = 4, .head_dim = 96};
  EXPECT_EQ(table.find(unknown, kMeasured).provenance, Provenance::model);
  EXPECT_EQ(watched.reads.size(), 4u);
  EXPECT_EQ(watched.visits, 1);
  EXPECT_EQ(table.size(), 4u);
  table.find(kOther, kMeasured);
  EXPECT_EQ(watched.visits, 1);
}

TEST(WonProblems, ADependentProblemReadsTheOrdinaryOne) {
  Watched watched(one_winner_each());
  const WinnerTable table(fictional_gpu(), watched.source);
  DecodeProblem dependent = kLlama;
  dependent.pdl = true;
  EXPECT_EQ(table.find(dependent, kMeasured).provenance, Provenance::without_pdl);
  EXPECT_EQ(watched.of(kLlama), 1);
  EXPECT_EQ(watched.reads.size(), 1u);
}

TEST(WonProblems, ABatchInvariantProblemIsNotReadForOthers) {
  DecodeProblem invariant = kSliced;
  invariant.features.batch_invariant = true;
  LayeredWinners winners =
      layered({winner(kLlama, kMeasured, tuned_config(kLlama, 64)),
               winner(invariant, kMeasured, default_config({fictional_gpu(), invariant, kMeasured}))});
  Watched watched(std::move(winners));
  const WinnerTable table(fictional_gpu(), watched.source);
  table.find(kLlama, kFar);
  table.find(kOther, kFar);
  EXPECT_EQ(watched.of(invariant), 0);
  EXPECT_EQ(table.find(invariant, kMeasured).provenance, Provenance::exact);
}

TEST(WonProblems, OfEquallyNearWinnersOfTwoProblemsTheColdOneGoesFirst) {
  const DecodeProblem first{.q_heads = 8, .kv_heads = 2, .head_dim = 128}, second{.q_heads = 16, .kv_heads = 4};
  const auto table = WinnerTable::build(
      fictional_gpu(),
      layered({winner(first, {.batch = 4, .longest_context = 8192}, tuned_config(first, 64), 1, "warm"),
               winner(second, {.batch = 2, .longest_context = 8192}, tuned_config(second, 64), 2, "cold")}));
  const Choice choice = table.find(kLlama, {.batch = 1, .longest_context = 8192});
  EXPECT_EQ(choice.provenance, Provenance::nearest);
  EXPECT_EQ(choice.tuned_us, 2);
}

TEST(WonProblems, OneProblemWrittenTwoWaysIsOneProblem) {
  auto other_text = winner(kLlama, {.batch = 2, .longest_context = 64}, tuned_config(kLlama, 7), 7);
  other_text.winner.problem.insert(1, " ");
  const WinnerTable table(fictional_gpu(),
                          by_problem(layered({winner(kLlama, kMeasured, tuned_config(kLlama, 9), 9), other_text})));
  EXPECT_EQ(table.find(kLlama, kMeasured).tuned_us, 9);
  EXPECT_EQ(table.find(kLlama, {.batch = 2, .longest_context = 64}).tuned_us, 7);
}

TEST(WonProblems, WinnersOfAnUnreadableProblemAreCountedAtOnceAndOthersWhenTheyAreRead) {
  LayeredWinners winners = one_winner_each();
  winners.entries[0].winner.config = "{}";
  winners.entries[1].winner.problem = "{\"later\":1}";
  Watched watched(std::move(winners));
  const WinnerTable table(fictional_gpu(), watched.source);
  EXPECT_EQ(table.skipped(), 1u);
  table.find(kLlama, kMeasured);
  EXPECT_EQ(table.skipped(), 2u);
}

TEST(WonProblems, AWarningAboutReadingIsGivenOnce) {
  WinnersByProblem source = by_problem(one_winner_each());
  source.warnings = {"the site database was skipped"};
  source.read = [inner = std::move(source.read)](std::span<const std::string> problems) {
    LayeredWinners read = inner(problems);
    read.warnings = {"the user database was skipped"};
    return read;
  };
  const WinnerTable table(fictional_gpu(), source);
  EXPECT_EQ(table.warnings(), std::vector<std::string>{"the site database was skipped"});
  table.find(kLlama, kMeasured);
  table.find(kSmall, kMeasured);
  EXPECT_EQ(table.warnings(),
            (std::vector<std::string>{"the site database was skipped", "the user database was skipped"}));
}

TEST(WonProblems, ThreadsThatMeetReadEachProblemOnceAndAgree) {
  constexpr int kThreads = 8;
  std::vector<LayeredWinners::Entry> entries;
  const auto problem = [](int i) { return DecodeProblem{.q_heads = 4 * i, .kv_heads = i, .head_dim = 128}; };
  const auto shape = [](int i) { return Shape{.batch = i, .longest_context = 1000}; };
  for (int i = 1; i <= 16; ++i) entries.push_back(winner(problem(i), shape(i), tuned_config(problem(i), i), i));
  Watched watched(layered(std::move(entries)));
  const WinnerTable table(fictional_gpu(), watched.source);
  std::barrier start(kThreads);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      start.arrive_and_wait();
      for (int round = 0; round < 16; ++round) {
        const int i = 1 + (thread * 5 + round) % 16;
        const Choice choice = table.find(problem(i), shape(i));
        if (choice.provenance != Provenance::exact || choice.tuned_us != i) ++wrong;
        if (round == thread && table.find(problem(i), kFar).provenance != Provenance::nearest) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(watched.reads.size(), 16u);
  for (const auto& [text, count] : watched.reads) EXPECT_EQ(count, 1) << text;
  EXPECT_EQ(table.size(), 16u);
}

RC_GTEST_PROP(WonProblems, AnswersDoNotDependOnWhatWasAskedBefore, ()) {
  const auto problem = [] {
    return DecodeProblem{.q_heads = *rc::gen::element(8, 16, 32),
                         .kv_heads = *rc::gen::element(4, 8),
                         .head_dim = *rc::gen::element(64, 128),
                         .pdl = *rc::gen::arbitrary<bool>()};
  };
  const auto shape = [] {
    return Shape{.batch = *rc::gen::element(1, 2, 4), .longest_context = *rc::gen::element(100, 1000, 1100, 50000)};
  };
  std::vector<LayeredWinners::Entry> entries;
  const int count = *rc::gen::inRange(0, 30);
  for (int i = 0; i < count; ++i) {
    const DecodeProblem of = problem();
    entries.push_back(winner(of, shape(), tuned_config(of, 1 + i), 1 + i, *rc::gen::element("cold", "warm")));
  }
  const WinnerTable all = WinnerTable::build(fictional_gpu(), layered(entries));
  const WinnerTable lazy(fictional_gpu(), by_problem(layered(entries)));
  const int questions = *rc::gen::inRange(1, 12);
  for (int i = 0; i < questions; ++i) {
    const DecodeProblem asked = problem();
    const Shape at = shape();
    const Choice expected = all.find(asked, at), got = lazy.find(asked, at);
    RC_ASSERT(got.provenance == expected.provenance && got.config == expected.config);
    RC_ASSERT(got.tuned_us == expected.tuned_us && got.tuned_shape == expected.tuned_shape);
  }
}

}  // namespace
}  // namespace leanattn
