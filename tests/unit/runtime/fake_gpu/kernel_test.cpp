// kernel_test.cpp -- LoadedKernel on a fictional GPU: what reaches the driver, what is refused before, and what is
// freed afterwards.
#include "generator/kernel_layout.hpp"
#include "runtime/cuda/loaded_kernel.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {
namespace {

/// A kernel that compiles fast and has the argument block of the real ones.
EmittedKernel emitted(FixUp fixup = FixUp::ticket, bool pdl = false) {
  EmittedKernel kernel;
  kernel.spec.fixup = fixup;
  kernel.spec.pdl = pdl;
  kernel.source = "struct Args { char bytes[160]; };\nextern \"C\" __global__ void decode(Args args) {}\n";
  kernel.entry = "decode";
  kernel.threads = 128;
  kernel.shared_bytes = 64 * 1024;
  return kernel;
}

class MapCache : public CubinCache {
 public:
  std::optional<CubinEntry> load(std::string_view key) override {
    const auto it = entries.find(std::string(key));
    return it == entries.end() ? std::nullopt : std::optional(it->second);
  }
  void store(std::string_view key, const CubinEntry& entry) override { entries[std::string(key)] = entry; }
  void erase(std::string_view key) override {
    ++erases;
    entries.erase(std::string(key));
  }
  std::map<std::string, CubinEntry> entries;
  int erases = 0;
};

class FakeGpuKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    fake_gpu() = FakeGpu{};
    fake_gpu().argument_bytes = sizeof(LeanDecodeArgs);
    context_.emplace(std::move(*Context::retain(0)));
  }
  void TearDown() override {
    context_.reset();
    EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
  }

  static LoadedKernel prepared(FixUp fixup = FixUp::ticket, bool pdl = false) {
    return std::move(LoadedKernel::prepare(emitted(fixup, pdl), nullptr).value());
  }

  std::optional<Context> context_;
};

TEST_F(FakeGpuKernel, LaunchesWithTheEmittedSizesAndTheArgumentsByteForByte) {
  const auto kernel = prepared();
  LeanDecodeArgs args{};
  args.batch = 3;
  args.scale_log2 = 0.125f;
  args.k_stride_token = std::int64_t{1} << 40;
  const auto stream = Stream::create();
  ASSERT_TRUE(kernel.launch(args, 200, stream->get()));
  ASSERT_EQ(fake_gpu().launches.size(), 1u);
  const auto& launch = fake_gpu().launches[0];
  EXPECT_EQ(launch.kernel, "decode");
  EXPECT_EQ(launch.grid, 200u);
  EXPECT_EQ(launch.threads, 128u);
  EXPECT_EQ(launch.shared_bytes, 64u * 1024);
  EXPECT_EQ(launch.stream, stream->get());
  EXPECT_FALSE(launch.cooperative);
  EXPECT_FALSE(launch.programmatic);
  args.grid_reciprocal = 0xffffffffu / 200;  // the one field that launch() fills in
  EXPECT_EQ(std::memcmp(launch.arguments.data(), &args, sizeof args), 0);
}

TEST_F(FakeGpuKernel, ASelectionsLineHasARequestForEachQueryToken) {
  auto kernel = emitted();
  kernel.spec.features.page_size = 16, kernel.spec.features.q_len = 3, kernel.spec.features.selection_block = 64;
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  LeanDecodeArgs args{};
  args.batch = 2, args.context_capacity = 4096, args.selection_capacity = 30;
  args.context_lengths = reinterpret_cast<const int*>(0x1000);
  args.selected_counts = reinterpret_cast<const int*>(0x2000);
  ASSERT_TRUE(loaded->launch(args, 10, nullptr));
  LeanDecodeArgs seen;
  std::memcpy(&seen, fake_gpu().launches.back().arguments.data(), sizeof seen);
  EXPECT_EQ(seen.batch, 6);
  EXPECT_EQ(seen.context_lengths, args.selected_counts);
  EXPECT_EQ(seen.context_capacity, 30);
  EXPECT_EQ(seen.request_lengths, args.context_lengths);
  EXPECT_EQ(seen.request_capacity, 4096);
}

TEST_F(FakeGpuKernel, AKernelThatGathersRowsHasNoTensorMaps) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor, kernel.spec.warp_tokens = 16, kernel.spec.head_dim = 128;
  kernel.spec.features.page_size = 16, kernel.spec.features.selection_block = 1;
  ASSERT_TRUE(layout_of(kernel.spec).gathers_rows);
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  LeanDecodeArgs args{};
  args.batch = 1, args.kv_heads = 1, args.pool_pages = 4;
  ASSERT_TRUE(loaded->launch(args, 10, nullptr));
  EXPECT_TRUE(fake_gpu().tensor_maps.empty());
}

TEST_F(FakeGpuKernel, RowBlocksInStepShareTheRangesOfAGrid) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor, kernel.spec.warps = 8, kernel.spec.warp_tokens = 16;
  kernel.spec.head_dim = 576, kernel.spec.group = 128;
  kernel.spec.features.latent = true, kernel.spec.features.v_head_dim = 512;
  ASSERT_EQ(layout_of(kernel.spec).row_blocks_in_step, 2);
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  LeanDecodeArgs args{};
  args.k = reinterpret_cast<const void*>(0x1000), args.v = args.k;
  args.batch = 1, args.kv_heads = 1, args.context_capacity = 1024;
  args.k_stride_token = args.v_stride_token = 576, args.k_stride_batch = args.v_stride_batch = 1024 * 576;
  const auto reciprocal = [](const FakeLaunch& launch) {
    LeanDecodeArgs seen;
    std::memcpy(&seen, launch.arguments.data(), sizeof seen);
    return seen.grid_reciprocal;
  };
  ASSERT_TRUE(loaded->launch(args, 100, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 100u);
  EXPECT_EQ(reciprocal(fake_gpu().launches.back()), 0xffffffffu / 50) << "of two CTAs each";
  ASSERT_TRUE(loaded->launch(args, 101, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 100u) << "whole ranges, of which a cluster may be a part";
  ASSERT_TRUE(loaded->launch(args, 1, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 2u) << "a CTA for each row block";
  EXPECT_EQ(reciprocal(fake_gpu().launches.back()), 0xffffffffu);
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 2u);
  EXPECT_EQ(fake_gpu().tensor_maps[0].box, (std::vector<cuuint32_t>{64, 64, 4, 1, 1})) << "the first half of V";
  EXPECT_EQ(fake_gpu().tensor_maps[1].box, (std::vector<cuuint32_t>{64, 64, 5, 1, 1})) << "all other panels of K";
}

TEST_F(FakeGpuKernel, ATensorKernelGetsMapsOfTheCallersStrides) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor;
  kernel.spec.head_dim = 128;
  kernel.spec.warp_tokens = 16;
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  LeanDecodeArgs args{};
  args.k = reinterpret_cast<const void*>(0x1000), args.v = reinterpret_cast<const void*>(0x2000);
  args.batch = 3, args.kv_heads = 8, args.context_capacity = 5000;
  args.k_stride_token = 8 * 128, args.k_stride_head = 128, args.k_stride_batch = 5000 * 8 * 128;
  args.v_stride_token = 128, args.v_stride_head = 5000 * 128, args.v_stride_batch = 9 * 5000 * 128;
  ASSERT_TRUE(loaded->launch(args, 7, nullptr));
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 2u);
  const auto &k = fake_gpu().tensor_maps[0], &v = fake_gpu().tensor_maps[1];
  EXPECT_EQ(k.address, args.k);
  EXPECT_EQ(v.address, args.v);
  EXPECT_EQ(k.sizes, (std::vector<cuuint64_t>{64, 5000, 2, 8, 3}));
  EXPECT_EQ(k.strides, (std::vector<cuuint64_t>{8 * 256, 128, 256, 5000 * 8 * 256}));
  EXPECT_EQ(v.strides, (std::vector<cuuint64_t>{256, 128, 5000 * 256, 9 * 5000 * 256}));
  EXPECT_EQ(k.box, (std::vector<cuuint32_t>{64, 64, 2, 1, 1}));
  EXPECT_EQ(k.swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
  EXPECT_EQ(k.promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  // L2 promotion is that of the configuration, however much room a cache has.
  for (const int capacity : {1024, 131072}) {
    args.batch = 1, args.context_capacity = capacity;
    ASSERT_TRUE(loaded->launch(args, 7, nullptr));
    EXPECT_EQ(fake_gpu().tensor_maps.back().promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    ASSERT_TRUE(loaded->launch(args, 7, nullptr, 256));
    EXPECT_EQ(fake_gpu().tensor_maps.back().promotion, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  }
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 10u);
  ASSERT_TRUE(loaded->launch(args, 7, nullptr, 256));
  ASSERT_TRUE(loaded->launch(args, 7, nullptr));
  EXPECT_EQ(fake_gpu().tensor_maps.size(), 10u) << "both are kept";
  EXPECT_EQ(fake_gpu().tensor_maps.back().strides[3], 16u) << "the stride is not used for one request";
  args.batch = 2, args.k_stride_batch = std::int64_t{1} << 39;
  const auto refused = loaded->launch(args, 7, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
}

TEST_F(FakeGpuKernel, RowsWithScalesHaveAMapOfEvenAndOneOfOddTokensAndHeadsGoInStep) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor, kernel.spec.layout = KvLayout::strided, kernel.spec.stages = 2;
  kernel.spec.head_dim = 128, kernel.spec.warp_tokens = 16;
  kernel.spec.features.kv_format = KvFormat::int4, kernel.spec.features.kv_scale = KvScale::in_row;
  kernel.spec.features.page_size = 16;
  ASSERT_TRUE(validate(kernel.spec));
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  // 5 heads of 136 bytes: tokens are 680 apart, so that odd ones begin 8 bytes behind a multiple of 16.
  LeanDecodeArgs args{};
  args.k = reinterpret_cast<const void*>(0x1000), args.v = reinterpret_cast<const void*>(0x1000 + 68);
  args.batch = 3, args.kv_heads = 5, args.pool_pages = 40, args.context_capacity = 4096;
  args.k_stride_head = 136, args.k_stride_token = 680, args.k_stride_batch = 16 * 680;
  ASSERT_TRUE(loaded->launch(args, 132, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 130u) << "26 ranges of 5 heads";
  ASSERT_TRUE(loaded->launch(args, 1, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 5u) << "a CTA for each head";
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 2u);
  const auto even = fake_gpu().tensor_maps[0], odd = fake_gpu().tensor_maps[1];
  EXPECT_EQ(even.address, args.k);
  EXPECT_EQ(odd.address, reinterpret_cast<const void*>(0x1000 + 672));
  // In units of eight bytes, and no further than the last head's row.
  EXPECT_EQ(even.sizes, (std::vector<cuuint64_t>{85, 8, 40}));
  EXPECT_EQ(odd.sizes, (std::vector<cuuint64_t>{86, 8, 40}));
  EXPECT_EQ(even.strides, (std::vector<cuuint64_t>{2 * 680, 16 * 680}));
  EXPECT_EQ(odd.strides, even.strides);
  EXPECT_EQ(even.box, (std::vector<cuuint32_t>{18, 8, 1}));
  // Of 12 heads as many go in step as divide them, and are a power of two.
  args.kv_heads = 12, args.k_stride_token = 12 * 136, args.k_stride_batch = 16 * 12 * 136;
  ASSERT_TRUE(loaded->launch(args, 131, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, 128u);
}

TEST_F(FakeGpuKernel, DenseRowsWithScalesMayBeginAnywhere) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor, kernel.spec.layout = KvLayout::strided, kernel.spec.stages = 2;
  kernel.spec.head_dim = 128, kernel.spec.warp_tokens = 16;
  kernel.spec.features.kv_format = KvFormat::int4, kernel.spec.features.kv_scale = KvScale::in_row;
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded);
  LeanDecodeArgs args{};
  args.k = reinterpret_cast<const void*>(0x1000);
  args.batch = 3, args.kv_heads = 1, args.context_capacity = 101;
  args.k_stride_head = args.k_stride_token = 136, args.k_stride_batch = 101 * 136;  // 8 bytes beside a multiple of 16
  ASSERT_TRUE(loaded->launch(args, 7, nullptr));
  EXPECT_EQ(fake_gpu().tensor_maps[0].sizes, (std::vector<cuuint64_t>{(2 * 101 + 1) * 17, 51, 1}));
  EXPECT_EQ(fake_gpu().tensor_maps[1].sizes, (std::vector<cuuint64_t>{(2 * 101 + 1) * 17 + 1, 50, 1}));
  // One token has no odd one beside it: nothing behind it is read.
  args.batch = 1, args.context_capacity = 1, args.k_stride_batch = 136;
  ASSERT_TRUE(loaded->launch(args, 7, nullptr));
  EXPECT_EQ(fake_gpu().tensor_maps[3].address, args.k);
  EXPECT_EQ(fake_gpu().tensor_maps[3].sizes, (std::vector<cuuint64_t>{17, 1, 1}));
}

TEST_F(FakeGpuKernel, PagesWithScalesOfBlocksHaveMapsOfSixteenTokens) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::tensor, kernel.spec.layout = KvLayout::contiguous, kernel.spec.stages = 2;
  kernel.spec.head_dim = 128, kernel.spec.warp_tokens = 16;
  kernel.spec.features.kv_format = KvFormat::nvfp4, kernel.spec.features.page_size = 32;
  const auto load = [&] {
    EXPECT_TRUE(validate(kernel.spec));
    return LoadedKernel::prepare(kernel, nullptr).value();
  };
  // As vLLM lays pages: of 5 heads K, its scales, V, and its scales.
  constexpr long long kRows = 5 * 32 * 64, kScales = 5 * 32 * 8, kPage = 2 * (kRows + kScales);
  const auto at = [](long long byte) { return reinterpret_cast<void*>(0x10000 + byte); };
  LeanDecodeArgs args{};
  args.k = at(0), args.k_block_scales = at(kRows), args.v = at(kPage / 2), args.v_block_scales = at(kPage / 2 + kRows);
  args.batch = 3, args.kv_heads = 5, args.pool_pages = 40, args.context_capacity = 4096;
  args.k_stride_token = args.v_stride_token = 64, args.k_stride_head = args.v_stride_head = 32 * 64;
  args.kv_scale_stride_token = 8, args.kv_scale_stride_head = 32 * 8;
  args.k_stride_batch = args.v_stride_batch = args.kv_scale_stride_batch = kPage;
  ASSERT_TRUE(load().launch(args, 132, nullptr));
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 4u);
  const std::vector<FakeTensorMap> maps = fake_gpu().tensor_maps;
  EXPECT_EQ(maps[0].address, args.k);
  EXPECT_EQ(maps[1].address, args.v);
  EXPECT_EQ(maps[2].address, args.k_block_scales);
  EXPECT_EQ(maps[3].address, args.v_block_scales);
  for (const int i : {0, 1}) {  // in units of eight bytes, all of a head's 16 tokens at once
    EXPECT_EQ(maps[i].sizes, (std::vector<cuuint64_t>{kRows / 8, 1, 40}));
    EXPECT_EQ(maps[i].strides[1], static_cast<cuuint64_t>(kPage));
    EXPECT_EQ(maps[i].box, (std::vector<cuuint32_t>{16 * 64 / 8, 1, 1}));
  }
  for (const int i : {2, 3}) {  // of four
    EXPECT_EQ(maps[i].sizes, (std::vector<cuuint64_t>{kScales / 4, 1, 40}));
    EXPECT_EQ(maps[i].box, (std::vector<cuuint32_t>{16 * 8 / 4, 1, 1}));
  }
  // A box has 256 columns at most: four rows of 512 bytes.
  kernel.spec.head_dim = 512, kernel.spec.warps = 2, kernel.spec.group = 1;
  ASSERT_TRUE(load().launch(args, 132, nullptr));
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 8u);
  EXPECT_EQ(fake_gpu().tensor_maps[4].box, (std::vector<cuuint32_t>{8 * 256 / 8, 2, 1}));
  // Rows of tokens that are apart are rows of a box, and lanes copy their scales.
  kernel.spec.layout = KvLayout::strided, kernel.spec.head_dim = 64;
  args.k_stride_head = args.v_stride_head = 32, args.k_stride_token = args.v_stride_token = 8 * 32, args.kv_heads = 8;
  ASSERT_TRUE(load().launch(args, 132, nullptr));
  ASSERT_EQ(fake_gpu().tensor_maps.size(), 10u);
  EXPECT_EQ(fake_gpu().tensor_maps[9].sizes, (std::vector<cuuint64_t>{8 * 32 / 8, 32, 40}));
  EXPECT_EQ(fake_gpu().tensor_maps[9].strides, (std::vector<cuuint64_t>{8 * 32, kPage}));
  EXPECT_EQ(fake_gpu().tensor_maps[9].box, (std::vector<cuuint32_t>{4, 16, 1}));
}

TEST_F(FakeGpuKernel, TensorMapsAreEncodedOnceForEachKvCache) {
  EmittedKernel kernel = emitted();
  kernel.spec.head_dim = 128;
  kernel.spec.load = LoadPath::tensor;
  auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const LoadedKernel moved(std::move(*loaded));  // together with its maps
  int wrong = 0;
  LeanDecodeArgs args{};
  fake_gpu().run = [&](const std::string&, void** params) {
    wrong += static_cast<const CUtensorMap*>(params[1])->opaque[0] != reinterpret_cast<std::uintptr_t>(args.k);
    wrong += static_cast<const CUtensorMap*>(params[2])->opaque[0] != reinterpret_cast<std::uintptr_t>(args.v);
  };
  args.kv_heads = 8, args.context_capacity = 5000;
  args.k_stride_token = args.v_stride_token = 128, args.k_stride_head = args.v_stride_head = 5000 * 128;
  args.k_stride_batch = args.v_stride_batch = 8 * 5000 * 128;
  constexpr int kLayers = 32;
  const auto step = [&](int batch) {
    args.batch = batch;
    for (std::uintptr_t layer = 0; layer < kLayers; ++layer) {
      args.k = reinterpret_cast<void*>(0x7f0000000000 + layer * 0x20000000);
      args.v = reinterpret_cast<void*>(0x7f0000000000 + layer * 0x20000000 + 0x10000000);
      ASSERT_TRUE(moved.launch(args, 7, nullptr));
    }
  };
  for (int i = 0; i < 3; ++i) step(4);
  EXPECT_EQ(fake_gpu().calls["cuTensorMapEncodeTiled"], 2 * kLayers);
  step(5);
  EXPECT_EQ(fake_gpu().calls["cuTensorMapEncodeTiled"], 4 * kLayers) << "another batch has other maps";
  EXPECT_EQ(wrong, 0);
}

TEST_F(FakeGpuKernel, ALaunchIsOneDriverCall) {
  const auto kernel = prepared();
  fake_gpu().calls.clear();
  ASSERT_TRUE(kernel.launch(LeanDecodeArgs{}, 1, nullptr));
  EXPECT_EQ(fake_gpu().calls, (std::map<std::string, int>{{"cuLaunchKernelEx", 1}}));
}

TEST_F(FakeGpuKernel, AKernelThatWaitsIsLaunchedCooperativelyUpToTheResidentGrid) {
  const auto kernel = prepared(FixUp::wait);
  EXPECT_EQ(kernel.resident_ctas_per_sm(), 2);
  EXPECT_EQ(kernel.resident_ctas(), 264);
  ASSERT_TRUE(kernel.launch(LeanDecodeArgs{}, 264, nullptr));
  EXPECT_TRUE(fake_gpu().launches[0].cooperative);
  const auto refused = kernel.launch(LeanDecodeArgs{}, 265, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::launch_failed);
  EXPECT_NE(refused.error().message.find("265"), std::string::npos);
  EXPECT_NE(refused.error().message.find("264"), std::string::npos);
  EXPECT_FALSE(refused.error().hint.empty());
  EXPECT_EQ(fake_gpu().launches.size(), 1u) << "refused before the driver was asked";
}

TEST_F(FakeGpuKernel, TheSmsOfTheContextAndNotThoseOfTheDeviceBoundAGridThatWaits) {
  fake_gpu().context_sm_count = 16;
  const auto kernel = prepared(FixUp::wait);
  EXPECT_EQ(kernel.resident_ctas(), 32);
  EXPECT_TRUE(kernel.launch(LeanDecodeArgs{}, 32, nullptr));
  EXPECT_FALSE(kernel.launch(LeanDecodeArgs{}, 33, nullptr));
}

TEST_F(FakeGpuKernel, ADriverThatCannotTellTheContextsSmsLeavesThoseOfTheDevice) {
  fake_gpu().context_sm_count = 16;
  fake_gpu().fail_once["cuCtxGetDevResource"] = CUDA_ERROR_NOT_SUPPORTED;
  EXPECT_EQ(prepared(FixUp::wait).resident_ctas(), 264);
}

TEST_F(FakeGpuKernel, AGridThatTheStreamsSmsCannotHoldIsNamedWithTheWayOut) {
  const auto kernel = prepared(FixUp::wait);
  fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  const auto refused = kernel.launch(LeanDecodeArgs{}, 264, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::launch_failed);
  EXPECT_NE(refused.error().message.find("264"), std::string::npos);
  EXPECT_NE(refused.error().hint.find("stream"), std::string::npos);
}

TEST_F(FakeGpuKernel, AStreamOfAGreenContextHasThatContextsSms) {
  const auto ordinary = Stream::create(), green = Stream::create();
  ASSERT_TRUE(ordinary && green);
  fake_gpu().green_streams[green->get()] = 24;
  EXPECT_EQ(stream_sm_count(green->get(), 132), 24);
  EXPECT_EQ(stream_sm_count(green->get(), 16), 16) << "never more than its context is taken to have";
  EXPECT_EQ(stream_sm_count(ordinary->get(), 132), 132);
  EXPECT_EQ(stream_sm_count(nullptr, 132), 132);
  for (const char* const call : {"cuStreamGetCtx_v2", "cuGreenCtxGetDevResource"}) {
    fake_gpu().fail_once[call] = CUDA_ERROR_NOT_SUPPORTED;
    EXPECT_EQ(stream_sm_count(green->get(), 132), 132) << call;
  }
}

TEST_F(FakeGpuKernel, ATicketKernelTakesGridsFarBeyondWhatIsResident) {
  const auto kernel = prepared();
  EXPECT_TRUE(kernel.launch(LeanDecodeArgs{}, 1, nullptr));
  EXPECT_TRUE(kernel.launch(LeanDecodeArgs{}, kMostCtas, nullptr));
  EXPECT_EQ(fake_gpu().launches.back().grid, static_cast<unsigned>(kMostCtas));
}

TEST_F(FakeGpuKernel, ImpossibleGridsAreRefusedBeforeTheDriver) {
  const auto kernel = prepared();
  for (const std::int64_t grid :
       {std::int64_t{0}, std::int64_t{-1}, kMostCtas + 1, std::int64_t{1} << 31, std::int64_t{1} << 32}) {
    const auto refused = kernel.launch(LeanDecodeArgs{}, grid, nullptr);
    ASSERT_FALSE(refused) << grid;
    EXPECT_EQ(refused.error().code, ErrorCode::launch_failed);
    EXPECT_NE(refused.error().message.find(std::to_string(grid)), std::string::npos);
  }
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(FakeGpuKernel, PdlAndCooperationAreAskedForTogether) {
  ASSERT_TRUE(prepared(FixUp::ticket, true).launch(LeanDecodeArgs{}, 1, nullptr));
  EXPECT_TRUE(fake_gpu().launches.back().programmatic);
  EXPECT_FALSE(fake_gpu().launches.back().cooperative);
  ASSERT_TRUE(prepared(FixUp::wait, true).launch(LeanDecodeArgs{}, 1, nullptr));
  EXPECT_TRUE(fake_gpu().launches.back().programmatic);
  EXPECT_TRUE(fake_gpu().launches.back().cooperative);
}

TEST_F(FakeGpuKernel, LoadingRaisesTheSharedMemoryLimitAndForcesTheCodeOntoTheDevice) {
  const auto kernel = prepared();
  EXPECT_EQ(fake_gpu().function_attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], 64 * 1024);
  EXPECT_EQ(fake_gpu().function_attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT],
            CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
  EXPECT_GE(fake_gpu().calls["cuFuncGetAttribute"], 1) << "a lazily loaded kernel cannot be captured";
}

TEST_F(FakeGpuKernel, KernelsThatLoadStraightToRegistersKeepTheDriversCarveOut) {
  auto kernel = emitted();
  kernel.spec.load = LoadPath::ldg;
  ASSERT_TRUE(LoadedKernel::prepare(kernel, nullptr));
  EXPECT_EQ(fake_gpu().function_attributes.count(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT), 0u);
}

TEST_F(FakeGpuKernel, AFailedLoadGivesTheLibraryBack) {
  for (const char* call : {"cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncSetAttribute", "cuFuncGetAttribute",
                           "cuOccupancyMaxActiveBlocksPerMultiprocessor"}) {
    fake_gpu().fail_once[call] = CUDA_ERROR_INVALID_VALUE;
    const auto loaded = LoadedKernel::prepare(emitted(), nullptr);
    ASSERT_FALSE(loaded) << call;
    EXPECT_EQ(loaded.error().code, ErrorCode::load_failed) << call;
    EXPECT_NE(loaded.error().message.find(call), std::string::npos) << loaded.error().message;
    EXPECT_EQ(fake_gpu().live_libraries, 0) << call;
  }
}

TEST_F(FakeGpuKernel, AKernelThatFitsNoSmIsRefusedAtLoad) {
  fake_gpu().resident_ctas_per_sm = 0;
  const auto loaded = LoadedKernel::prepare(emitted(), nullptr);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::load_failed);
  EXPECT_NE(loaded.error().message.find("65536"), std::string::npos) << loaded.error().message;
}

TEST_F(FakeGpuKernel, ACachedCubinThatTheDriverRefusesIsReplacedOnce) {
  MapCache cache;
  CompiledKernel compiled;
  ASSERT_TRUE(LoadedKernel::prepare(emitted(), &cache, &compiled));
  EXPECT_FALSE(compiled.from_cache);
  ASSERT_TRUE(LoadedKernel::prepare(emitted(), &cache, &compiled));
  EXPECT_TRUE(compiled.from_cache);
  cache.entries.begin()->second.cubin.assign(64, 0);
  ASSERT_TRUE(LoadedKernel::prepare(emitted(), &cache, &compiled));
  EXPECT_FALSE(compiled.from_cache);
  EXPECT_EQ(cache.erases, 1);
  ASSERT_TRUE(LoadedKernel::prepare(emitted(), &cache, &compiled));
  EXPECT_TRUE(compiled.from_cache) << "the replacement was stored";
}

TEST_F(FakeGpuKernel, AFreshCubinThatTheDriverRefusesIsAnErrorNotALoop) {
  fake_gpu().fail_once["cuLibraryLoadData"] = CUDA_ERROR_NO_BINARY_FOR_GPU;
  MapCache cache;
  const auto loaded = LoadedKernel::prepare(emitted(), &cache);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::load_failed);
  EXPECT_FALSE(loaded.error().hint.empty());
  EXPECT_EQ(fake_gpu().calls["cuLibraryLoadData"], 1);
}

TEST_F(FakeGpuKernel, AMissingKernelNameIsNotFound) {
  auto kernel = emitted();
  kernel.entry = "another";
  const auto loaded = LoadedKernel::prepare(kernel, nullptr);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::not_found);
  EXPECT_NE(loaded.error().message.find("'another'"), std::string::npos);
}

TEST_F(FakeGpuKernel, ALaunchErrorOfAnEarlierKernelIsALostContext) {
  const auto kernel = prepared();
  fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto launched = kernel.launch(LeanDecodeArgs{}, 1, nullptr);
  ASSERT_FALSE(launched);
  EXPECT_EQ(launched.error().code, ErrorCode::context_lost);
  EXPECT_NE(launched.error().message.find("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos)
      << launched.error().message;
}

TEST_F(FakeGpuKernel, MovingKeepsOneOwner) {
  auto first = prepared();
  auto second = std::move(first);
  EXPECT_EQ(fake_gpu().live_libraries, 1);
  auto third = prepared(FixUp::wait);
  EXPECT_EQ(fake_gpu().live_libraries, 2);
  third = std::move(second);
  EXPECT_EQ(fake_gpu().live_libraries, 1) << "the kernel that was replaced is unloaded at once";
  EXPECT_EQ(third.spec().fixup, FixUp::ticket);
  EXPECT_TRUE(third.launch(LeanDecodeArgs{}, 1000, nullptr));
}

}  // namespace
}  // namespace leanattn
