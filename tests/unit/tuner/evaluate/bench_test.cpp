// bench_test.cpp -- what a line of `leanattn bench` says of its samples.
#include "tuner/evaluate/bench.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

/// The bandwidth that is printed for requests of `lengths` when each launch takes `us`.
double printed_gb_per_s(const DecodeProblem& problem, const std::vector<int>& lengths, double us) {
  const std::vector<double> samples(9, us), read(9, us / 2);
  return bench_line("lean", samples, read, kv_bytes(problem, RequestLengths{.context_lengths = lengths})).gb_per_s;
}

TEST(BenchLine, SaysTheBandwidthOfTheBytesThatTheCacheReallyHas) {
  DecodeProblem problem{.q_heads = 32, .kv_heads = 4};
  const std::vector<int> lengths{256 << 10};
  EXPECT_NEAR(printed_gb_per_s(problem, lengths, 132), 4067, 1);
  problem.features.kv_format = KvFormat::fp8_e4m3;
  EXPECT_NEAR(printed_gb_per_s(problem, lengths, 66), 4067, 1);
  problem.features.v_head_dim = 64;
  EXPECT_NEAR(printed_gb_per_s(problem, lengths, 49.5), 4067, 1);
  problem.features.window = 128 << 10;
  EXPECT_NEAR(printed_gb_per_s(problem, lengths, 24.75), 4067, 1);
}

TEST(BenchLine, ComparesWithTheReadLimitOfTheSameRounds) {
  const std::vector<double> samples{20, 22, 24}, read{10, 11, 12};
  const BenchLine line = bench_line("fd", samples, read, 22'000);
  EXPECT_EQ(line.mode, "fd");
  EXPECT_DOUBLE_EQ(line.median_us, 22);
  EXPECT_DOUBLE_EQ(line.gb_per_s, 1);
  EXPECT_DOUBLE_EQ(line.ratio_to_read, 2);
  EXPECT_EQ(line.samples_us, samples);
}

}  // namespace
}  // namespace leanattn
