// fake_gpu_fixture.hpp -- FakeGpuEngine: real engines on fictional GPUs, with the real NVRTC and cubin.db.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "leanattn/leanattn.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/engine/engine.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {

class FakeGpuEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    if (!shared_directory_) shared_directory_ = std::make_unique<TemporaryDirectory>();
    directory_ = shared_directory_->path();
    fake_gpu() = FakeGpu{};
    fake_gpu().argument_bytes = sizeof(LeanDecodeArgs);
    fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
    fake_gpu().attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0;
  }
  void TearDown() override {
    if (directory_.empty()) return;
    cuCtxSetCurrent(nullptr);
    EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
  }
  static void TearDownTestSuite() { shared_directory_.reset(); }

  /// For tests that need an empty cache. The usual directory of the tests has the kernel from the second test on.
  void use_fresh_directory() {
    own_directory_ = std::make_unique<TemporaryDirectory>();
    directory_ = own_directory_->path();
  }

  Engine open(int device = 0) {
    EngineOptions options;
    options.device = device;
    options.cache_dir = directory_.string();
    auto engine = Engine::create(options);
    EXPECT_TRUE(engine) << engine.error().message;
    return std::move(*engine);
  }
  /// As with LEANATTN_DEBUG=1 in the environment.
  Engine open_debugging() {
    setenv("LEANATTN_DEBUG", "1", 1);
    Engine engine = open();
    unsetenv("LEANATTN_DEBUG");
    return engine;
  }

  static DecodeArgs args() {
    DecodeArgs args;
    args.q = reinterpret_cast<void*>(0x1000);
    args.k = reinterpret_cast<void*>(0x2000);
    args.v = reinterpret_cast<void*>(0x3000);
    args.o = reinterpret_cast<void*>(0x4000);
    args.context_lengths = reinterpret_cast<std::int32_t*>(0x5000);
    args.batch = 2;
    args.context_capacity = 1024;
    return args;
  }

  static LeanDecodeArgs last_launch_args() {
    LeanDecodeArgs block;
    std::memcpy(&block, fake_gpu().launches.back().arguments.data(), sizeof block);
    return block;
  }

  /// Whether the answer is an error of this kind, whose message says that, with a hint.
  template <class T>
  static void expect_refused(const Result<T>& answer, ErrorCode code, const std::string& what) {
    ASSERT_FALSE(answer) << what;
    EXPECT_EQ(answer.error().code, code) << answer.error().message;
    EXPECT_NE(answer.error().message.find(what), std::string::npos) << answer.error().message;
    EXPECT_FALSE(answer.error().hint.empty()) << what;
  }

  const Problem problem_{};
  const PlanShape shape_{2, 8, 1024};
  std::filesystem::path directory_;
  std::unique_ptr<TemporaryDirectory> own_directory_;
  inline static std::unique_ptr<TemporaryDirectory> shared_directory_;
};

/// A workspace, in host memory as all memory of the fake GPU.
struct Workspace {
  explicit Workspace(std::int64_t size)
      : bytes((size + 255) / 256 * 256), data(std::aligned_alloc(256, static_cast<std::size_t>(bytes))) {
    std::memset(data, 0xff, static_cast<std::size_t>(bytes));
  }
  ~Workspace() { std::free(data); }
  std::int64_t bytes;
  void* data;
};

}  // namespace leanattn
