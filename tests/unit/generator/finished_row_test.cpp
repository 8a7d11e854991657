// finished_row_test.cpp -- what becomes of a finished row: the factor of its O, and its log-sum-exp, with every mixture
// of tokens and sink logits. merge/output.cuh is compiled here as it is.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/device/instructions.hpp"

namespace leanattn::device {
namespace {
namespace finished_row {

#include "tests/device/begin.cuh"
constexpr bool kLse = true, kSinkLogits = true;
#include "tests/device/line.cuh"

#include "templates/merge/partial.cuh"

/// As attend modules have them.
constexpr int kSecondPair = 8;
inline int first_dim(int position) { return position; }

#include "templates/merge/output.cuh"

#include "tests/device/end.cuh"

struct Finished {
  float factor, lse;
};

/// The row's largest score is in natural units, as is the sink logit.
Finished finish(float max, float sum, float sink) {
  constexpr float kLog2OfE = 1.44269504f;
  Finished finished{};
  LeanDecodeArgs args{};
  args.sink_logits = &sink, args.scale_log2 = kLog2OfE;
  const Output output{.o = nullptr, .lse = &finished.lse, .valid = true, .head = 0, .kv_head = 0};
  finished.factor = finish_row(args, output, {max, sum});
  return finished;
}

TEST(FinishedRow, WithoutTokenAndWithoutSinkIsZeroWithAnLseOfMinusInfinity) {
  const Finished row = finish(kNegInf, 0, kNegInf);
  EXPECT_EQ(row.factor, 0);
  EXPECT_EQ(row.lse, kNegInf);
}

TEST(FinishedRow, WithoutTokenHasItsSinkLogitAlone) {
  for (const float sink : {-300.0f, 0.0f, 1.5f, 300.0f}) {
    const Finished row = finish(kNegInf, 0, sink);
    EXPECT_EQ(row.factor, 0);
    EXPECT_NEAR(row.lse, sink, 1e-4f);
  }
}

TEST(FinishedRow, WithoutSinkIsTheSoftmaxOfItsTokens) {
  for (const float max : {-300.0f, -2.0f, 0.0f, 300.0f}) {
    const Finished row = finish(max, 3, kNegInf);
    EXPECT_NEAR(row.factor, 1.0f / 3, 1e-6f);
    EXPECT_NEAR(row.lse, max + std::log(3.0f), 1e-4f);
  }
}

TEST(FinishedRow, CountsItsSinkOnceWhicheverIsLarger) {
  for (const float max : {-1.0f, 2.0f}) {
    const Finished row = finish(max, 3, 0.5f);
    const float denominator = 3 * std::exp(max) + std::exp(0.5f);
    EXPECT_NEAR(row.factor, std::exp(max) / denominator, 1e-6f);
    EXPECT_NEAR(row.lse, std::log(denominator), 1e-5f);
  }
}

}  // namespace finished_row
}  // namespace
}  // namespace leanattn::device
