// finished_row_test.cpp -- what becomes of a finished row: the factor of its O, and its log-sum-exp, with every mixture
// of tokens and sink logits. merge/output.cuh is compiled here as it is.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {
namespace finished_row {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wold-style-cast"

// ---- what CUDA and the modules before give ----
using u32 = unsigned;
using i64 = long long;
#define LEAN_DEVICE inline
constexpr float kNegInf = -INFINITY;
constexpr bool kLse = true, kSinkLogits = true, kHasScales = false;
constexpr int kGroup = 4, kSecondPair = 8;
struct float4 {
  float x = 0, y = 0, z = 0, w = 0;
};
struct RowState {
  float max, sum;
};
struct Row {
  int head = 0, token = 0;
  bool valid = true;
};
struct Segment {
  struct {
    int first = 0;
  } query;
  int request = 0, kv_head = 0, row_block = 0;
};
struct LeanDecodeArgs {
  char* o = nullptr;
  float* lse = nullptr;
  const float* sink_logits = nullptr;
  i64 o_stride_batch = 0, o_stride_token = 0, o_stride_head = 0;
  int kv_heads = 1;
  float scale_log2 = 1;
};
struct Output;
struct Element {
  static u32 pack(float, float) { return 0; }
};
template <class Query>
Row row_of(const Query&, int, int) {
  return {};
}
template <class Query>
i64 row_offset(int, const Query&, int, const Row&, i64, i64, i64) {
  return 0;
}
inline int column_in_row(int column) { return column; }
inline int column_row(int) { return 0; }
inline int first_dim(int position) { return position; }
inline float output_scale(const LeanDecodeArgs&, int) { return 1; }
inline float reference_of(float max) { return max == kNegInf ? 0.0f : max; }
inline float exp2_approx(float x) { return std::exp2(x); }
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }
// NOLINTEND(bugprone-reserved-identifier)

#include "templates/merge/output.cuh"
#undef LEAN_DEVICE
#pragma GCC diagnostic pop

struct Finished {
  float factor, lse;
};

/// The row's largest score is in natural units, as is the sink logit.
Finished finish(float max, float sum, float sink) {
  constexpr float kLog2OfE = 1.44269504f;
  Finished finished{};
  LeanDecodeArgs args;
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
