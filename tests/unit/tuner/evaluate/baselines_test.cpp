// baselines_test.cpp -- which kernels and grids stand for FlashAttention-2 and FlashDecoding.
#include "tuner/evaluate/baselines.hpp"

#include <gtest/gtest.h>

#include "runtime/lookup/specs.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

class Baselines : public ::testing::Test {
 protected:
  KernelSpec waiting() const {
    KernelSpec spec = base_spec(device.arch, problem);
    spec.fixup = FixUp::wait;
    return spec;
  }
  DeviceFacts device = fictional_gpu();
  DecodeProblem problem{.q_heads = 32, .kv_heads = 32};
  const Shape few{.batch = 1, .longest_context = 65536};    // 32 output tiles
  const Shape many{.batch = 16, .longest_context = 65536};  // 512 of them
};

TEST_F(Baselines, FlashAttention2HasOneCtaForEachOutputTile) {
  const auto configs = baseline_configs("fa2", {device, problem, many}, base_spec(device.arch, problem), 1);
  ASSERT_EQ(configs.size(), 1u);
  EXPECT_EQ(configs[0].grid, 512);
}

TEST_F(Baselines, FlashDecodingHasEquallyManyCtasForEachOutputTile) {
  const auto configs = baseline_configs("fd", {device, problem, few}, base_spec(device.arch, problem), 2);
  ASSERT_GT(configs.size(), 3u);
  for (const Config& config : configs) {
    EXPECT_EQ(config.grid % 32, 0);
    EXPECT_LE(config.grid, 4 * device.sm_count);
  }
}

TEST_F(Baselines, CtasThatWaitForEachOtherAreNoMoreThanAnSmHolds) {
  for (const char* mode : {"fa2", "fd"}) {
    EXPECT_TRUE(baseline_configs(mode, {device, problem, many}, waiting(), 1).empty()) << mode;
    const auto configs = baseline_configs(mode, {device, problem, few}, waiting(), 1);
    EXPECT_FALSE(configs.empty()) << mode;
    for (const Config& config : configs) EXPECT_LE(config.grid, device.sm_count) << mode;
  }
}

TEST_F(Baselines, WhereTheyWouldBeMoreTheSameKernelWithTicketsTakesPart) {
  KernelSpec ticket = waiting();
  ticket.fixup = FixUp::ticket;
  EXPECT_EQ(baseline_kernels({device, problem, few}, {waiting()}), std::vector{waiting()});
  EXPECT_EQ(baseline_kernels({device, problem, many}, {waiting()}), (std::vector{waiting(), ticket}));
  EXPECT_EQ(baseline_kernels({device, problem, many}, {waiting(), ticket}), (std::vector{waiting(), ticket}));
}

}  // namespace
}  // namespace leanattn
