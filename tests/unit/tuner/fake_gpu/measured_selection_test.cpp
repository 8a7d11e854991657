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
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/backend/gpu_backend.hpp"

namespace leanattn {
namespace {

TEST(MeasuredSelection, ListsAreInNoOrderAsAnIndexerLeavesThem) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  fake_gpu() = tuned_gpu();
  // Each KV head of each query token has a list of its own, and each token has a number of entries of its own.
  constexpr int kBatch = 3, kTokens = 2, kHeads = 2, kMostCount = 150;
  const auto for_each_list = [](const LeanDecodeArgs& args, const auto& visit) {
    for (int list = 0; list < kBatch * kTokens * kHeads; ++list) {
      const int head = list % kHeads, token = list / kHeads % kTokens, request = list / kHeads / kTokens;
      const int count = kMostCount - 10 * (list / kHeads);
      visit(const_cast<int*>(args.selection) + request * args.selection_stride_batch +
                token * args.selection_stride_token + head * args.selection_stride_head,
            count, 1000 * list);
    }
  };
  int filled = 0;
  fake_gpu().run = [&](const std::string& kernel, void** params) {
    if (kernel != "check_fill_selection") return;
    const auto& args = *static_cast<const LeanDecodeArgs*>(params[0]);
    ASSERT_GT(args.selection_capacity, kMostCount) << "so that there are entries that do not count";
    ASSERT_NE(args.selection_stride_head, 0) << "so that heads have lists of their own";
    ++filled;
    for (int i = 0; i < kBatch * kTokens; ++i) const_cast<int*>(args.selected_counts)[i] = kMostCount - 10 * i;
    for_each_list(args, [&](int* list, int, int first) { std::iota(list, list + args.selection_capacity, first); });
  };
  {
    const auto cubins = open_cubin_db(std::nullopt, nullptr);
    const auto device = device_facts(0);
    ASSERT_TRUE(device) << device.error().message;
    DecodeProblem problem{.q_heads = 16, .kv_heads = kHeads, .head_dim = 128};
    problem.features.q_len = kTokens;
    problem.features.page_size = 64;
    problem.features.selection_block = 1;
    problem.features.selection_in_pool = true;
    auto backend = GpuBackend::create(*device, problem, L2Policy::cold, cubins.get());
    ASSERT_TRUE(backend) << backend.error().message;
    const Shape shape{.batch = kBatch, .longest_context = 256};
    const auto begun = (*backend)->begin_shape(shape);
    ASSERT_TRUE(begun) << begun.error().message;
    ASSERT_EQ(filled, 1);
    const Config config = default_config({*device, problem, shape});
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
      for_each_list(args, [&](const int* list, int count, int first) {
        std::vector<int> ordered(list, list + args.selection_capacity);
        EXPECT_FALSE(std::is_sorted(list, list + count));
        EXPECT_FALSE(std::is_sorted(list, list + count, std::greater<>()));
        std::sort(ordered.begin(), ordered.begin() + count);
        for (int i = 0; i < args.selection_capacity; ++i)
          ASSERT_EQ(ordered[static_cast<std::size_t>(i)], first + i) << "the same entries, and no others moved";
      });
    }
    EXPECT_GT(launches, 0);
  }
  cuCtxSetCurrent(nullptr);
  EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
}

}  // namespace
}  // namespace leanattn
