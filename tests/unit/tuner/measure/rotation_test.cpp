// rotation_test.cpp -- copies of K and V cover the L2, and are counted in the bytes that a launch reads.
#include "tuner/measure/rotation.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace leanattn {
namespace {

TEST(Rotation, CoversThreeTimesTheL2AndWholeTurns) {
  constexpr std::int64_t kL2 = 60 << 20, kMemory = 100ll << 30;
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{4} << 20, std::int64_t{134} << 20, std::int64_t{8} << 30}) {
    const Rotation cold = rotation_for(bytes, kL2, kMemory, 10, true);
    EXPECT_EQ(cold.launches % cold.copies, 0);
    EXPECT_GE(cold.launches, 2);
    EXPECT_TRUE(bytes == 1 || cold.copies * bytes >= 3 * kL2);
    EXPECT_EQ(rotation_for(bytes, kL2, kMemory, 10, false).copies, 1);
  }
  EXPECT_LE(rotation_for(30 << 20, kL2, 70 << 20, 10, true).copies, 2);
}

TEST(Rotation, SaysWhereTooFewCopiesLeaveThemInL2) {
  constexpr std::int64_t kL2 = 50 << 20, kMemory = 100ll << 30;
  const auto stays = [&](std::int64_t bytes, std::int64_t memory) {
    return rotation_for(bytes, kL2, memory, 10, true).stays_in_l2;
  };
  EXPECT_FALSE(stays(4 << 20, kMemory));
  EXPECT_FALSE(stays(64 << 10, kMemory)) << "a graph has room for 2048 copies, which are 2.5 times the L2";
  EXPECT_TRUE(stays(32 << 10, kMemory));
  EXPECT_EQ(rotation_for(32 << 10, kL2, kMemory, 10, true).copies, 2048);
  EXPECT_EQ(rotation_for(32 << 10, kL2, kMemory, 10, true).launches, 2048);
  EXPECT_TRUE(stays(30 << 20, 70 << 20)) << "the memory has room for two";
  EXPECT_FALSE(rotation_for(32 << 10, kL2, kMemory, 10, false).stays_in_l2) << "which is what a warm L2 is";
}

TEST(Rotation, CoversTheL2WithWhatIsReadOfOneByteCachesAndWindows) {
  constexpr std::int64_t kL2 = 60 << 20, kMemory = 100ll << 30;
  DecodeProblem problem;
  const std::vector<int> lengths(1, 131072);
  const KvFootprint plain = kv_footprint(problem, lengths);
  EXPECT_EQ(plain.read, kv_bytes(problem, {.batch = 1, .longest_context = 131072}));
  EXPECT_EQ(plain.allocated, plain.read);
  problem.features.kv_format = KvFormat::int8;
  EXPECT_EQ(kv_footprint(problem, lengths).read, plain.read / 2);
  problem.features.window = 1024;
  const KvFootprint windowed = kv_footprint(problem, lengths);
  EXPECT_EQ(windowed.allocated, plain.read / 2);
  EXPECT_EQ(windowed.read, plain.read / 2 / 128);
  const Rotation cold = rotation_for(windowed.read, kL2, kMemory, 10, true);
  EXPECT_GE(cold.copies * windowed.read, 3 * kL2) << "else the tokens in the window stay in L2";
  // Every request has room for the longest. Even no tokens at all can be divided by.
  const KvFootprint ragged = kv_footprint(DecodeProblem{}, std::vector<int>{1000, 0, 10});
  EXPECT_EQ(ragged.allocated * 1010, ragged.read * 3000);
  EXPECT_EQ(kv_footprint(problem, std::vector<int>{0, 0}).read, 1);
}

TEST(Rotation, ACacheHoldsMoreThanWhatQueryTokensSelect) {
  DecodeProblem problem;
  const std::int64_t all = kv_footprint(problem, std::vector<int>{1000}).read;
  problem.features = {.page_size = 64, .q_len = 2, .selection_block = 64};
  const KvFootprint selected = kv_footprint(problem, std::vector<int>{1000});
  EXPECT_EQ(selected.read, 2 * all) << "each query token has a list of its own";
  EXPECT_EQ(selected.allocated, kMeasuredSpread * all);
  EXPECT_GT(kv_footprint(problem, std::vector<int>{0x7fffffff}).allocated, 0) << "which does not overflow";
}

}  // namespace
}  // namespace leanattn
