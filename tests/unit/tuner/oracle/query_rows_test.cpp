// query_rows_test.cpp -- the rows that the kernels of a check take: one for each query token that there is, in the
// order in which the tokens lie. templates/check/layout.cuh is compiled here as it is.
#include <gtest/gtest.h>

#include <vector>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace query_rows {

#include "tests/device/begin.cuh"

#include "templates/check/features.cuh"

#include "templates/check/data.cuh"

#include "templates/check/layout.cuh"
#include "tests/device/end.cuh"

TEST(CheckLayout, EveryQueryTokenOfARaggedBatchIsARow) {
  for (const std::vector<int>& offsets :
       {std::vector{0, 3}, {0, 0, 0, 5, 5, 6, 306, 306}, {0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 2056}}) {
    LeanDecodeArgs args{};
    args.batch = static_cast<int>(offsets.size()) - 1, args.q_offsets = offsets.data(),
    args.query_tokens = offsets.back();
    CheckFeatures check{};
    check.q_len = 1 << 17, check.ragged_q = 1;
    long long token = 0;
    for (int request = 0; request < args.batch; ++request) {
      for (int t = 0; t < check_query_tokens(args, check, request); ++t, ++token) {
        const CheckQueryToken found = check_query_token_at(args, check, token);
        ASSERT_EQ(found.request, request) << token;
        ASSERT_EQ(found.t, t) << token;
        ASSERT_EQ(check_query_token(args, check, request, t), token);
      }
    }
    EXPECT_EQ(check_all_query_tokens(args, check), token) << "rows of tokens that are not there";
  }
}

TEST(CheckLayout, RequestsWithEqualNumbersOfQueryTokensHaveAsManyRowsEach) {
  LeanDecodeArgs args{};
  args.batch = 3;
  CheckFeatures check{};
  check.q_len = 4;
  EXPECT_EQ(check_all_query_tokens(args, check), 12);
  EXPECT_EQ(check_query_token_at(args, check, 6).request, 1);
  EXPECT_EQ(check_query_token_at(args, check, 6).t, 2);
}

}  // namespace query_rows
}  // namespace
}  // namespace leanattn::device
