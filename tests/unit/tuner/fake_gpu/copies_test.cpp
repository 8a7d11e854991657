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
  std::vector<DecodeProblem> all(11, dense);
  all[1].features.page_size = 16;
  all[2].features.page_size = 16, all[2].features.v_head_dim = 64;
  all[3].layout = KvLayout::strided;
  all[4].features.page_size = 64, all[4].features.kv_format = KvFormat::int8, all[4].features.kv_scale = KvScale::token;
  all[5].kv_heads = 1, all[5].head_dim = 576;
  all[5].features.page_size = 64, all[5].features.latent = true, all[5].features.v_head_dim = 512;
  for (DecodeProblem* const problem : {&all[6], &all[7]}) {
    problem->layout = KvLayout::strided;
    problem->features.page_size = 16, problem->features.kv_scale = KvScale::in_row;
  }
  all[6].features.kv_format = KvFormat::fp8_e4m3;
  all[7].features.kv_format = KvFormat::int4;
  all[8].features.kv_format = KvFormat::int4, all[8].features.kv_scale = KvScale::token;
  all[9].features.kv_format = all[10].features.kv_format = KvFormat::nvfp4;
  all[10].features.page_size = 16;
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
      const bool shared = made->v_buffer().bytes() == 0;
      EXPECT_EQ(shared, problem.features.latent || problem.features.kv_scale == KvScale::in_row);
      EXPECT_EQ(DecodeCase::bytes_of_copy(problem, lengths), made->kv_copy_bytes() * (shared ? 1 : 2))
          << to_json(problem);
    }
  }
  cuCtxSetCurrent(nullptr);
}

TEST(Copies, AreReadInTwoAlignedHalvesThatDoNotOverlap) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
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
      SCOPED_TRACE(to_json(problem));
      for (const bool padded : {false, true}) {
        const auto made =
            DecodeCase::create(*kernels, problem, {1000, 77}, {.padded = padded, .kv_copies = 3}, stream->get());
        ASSERT_TRUE(made) << made.error().message;
        for (int copy = 0; copy < 3; ++copy) {
          const auto halves = made->read_halves(copy);
          const auto first = reinterpret_cast<std::uintptr_t>(halves.first),
                     second = reinterpret_cast<std::uintptr_t>(halves.second),
                     bytes = static_cast<std::uintptr_t>(halves.bytes_each);
          EXPECT_EQ(first % 16, 0);
          EXPECT_EQ(second % 16, 0);
          EXPECT_TRUE(first + bytes <= second || second + bytes <= first);
          EXPECT_LE(2 * halves.bytes_each, made->kv_bytes());
          EXPECT_GT(2 * halves.bytes_each, made->kv_bytes() - 32);
          // Each copy's own bytes of K, and of V where they have a buffer.
          const auto k = reinterpret_cast<std::uintptr_t>(made->k_buffer().at(copy * made->kv_copy_bytes())),
                     end = k + static_cast<std::uintptr_t>(made->kv_copy_bytes());
          EXPECT_EQ(first, k);
          EXPECT_LE(first + bytes, end);
          if (made->v_buffer().bytes() == 0) EXPECT_LE(second + bytes, end);
        }
      }
    }
  }
  cuCtxSetCurrent(nullptr);
}

TEST(Copies, OfEveryCacheCanStandForWhatIsRead) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
  {
    const auto cubins = open_cubin_db(std::nullopt, nullptr);
    const auto device = device_facts(0);
    ASSERT_TRUE(device) << device.error().message;
    for (const DecodeProblem& problem : problems()) {
      auto backend = GpuBackend::create(*device, problem, L2Policy::cold, cubins.get());
      ASSERT_TRUE(backend) << backend.error().message;
      const auto begun = (*backend)->begin_shape({.batch = 2, .longest_context = 300});
      EXPECT_TRUE(begun) << to_json(problem) << ": " << begun.error().message;
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
