// names_test.cpp -- shapes, times and ratios are written the way people say them.
#include "tuner/report/names.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

using namespace detail;

TEST(ReportNames, ShapesAndTimesReadAsPeopleSayThem) {
  EXPECT_EQ(shape_name({.batch = 8, .max_batch = 0, .longest_context = 4096, .total_context = 0}), "8 x 4k");
  EXPECT_EQ(shape_name({.batch = 2, .max_batch = 0, .longest_context = 4096, .total_context = 5000}),
            "2 x up to 4k, 5000 in all");
  const Shape limit{.batch = 65, .longest_context = 8192, .mix = {.query_tokens = 2112}};
  EXPECT_EQ(shape_name(limit), "64 x 1 of 8k + 2048 of 8k");
  EXPECT_EQ(shape_name({.batch = 65, .longest_context = 8192, .total_context = 64 * 4096 + 8192, .mix = limit.mix}),
            "64 x 1 of 4k + 2048 of 8k");
  EXPECT_EQ(shape_name({.batch = 2, .longest_context = 8192, .mix = {.query_tokens = 16384}}), "2 x 8192 of 8k");
  EXPECT_EQ(shape_name({.batch = 5, .longest_context = 900, .total_context = 2000, .mix = {104, 2, 1801, 50000}}),
            "3 x 1 of ~66 + 2 x ~50 of ~900");
  EXPECT_EQ(us_name(7.156), "7.16");
  EXPECT_EQ(us_name(36.44), "36.4");
  EXPECT_EQ(us_name(475.4), "475");
  EXPECT_EQ(interval_name({.ratio = 1.5, .low = 0, .high = 0}), "1.50");
  EXPECT_EQ(interval_name({.ratio = 1.5, .low = 1.4, .high = 1.625}), "1.500 (1.400 to 1.625)");
  EXPECT_EQ(ratio_name({}), "-");
}

}  // namespace
}  // namespace leanattn
