// measured_requests_test.cpp -- on which requests candidates are timed where more is known of them than their shape,
// on a fictional GPU, and that their memory follows the query tokens that there are.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "runtime/cuda/nvrtc.hpp"
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/backend/gpu_backend.hpp"

namespace leanattn {
namespace {

TEST(MeasuredRequests, AStepOfPrefillBesideDecodeIsTimedAsItIsGiven) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
  const auto cubins = open_cubin_db(std::nullopt, nullptr);
  const auto device = device_facts(0);
  ASSERT_TRUE(device) << device.error().message;
  DecodeProblem problem{.q_heads = 8, .kv_heads = 2, .head_dim = 64};
  problem.features.q_len = kMostPrefillTokens, problem.features.ragged_q = true;
  auto backend = GpuBackend::create(*device, problem, L2Policy::cold, cubins.get());
  ASSERT_TRUE(backend) << backend.error().message;
  const Shape shape{.batch = 4, .longest_context = 4000, .total_context = 4600};
  const std::vector<int> contexts{200, 4000, 100, 300}, tokens{1, 600, 0, 3};
  const auto tokens_of = [&] {
    const DecodeCase& subject = (*backend)->decode_case();
    EXPECT_EQ(subject.args().query_tokens,
              std::accumulate(subject.query_tokens().begin(), subject.query_tokens().end(), 0));
    EXPECT_LT(subject.o_bytes(), (subject.args().query_tokens + 1) * 8 * 64 * 2) << "not as many as q_len allows";
    return subject.query_tokens();
  };
  const auto drawn = (*backend)->begin_shape(shape);
  ASSERT_TRUE(drawn) << drawn.error().message;
  EXPECT_NE(tokens_of(), tokens);
  (*backend)->stand_for_shape({contexts, tokens});
  const auto begun = (*backend)->begin_shape(shape);
  ASSERT_TRUE(begun) << begun.error().message;
  EXPECT_EQ(tokens_of(), tokens);
  EXPECT_EQ((*backend)->decode_case().context_lengths(), contexts);
  (*backend)->stand_for_shape({contexts, {1, 4001, 0, kMostPrefillTokens + 1}});
  EXPECT_FALSE((*backend)->begin_shape(shape));
}

}  // namespace
}  // namespace leanattn
