// gpu_test.cpp -- contexts, memory, streams, graphs and device facts on a fictional GPU.
#include "runtime/cuda/gpu.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {
namespace {

class FakeGpuObjects : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_gpu() = FakeGpu{};
    context_.emplace(std::move(*Context::retain(0)));
  }
  void TearDown() override {
    context_.reset();
    EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
  }
  std::optional<Context> context_;
};

TEST(FakeDriver, IsTheOneThatTheLibraryFound) {
  fake_gpu() = FakeGpu{};
  const auto api = driver();
  ASSERT_TRUE(api) << api.error().message;
  int count = 0;
  EXPECT_EQ((*api)->cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(fake_gpu().calls["cuDeviceGetCount"], 1);
}

TEST(FakeDriver, IsNotTouchedByACompile) {
  if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
  ASSERT_TRUE(driver());
  fake_gpu() = FakeGpu{};
  const auto compiled = compile_source("extern \"C\" __global__ void untouched() {}", Arch{9, 0, true}, nullptr);
  ASSERT_TRUE(compiled) << compiled.error().log;
  EXPECT_TRUE(fake_gpu().calls.empty()) << "first call: " << fake_gpu().calls.begin()->first;
}

TEST_F(FakeGpuObjects, AContextIsCurrentUntilItsOwnerGoes) {
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, context_->get());
  context_.reset();
  cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr);
  EXPECT_EQ(fake_gpu().live_contexts, 0);
}

TEST_F(FakeGpuObjects, ADeviceThatIsNotThereIsNoDeviceWithOrdinalAndCount) {
  for (const int ordinal : {-1, 1, 8}) {
    const auto context = Context::retain(ordinal);
    ASSERT_FALSE(context) << ordinal;
    EXPECT_EQ(context.error().code, ErrorCode::no_device);
    EXPECT_NE(context.error().message.find(std::to_string(ordinal)), std::string::npos);
    EXPECT_NE(context.error().message.find("1 visible"), std::string::npos) << context.error().message;
  }
}

TEST_F(FakeGpuObjects, AContextThatOthersKeepStaysCurrent) {
  {
    const auto second = Context::retain(0);
    ASSERT_TRUE(second);
  }
  CUcontext current = nullptr;
  (*driver())->cuCtxGetCurrent(&current);
  EXPECT_EQ(current, context_->get());
}

TEST_F(FakeGpuObjects, AFailureAfterRetainingReleasesTheContext) {
  fake_gpu().fail_once["cuCtxSetCurrent"] = CUDA_ERROR_INVALID_CONTEXT;
  EXPECT_FALSE(Context::retain(0));
  EXPECT_EQ(fake_gpu().live_contexts, 1) << "the fixture's own";
}

TEST_F(FakeGpuObjects, BytesSurviveARoundTripThroughTheDevice) {
  const auto stream = Stream::create();
  const auto buffer = DeviceBuffer::allocate(4096);
  const auto other = DeviceBuffer::allocate(4096);
  std::vector<std::uint32_t> out(1024), in(1024);
  std::iota(out.begin(), out.end(), 7u);
  ASSERT_TRUE(copy_to_device(buffer->data(), out.data(), 4096, *stream));
  ASSERT_TRUE(copy_on_device_async(other->data(), buffer->data(), 4096, stream->get()));
  ASSERT_TRUE(copy_to_host(in.data(), other->at(0), 4096, *stream));
  EXPECT_EQ(in, out);
  ASSERT_TRUE(fill_u32_async(buffer->data(), 0x7fc00000u, 512, stream->get()));
  ASSERT_TRUE(fill_u16_async(buffer->at(2048), 0xabcd, 512, stream->get()));
  ASSERT_TRUE(fill_bytes_async(buffer->at(3072), 0x11, 1024, stream->get()));
  ASSERT_TRUE(copy_to_host(in.data(), buffer->data(), 4096, *stream));
  EXPECT_EQ(in[511], 0x7fc00000u);
  EXPECT_EQ(in[512], 0xabcdabcdu);
  EXPECT_EQ(in[1023], 0x11111111u);
  EXPECT_EQ(fake_gpu().calls["cuStreamSynchronize"], 3) << "the blocking copies wait, the others do not";
}

TEST_F(FakeGpuObjects, CopyingNothingAsksTheDriverForNothing) {
  fake_gpu().calls.clear();
  EXPECT_TRUE(copy_to_device_async(nullptr, nullptr, 0, nullptr));
  EXPECT_TRUE(copy_to_host_async(nullptr, nullptr, 0, nullptr));
  EXPECT_TRUE(fill_u32_async(nullptr, 1, 0, nullptr));
  EXPECT_TRUE(fake_gpu().calls.empty());
}

TEST_F(FakeGpuObjects, LackOfMemorySaysHowMuchWasAskedForAndHowMuchThereWas) {
  fake_gpu().memory_bytes = 1000;
  const auto held = DeviceBuffer::allocate(600);
  const auto buffer = DeviceBuffer::allocate(500);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(buffer.error().message.find("500 bytes asked for, 400 of 1000 free"), std::string::npos)
      << buffer.error().message;
  EXPECT_EQ(device_memory()->free_bytes, 400);
}

TEST_F(FakeGpuObjects, AssigningABufferFreesTheOldOneFirst) {
  auto buffer = std::move(*DeviceBuffer::allocate(100));
  buffer = std::move(*DeviceBuffer::allocate(200));
  EXPECT_EQ(fake_gpu().live_buffers, 1);
  EXPECT_EQ(buffer.bytes(), 200);
  auto moved = std::move(buffer);
  EXPECT_EQ(buffer.data(), nullptr);  // NOLINT(bugprone-use-after-move): this is what the test is about
  EXPECT_EQ(fake_gpu().live_buffers, 1);
  moved = DeviceBuffer();
  EXPECT_EQ(fake_gpu().live_buffers, 0);
}

TEST_F(FakeGpuObjects, PinnedMemoryIsUsableAndGivenBack) {
  const auto pinned = PinnedBuffer::allocate(64);
  ASSERT_TRUE(pinned);
  pinned->as<int>()[15] = 42;
  EXPECT_EQ(pinned->bytes(), 64);
  EXPECT_EQ(fake_gpu().live_pinned, 1);
}

TEST_F(FakeGpuObjects, EventsTellTimeInMicrosecondsAndReadiness) {
  const auto start = Event::create(), end = Event::create(), untimed = Event::create(false);
  const auto stream = Stream::create();
  ASSERT_TRUE(start->record(stream->get()));
  ASSERT_TRUE(end->record(stream->get()));
  EXPECT_DOUBLE_EQ(*elapsed_us(*start, *end), 250.0);
  EXPECT_FALSE(elapsed_us(*start, *untimed));
  EXPECT_TRUE(*end->query());
  fake_gpu().fail_once["cuEventQuery"] = CUDA_ERROR_NOT_READY;
  EXPECT_FALSE(*end->query());
  fake_gpu().fail_once["cuEventQuery"] = CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(end->query().error().code, ErrorCode::context_lost);
}

class FakeGpuGraph : public FakeGpuObjects {
 protected:
  void SetUp() override {
    FakeGpuObjects::SetUp();
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    const auto compiled =
        compile_source("extern \"C\" __global__ void first(int x) {}\nextern \"C\" __global__ void second() {}\n",
                       Arch{9, 0, true}, nullptr);
    ASSERT_TRUE(compiled) << compiled.error().log;
    source_.emplace(std::move(*LoadedSource::load(*compiled)));
    stream_.emplace(std::move(*Stream::create()));
  }
  void TearDown() override {
    source_.reset();
    stream_.reset();
    FakeGpuObjects::TearDown();
  }
  std::optional<LoadedSource> source_;
  std::optional<Stream> stream_;
};

TEST_F(FakeGpuGraph, CapturedLaunchesRunWhenTheGraphDoesAndInOrder) {
  const auto first = source_->function("first"), second = source_->function("second");
  ASSERT_TRUE(first && second);
  const auto graph = Graph::capture(*stream_, [&](CUstream_st* stream) -> Result<void> {
    if (auto ok = launch_with(*first, LaunchDims{.grid_x = 3, .threads = 64}, stream, 5); !ok) return ok;
    return launch_with(*second, LaunchDims{.grid_x = 2, .grid_y = 2, .threads = 32, .shared_bytes = 16}, stream);
  });
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_TRUE(fake_gpu().launches.empty());
  EXPECT_EQ(fake_gpu().live_graphs, 0) << "the graph is not kept after it was instantiated";
  ASSERT_TRUE(graph->launch(stream_->get()));
  ASSERT_TRUE(graph->launch(stream_->get()));
  ASSERT_EQ(fake_gpu().launches.size(), 4u);
  EXPECT_EQ(fake_gpu().launches[2].kernel, "first");
  EXPECT_EQ(fake_gpu().launches[2].grid, 3u);
  EXPECT_EQ(fake_gpu().launches[3].kernel, "second");
  EXPECT_EQ(fake_gpu().launches[3].grid, 4u);
  EXPECT_EQ(fake_gpu().launches[3].shared_bytes, 16u);
}

TEST_F(FakeGpuGraph, AFailingBodyEndsTheCaptureAndPassesItsErrorOn) {
  const auto graph =
      Graph::capture(*stream_, [](CUstream_st*) -> Result<void> { return fail(ErrorCode::unsupported, "mine"); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message, "mine");
  EXPECT_TRUE(stream_->synchronize()) << "the stream is usable again";
  EXPECT_EQ(fake_gpu().live_graphs + fake_gpu().live_graph_execs, 0);
}

TEST_F(FakeGpuGraph, AFailureOfTheDriverLeavesNothingBehind) {
  for (const char* call : {"cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"}) {
    fake_gpu().fail_once[call] = CUDA_ERROR_INVALID_VALUE;
    const auto graph = Graph::capture(*stream_, [](CUstream_st*) -> Result<void> { return {}; });
    ASSERT_FALSE(graph) << call;
    EXPECT_EQ(graph.error().code, ErrorCode::launch_failed) << call;
    EXPECT_EQ(fake_gpu().live_graphs + fake_gpu().live_graph_execs, 0) << call;
    EXPECT_TRUE(stream_->synchronize()) << call;
  }
}

TEST_F(FakeGpuGraph, AnUnknownKernelNameIsNotFound) {
  EXPECT_EQ(source_->function("third").error().code, ErrorCode::not_found);
  EXPECT_EQ(source_->function("fir").error().code, ErrorCode::not_found);
}

TEST_F(FakeGpuGraph, SharedMemoryAboveTheDefaultIsAskedFor) {
  ASSERT_TRUE(source_->function("first", 100 * 1024));
  EXPECT_EQ(fake_gpu().function_attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], 100 * 1024);
}

TEST_F(FakeGpuGraph, AnEmptyOrDamagedCubinDoesNotLoad) {
  EXPECT_EQ(LoadedSource::load(CompiledKernel{}).error().code, ErrorCode::load_failed);
  CompiledKernel damaged;
  damaged.cubin.assign(256, 0x20);
  EXPECT_EQ(LoadedSource::load(damaged).error().code, ErrorCode::load_failed);
}

class FakeGpuFacts : public ::testing::Test {
 protected:
  FakeGpuFacts() {
    fake_gpu() = FakeGpu{};
    auto& attributes = fake_gpu().attributes;
    attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
    attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0;
    attributes[CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 60 << 20;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 228 << 10;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 227 << 10;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32;
    attributes[CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000;
    attributes[CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 3201000;
    attributes[CU_DEVICE_ATTRIBUTE_ECC_ENABLED] = 1;
  }
};

TEST_F(FakeGpuFacts, AreWhatTheDriverSays) {
  const auto facts = device_facts(0);
  ASSERT_TRUE(facts) << facts.error().message;
  EXPECT_EQ(facts->ordinal, 0);
  EXPECT_EQ(facts->name, "NVIDIA Fictional 1");
  EXPECT_EQ(facts->uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ(facts->arch, (Arch{9, 0, true}));
  EXPECT_EQ(facts->sm_count, 132);
  EXPECT_EQ(facts->l2_bytes, 60 << 20);
  EXPECT_EQ(facts->memory_bytes, 1 << 30);
  EXPECT_EQ(facts->shared_bytes_per_sm, 228 << 10);
  EXPECT_EQ(facts->shared_bytes_per_cta, 227 << 10);
  EXPECT_EQ(facts->registers_per_sm, 65536);
  EXPECT_EQ(facts->threads_per_sm, 2048);
  EXPECT_EQ(facts->ctas_per_sm_limit, 32);
  EXPECT_EQ(facts->clock_khz, 1980000);
  EXPECT_EQ(facts->memory_clock_khz, 3201000);
  EXPECT_TRUE(facts->ecc);
  EXPECT_EQ(facts->driver_version, 13000);
}

TEST_F(FakeGpuFacts, OfAMigSliceHaveItsKindOfUuid) {
  fake_gpu().name = "NVIDIA H200 MIG 1g.18gb";
  EXPECT_TRUE(device_facts(0)->uuid.starts_with("MIG-"));
}

TEST_F(FakeGpuFacts, OfMigSlicesAndFewerSmsMakeDeviceModelsOfTheirOwn) {
  std::vector<DeviceModel> models{device_model(*device_facts(0))};
  EXPECT_EQ(models[0].mig_profile, "");
  fake_gpu().name = "NVIDIA H200 MIG 1g.18gb";
  fake_gpu().sm_count = 16;
  models.push_back(device_model(*device_facts(0)));
  EXPECT_EQ(models[1].mig_profile, "1g.18gb");
  EXPECT_EQ(models[1].sm_count, 16);
  fake_gpu().name = "NVIDIA H200 MIG 2g.35gb";
  models.push_back(device_model(*device_facts(0)));
  // An MPS client that may use half of the threads sees half of the SMs.
  fake_gpu().name = "NVIDIA Fictional 1";
  fake_gpu().sm_count = 66;
  models.push_back(device_model(*device_facts(0)));
  EXPECT_EQ(models[3].sm_count, 66);
  for (std::size_t i = 0; i < models.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(models[i], models[j]) << i << " and " << j;
}

TEST_F(FakeGpuFacts, CountTheSmsOfTheCallersContext) {
  fake_gpu().context_sm_count = 24;
  EXPECT_EQ(device_facts(0)->sm_count, 132) << "no context is current";
  {
    const auto context = Context::retain(0);
    ASSERT_TRUE(context);
    EXPECT_EQ(device_facts(0)->sm_count, 24);
    fake_gpu().devices = 2;
    EXPECT_EQ(device_facts(1)->sm_count, 132) << "the context is on another device";
    fake_gpu().fail_once["cuCtxGetDevResource"] = CUDA_ERROR_NOT_SUPPORTED;
    EXPECT_EQ(device_facts(0)->sm_count, 132);
    fake_gpu().context_sm_count = 0;
    EXPECT_EQ(device_facts(0)->sm_count, 132) << "an ordinary context has all of them";
  }
}

TEST_F(FakeGpuFacts, AreListedForEveryDeviceAndNoDeviceIsAnError) {
  fake_gpu().devices = 3;
  const auto three = list_devices();
  ASSERT_TRUE(three);
  ASSERT_EQ(three->size(), 3u);
  EXPECT_EQ((*three)[2].ordinal, 2);
  fake_gpu().devices = 0;
  EXPECT_EQ(list_devices().error().code, ErrorCode::no_device);
}

TEST_F(FakeGpuFacts, AFailingAttributeIsAnErrorNotAZero) {
  fake_gpu().fail_once["cuDeviceGetAttribute"] = CUDA_ERROR_INVALID_VALUE;
  const auto facts = device_facts(0);
  ASSERT_FALSE(facts);
  EXPECT_NE(facts.error().message.find("cuDeviceGetAttribute"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
