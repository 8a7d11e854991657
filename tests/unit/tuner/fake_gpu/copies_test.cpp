// copies_test.cpp -- the copies of K and V that launches rotate over fit into the memory of a fictional GPU, which
// executes nothing.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/cuda/current_context.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/backend/gpu_backend.hpp"
#include "tuner/measure/rotation.hpp"
#include "tuner/oracle/decode_case.hpp"

namespace leanattn {
namespace {

/// Problems whose caches take more than their tokens do.
std::vector<DecodeProblem> problems() {
  const DecodeProblem dense{.q_heads = 16, .kv_heads = 2, .head_dim = 128};
  std::vector<DecodeProblem> all(6, dense);
  all[1].features.page_size = 16;
  all[2].features.page_size = 16, all[2].features.v_head_dim = 64;
  all[3].layout = KvLayout::strided;
  all[4].features.page_size = 64, all[4].features.kv_format = KvFormat::int8, all[4].features.kv_scale = KvScale::token;
  all[5].kv_heads = 1, all[5].head_dim = 576;
  all[5].features.page_size = 64, all[5].features.latent = true, all[5].features.v_head_dim = 512;
  return all;
}

TEST(Copies, OfACaseWithoutOptionsTakeWhatIsExpectedOfThem) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
  const std::vector<int> lengths{1000, 0, 77};
  {
    const auto cubins = open_cubin_db(std::nullopt, nullptr);
    const auto context = Context::retain(0);
    ASSERT_TRUE(context) << context.error().message;
    const CurrentContext scope(context->get());
    const auto kernels = OracleKernels::load({9, 0, true}, cubins.get());
    ASSERT_TRUE(kernels) << kernels.error().message;
    const auto stream = Stream::create();
    ASSERT_TRUE(stream);
    for (const DecodeProblem& problem : problems()) {
      const auto made = DecodeCase::create(*kernels, problem, lengths, {}, stream->get());
      ASSERT_TRUE(made) << made.error().message;
      EXPECT_EQ(DecodeCase::bytes_of_copy(problem, lengths), made->kv_copy_bytes() * (problem.features.latent ? 1 : 2))
          << to_json(problem);
    }
  }
  cuCtxSetCurrent(nullptr);
}

TEST(Copies, OfAWindowOverAPagedCacheFitIntoTheMemory) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
  fake_gpu().memory_bytes = 256 << 20;
  {
    const auto cubins = open_cubin_db(std::nullopt, nullptr);
    const auto device = device_facts(0);
    ASSERT_TRUE(device) << device.error().message;
    DecodeProblem problem{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
    problem.features.page_size = 16, problem.features.window = 128;
    auto backend = GpuBackend::create(*device, problem, L2Policy::cold, cubins.get());
    ASSERT_TRUE(backend) << backend.error().message;
    // A launch reads half a megabyte of 17, so that the copies are as many as the memory holds.
    const auto begun = (*backend)->begin_shape({.batch = 1, .longest_context = 4096});
    ASSERT_TRUE(begun) << begun.error().message;
    EXPECT_GT(fake_gpu().allocated_bytes, fake_gpu().memory_bytes / 2);
    EXPECT_LT(fake_gpu().allocated_bytes, fake_gpu().memory_bytes * 9 / 10);
  }
  cuCtxSetCurrent(nullptr);
  EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
}

}  // namespace
}  // namespace leanattn
