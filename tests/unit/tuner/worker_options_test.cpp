// Time limits of workers' calls, and the queue from which equal devices take their shapes.
#include "tuner/worker_options.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <thread>

#include "tune_simulated_gpu.hpp"
#include "tuner/shape_queue.hpp"

namespace leanattn {
namespace {

using std::chrono::milliseconds;
using Kind = WorkerCall::Kind;

class CallLimits : public ::testing::Test {
 protected:
  WorkerCall call(Kind kind, const Shape& of, std::size_t candidates) {
    shape = of;
    const Config config = default_config(device, problem, shape);
    return {.kind = kind,
            .device = &device,
            .problem = &problem,
            .shape = &shape,
            .configs = std::vector<Config>(candidates, config)};
  }

  DeviceFacts device = simulated_device();
  DecodeProblem problem;
  Shape shape;
};

TEST_F(CallLimits, AreFarAboveThePredictionAndNeverBelowHalfAMinute) {
  for (const Shape& of : {Shape{.batch = 1, .longest_context = 1}, Shape{.batch = 1, .longest_context = 8192},
                          Shape{.batch = 64, .longest_context = 131072}}) {
    for (const Kind kind : {Kind::check, Kind::time}) {
      const WorkerCall asked = call(kind, of, 24);
      const double predicted_us =
          24 * predict_us(default_parameters(device), device, problem, shape, asked.configs[0], 1);
      EXPECT_GE(default_call_limit(asked), milliseconds(30'000));
      EXPECT_GE(static_cast<double>(default_call_limit(asked).count()) * 1e3, 100 * predicted_us);
    }
    EXPECT_GE(default_call_limit(call(Kind::prepare, of, 0)), milliseconds(60'000));
  }
  EXPECT_GE(default_call_limit({.kind = Kind::start}), milliseconds(60'000));
  EXPECT_GE(default_call_limit({.kind = Kind::compile}), milliseconds(60'000));
}

TEST_F(CallLimits, GrowWithTheWork) {
  const Shape small{.batch = 1, .longest_context = 1024}, large{.batch = 64, .longest_context = 1 << 20};
  for (const Kind kind : {Kind::prepare, Kind::check, Kind::time})
    EXPECT_LT(default_call_limit(call(kind, small, 1)), default_call_limit(call(kind, large, 1)));
  EXPECT_LT(default_call_limit(call(Kind::time, large, 1)), default_call_limit(call(Kind::time, large, 24)));
}

TEST_F(CallLimits, StayWithinADayForAbsurdShapes) {
  const Shape absurd{.batch = 1 << 20, .longest_context = std::int64_t{1} << 40};
  for (const Kind kind : {Kind::prepare, Kind::check, Kind::time}) {
    EXPECT_GE(default_call_limit(call(kind, absurd, 1)), milliseconds(30'000));
    EXPECT_LE(default_call_limit(call(kind, absurd, 1)), std::chrono::hours(24));
  }
}

TEST_F(CallLimits, OfCandidatesCanBeSetAndTheOthersStayAsTheyAre) {
  const Shape of{.batch = 1, .longest_context = 8192};
  const WorkerOptions options{.candidate_limit = milliseconds(123)};
  EXPECT_EQ(limit_of(options, call(Kind::check, of, 1)), milliseconds(123));
  EXPECT_EQ(limit_of(options, call(Kind::time, of, 24)), milliseconds(123));
  for (const Kind kind : {Kind::start, Kind::compile, Kind::prepare})
    EXPECT_EQ(limit_of(options, call(kind, of, 0)), default_call_limit(call(kind, of, 0)));
}

TEST(ShapeQueue, HandsOutEveryShapeOnceAndCountsTheTurnsThatAreLeft) {
  rc::check("turns", [] {
    const auto shapes = *rc::gen::inRange<std::size_t>(0, 20), takers = *rc::gen::inRange<std::size_t>(1, 9);
    ShapeQueue queue(shapes, takers);
    for (std::size_t i = 0; i < shapes; ++i) {
      const auto turn = queue.take();
      RC_ASSERT(turn.has_value());
      RC_ASSERT(turn->index == i);
      // As many rounds of all takers as what is left needs: the last shapes may have all the time there is.
      RC_ASSERT(turn->turns_left * takers >= shapes - i);
      RC_ASSERT((turn->turns_left - 1) * takers < shapes - i);
    }
    RC_ASSERT(!queue.take());
  });
}

TEST(ShapeQueue, WhatIsGivenBackIsNext) {
  ShapeQueue queue(3, 2);
  EXPECT_EQ(queue.take()->index, 0u);
  EXPECT_EQ(queue.take()->index, 1u);
  queue.give_back(0);
  EXPECT_EQ(queue.take()->index, 0u);
  EXPECT_EQ(queue.take()->index, 2u);
  EXPECT_FALSE(queue.take());
}

TEST(ShapeQueue, OneTakerSharesItsTimeByWeight) {
  ShapeQueue queue(3, 1, {1, 1, 6});
  EXPECT_DOUBLE_EQ(queue.take()->share, 1.0 / 8);
  EXPECT_DOUBLE_EQ(queue.take()->share, 1.0 / 7);
  EXPECT_DOUBLE_EQ(queue.take()->share, 1.0);
  ShapeQueue equal(4, 1);
  EXPECT_DOUBLE_EQ(equal.take()->share, 1.0 / 4);
}

TEST(ShapeQueue, SeveralTakersShareWhatEachOfThemWillHave) {
  // One turn each: neither may leave its device idle for the other's shape.
  ShapeQueue two(2, 2, {1, 3});
  EXPECT_DOUBLE_EQ(two.take()->share, 1.0);
  EXPECT_DOUBLE_EQ(two.take()->share, 1.0);
  // Two turns each, the second of unknown weight: two on average.
  ShapeQueue four(4, 2, {6, 1, 2, 3});
  EXPECT_DOUBLE_EQ(four.take()->share, 6.0 / (6 + 2));
  EXPECT_DOUBLE_EQ(four.take()->share, 1.0 / (1 + 2.5));
  // What is given back weighs again.
  four.give_back(0);
  EXPECT_DOUBLE_EQ(four.take()->share, 6.0 / (6 + 2.5));
}

TEST(ShapeQueue, ThreadsNeverGetTheSameShape) {
  constexpr std::size_t kShapes = 5000;
  ShapeQueue queue(kShapes, 4);
  std::vector<std::vector<std::size_t>> taken(4);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&queue, &mine] {
      while (const auto turn = queue.take()) mine.push_back(turn->index);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::size_t> all;
  std::size_t count = 0;
  for (const auto& mine : taken) all.insert(mine.begin(), mine.end()), count += mine.size();
  EXPECT_EQ(all.size(), kShapes);
  EXPECT_EQ(count, kShapes);
}

}  // namespace
}  // namespace leanattn
