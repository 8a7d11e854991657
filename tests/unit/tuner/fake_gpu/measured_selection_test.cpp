// measured_selection_test.cpp -- in which order the lists of a selection are when candidates are timed, on a fictional
// GPU. It executes nothing; the test writes the lists in the place of the kernel that does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/cuda/nvrtc.hpp"
#include "runtime/lookup/default_config.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"
#include "tuner/backend/gpu_backend.hpp"

namespace leanattn {
namespace {

TEST(MeasuredSelection, ListsAreInNoOrderAsAnIndexerLeavesThem) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = FakeGpu{};
  fake_gpu().memory_bytes = std::int64_t{4} << 30;
  fake_gpu().argument_bytes = sizeof(LeanDecodeArgs);
  fake_gpu().attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                           {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                           {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
                           {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
                           {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
                           {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
                           {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
                           {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32}};
  constexpr int kBatch = 3, kCount = 100;
  int filled = 0;
  fake_gpu().run = [&](const std::string& kernel, void** params) {
    if (kernel != "check_fill_selection") return;
    const auto& args = *static_cast<const LeanDecodeArgs*>(params[0]);
    ASSERT_GT(args.selection_capacity, kCount) << "so that there are entries that do not count";
    ++filled;
    for (int request = 0; request < kBatch; ++request) {
      const_cast<int*>(args.selected_counts)[request] = kCount;
      int* const list = const_cast<int*>(args.selection) + request * args.selection_stride_batch;
      std::iota(list, list + args.selection_capacity, 1000 * request);
    }
  };
  {
    const auto cubins = open_cubin_db(std::nullopt, nullptr);
    const auto device = device_facts(0);
    ASSERT_TRUE(device) << device.error().message;
    DecodeProblem problem{.q_heads = 16, .kv_heads = 1, .head_dim = 128};
    problem.features.page_size = 64;
    problem.features.selection_block = 1;
    problem.features.selection_in_pool = true;
    auto backend = GpuBackend::create(*device, problem, L2Policy::cold, cubins.get());
    ASSERT_TRUE(backend) << backend.error().message;
    const Shape shape{.batch = kBatch, .longest_context = 256};
    const auto begun = (*backend)->begin_shape(shape);
    ASSERT_TRUE(begun) << begun.error().message;
    ASSERT_EQ(filled, 1);
    const Config config = default_config(*device, problem, shape);
    const auto compiled = (*backend)->compile(config.spec);
    ASSERT_TRUE(compiled) << compiled.error().message << compiled.error().log;
    fake_gpu().launches.clear();
    const auto times = (*backend)->time({&config, 1});
    ASSERT_TRUE(times) << times.error().message;
    int launches = 0;
    for (const FakeLaunch& launch : fake_gpu().launches) {
      if (launch.kernel != kernel_name(config.spec)) continue;
      ++launches;
      LeanDecodeArgs args;
      std::memcpy(&args, launch.arguments.data(), sizeof args);
      for (int request = 0; request < kBatch; ++request) {
        const int* const list = args.selection + request * args.selection_stride_batch;
        std::vector<int> ordered(list, list + args.selection_capacity);
        EXPECT_FALSE(std::is_sorted(list, list + kCount));
        EXPECT_FALSE(std::is_sorted(list, list + kCount, std::greater<>()));
        std::sort(ordered.begin(), ordered.begin() + kCount);
        for (int i = 0; i < args.selection_capacity; ++i)
          ASSERT_EQ(ordered[static_cast<std::size_t>(i)], 1000 * request + i)
              << "the same entries, and no others moved";
      }
    }
    EXPECT_GT(launches, 0);
  }
  cuCtxSetCurrent(nullptr);
  EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
}

}  // namespace
}  // namespace leanattn
