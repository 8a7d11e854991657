// gpu_fixture.hpp -- GpuTest: one context and one VerifyRunner for all GPU tests. Without a device the tests are
// skipped, with the reason.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "leanattn/leanattn.h"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu.hpp"
#include "tuner/verify/runner.hpp"

namespace leanattn {

/// What a GPU test needs, or the reason why it cannot have it.
struct GpuUnderTest {
  std::optional<Context> context;
  std::optional<VerifyRunner> runner;  // It is destroyed before the context.
  std::string reason;

  /// The first call makes it, and it lives until the process ends.
  static GpuUnderTest& instance() {
    static GpuUnderTest gpu;
    static const bool ready = gpu.open();
    (void)ready;
    return gpu;
  }

 private:
  bool open() {
    const auto device = device_facts(0);
    if (!device) return fails(device.error());
    auto retained = Context::retain(0);
    if (!retained) return fails(retained.error());
    context.emplace(std::move(*retained));
    auto made = VerifyRunner::create({}, *device, nullptr, {}, nullptr);
    if (!made) return fails(made.error());
    runner.emplace(std::move(*made));
    return true;
  }
  bool fails(const Error& error) {
    reason = error.message;
    return false;
  }
};

/// What a caller of the public interface passes for a decode case without features.
inline leanattn_decode_args to_public(const LeanDecodeArgs& block, bool lse) {
  leanattn_decode_args args;
  leanattn_decode_args_init(&args);
  args.q = block.q, args.k = block.k, args.v = block.v, args.o = block.o;
  args.lse = lse ? block.lse : nullptr;
  args.context_lengths = block.context_lengths;
  args.q_stride_batch = block.q_stride_batch, args.q_stride_head = block.q_stride_head;
  args.k_stride_batch = block.k_stride_batch, args.k_stride_head = block.k_stride_head;
  args.k_stride_token = block.k_stride_token;
  args.v_stride_batch = block.v_stride_batch, args.v_stride_head = block.v_stride_head;
  args.v_stride_token = block.v_stride_token;
  args.o_stride_batch = block.o_stride_batch, args.o_stride_head = block.o_stride_head;
  args.batch = block.batch;
  args.context_capacity = block.context_capacity;
  args.scale = block.scale_log2 * 0.693147180559945309f;
  return args;
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    GpuUnderTest& gpu = GpuUnderTest::instance();
    if (!gpu.runner) GTEST_SKIP() << "no usable GPU: " << gpu.reason;
    runner = &*gpu.runner;
    stream = runner->stream();
    RecordProperty("seed", std::to_string(runner->options().seed));
  }

  /// Loads the first spec of a plan's kernel that compiles.
  std::unique_ptr<LoadedKernel> load(const VerifyKernel& kernel) {
    VerifyGroup group;
    auto loaded = runner->load(group, compile_choice(kernel, nullptr));
    if (!loaded) {
      ADD_FAILURE() << loaded.error().message;
      return nullptr;
    }
    for (const std::string& failure : group.failures) ADD_FAILURE() << failure;
    return std::move(*loaded);
  }

  /// Fails the test with every recorded failure, and also when nothing was checked.
  static void expect_clean(const VerifyGroup& group) {
    EXPECT_GT(group.cases, 0);
    EXPECT_EQ(group.failed, 0);
    for (const std::string& failure : group.failures) ADD_FAILURE() << failure;
  }

  VerifyRunner* runner = nullptr;
  CUstream_st* stream = nullptr;
};

}  // namespace leanattn
