// shape_queue_test.cpp -- the queue from which sessions on equal devices take their shapes.
#include "tuner/search/shape_queue.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>
#include <thread>

namespace leanattn {
namespace {

TEST(ShapeQueue, HandsOutEveryShapeOnceAndCountsTheTurnsThatAreLeft) {
  rc::check("turns", [] {
    const auto shapes = *rc::gen::inRange<std::size_t>(0, 20), takers = *rc::gen::inRange<std::size_t>(1, 9);
    ShapeQueue queue(shapes, takers);
    for (std::size_t i = 0; i < shapes; ++i) {
      const auto turn = queue.take();
      RC_ASSERT(turn.has_value());
      RC_ASSERT(turn->index == i);
      // All takers need so many rounds for the shapes that are left. The last shapes may have all the time there is.
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
  // Each has one turn, and neither may leave its device idle because of the other's shape.
  ShapeQueue two(2, 2, {1, 3});
  EXPECT_DOUBLE_EQ(two.take()->share, 1.0);
  EXPECT_DOUBLE_EQ(two.take()->share, 1.0);
  // Each has two turns. The weight of the second one is not known; on average it is two.
  ShapeQueue four(4, 2, {6, 1, 2, 3});
  EXPECT_DOUBLE_EQ(four.take()->share, 6.0 / (6 + 2));
  EXPECT_DOUBLE_EQ(four.take()->share, 1.0 / (1 + 2.5));
  // The weight of a shape that is given back counts again.
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
