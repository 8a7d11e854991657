// devices_gpu_test.cpp -- engines of several GPUs in one process each launch on their own GPU, whichever context is
// current.
#include <cstring>
#include <random>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace leanattn {
namespace {

class DevicesOnGpu : public GpuTest {};

TEST_F(DevicesOnGpu, GiveTheSameBitsForTheSameStepFromOneThread) {
  const auto facts = device_facts(0), other_facts = device_facts(1);
  if (!other_facts || facts->name != other_facts->name) GTEST_SKIP() << "no two GPUs of one model";
  constexpr int kBatch = 2, kQHeads = 8, kKvHeads = 2, kHeadDim = 64, kCapacity = 3000;
  constexpr std::int64_t kQueryBytes = std::int64_t{2} * kBatch * kQHeads * kHeadDim;
  constexpr std::int64_t kCacheBytes = std::int64_t{2} * kBatch * kKvHeads * kCapacity * kHeadDim;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](std::int64_t bytes) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(bytes / 2));
    for (auto& x : bits) {
      const float value = normal(random);
      std::uint32_t word = 0;
      std::memcpy(&word, &value, sizeof word);
      x = static_cast<std::uint16_t>(word >> 16);
    }
    return bits;
  };
  const auto q = draw(kQueryBytes), k = draw(kCacheBytes), v = draw(kCacheBytes);
  const int lengths[kBatch] = {kCapacity, 77};

  struct Device {
    Context context;
    Stream stream;
    Engine engine;
    DeviceBuffer q, k, v, o, lengths, workspace;
    Plan plan;
  };
  Problem problem;
  problem.q_heads = kQHeads, problem.kv_heads = kKvHeads, problem.head_dim = kHeadDim;
  const auto open = [&](int ordinal) -> Result<Device> {
    auto context = Context::retain(ordinal);  // It is current from here on.
    if (!context) return tl::unexpected(context.error());
    auto stream_of = Stream::create();
    auto engine = Engine::create({.device = ordinal, .cache_dir = {}, .disk_cache = false});
    if (!stream_of || !engine) return fail(ErrorCode::internal, "no stream or no engine");
    const auto plan = engine->plan(problem, {kBatch, 0, kCapacity}, stream_of->get());
    if (!plan) return tl::unexpected(plan.error());
    const auto upload = [&](const void* data, std::int64_t bytes) {
      auto buffer = DeviceBuffer::allocate(bytes).value();
      EXPECT_TRUE(copy_to_device(buffer.data(), data, bytes, *stream_of));
      return buffer;
    };
    auto workspace = DeviceBuffer::allocate(plan->workspace_bytes()).value();
    EXPECT_TRUE(plan->init_workspace(workspace.data(), workspace.bytes(), stream_of->get()));
    auto on_q = upload(q.data(), kQueryBytes), on_k = upload(k.data(), kCacheBytes),
         on_v = upload(v.data(), kCacheBytes);
    auto on_o = upload(q.data(), kQueryBytes), on_lengths = upload(lengths, sizeof lengths);
    return Device{
        *std::move(context), *std::move(stream_of), *std::move(engine),    std::move(on_q),      std::move(on_k),
        std::move(on_v),     std::move(on_o),       std::move(on_lengths), std::move(workspace), *plan};
  };
  auto first = open(0), second = open(1);
  ASSERT_TRUE(first) << first.error().message;
  ASSERT_TRUE(second) << second.error().message;
  // Device 1's context is current for both launches.
  const auto launch = [&](Device& device) {
    DecodeArgs args;
    args.q = device.q.data(), args.k = device.k.data(), args.v = device.v.data(), args.o = device.o.data();
    args.context_lengths = device.lengths.as<std::int32_t>();
    args.batch = kBatch, args.context_capacity = kCapacity;
    return device.plan.launch(args, device.workspace.data(), device.stream.get());
  };
  for (Device* device : {&*first, &*second}) {
    const auto launched = launch(*device);
    ASSERT_TRUE(launched) << launched.error().message;
  }
  std::vector<std::uint16_t> outputs[2];
  for (int i = 0; i < 2; ++i) {
    Device& device = i == 0 ? *first : *second;
    ASSERT_TRUE(device.context.make_current());
    outputs[i].resize(q.size());
    ASSERT_TRUE(copy_to_host(outputs[i].data(), device.o.data(), kQueryBytes, device.stream));
  }
  EXPECT_NE(outputs[0], q) << "something was written";
  EXPECT_EQ(outputs[0], outputs[1]);
  ASSERT_TRUE(GpuUnderTest::instance().context->make_current());
}

}  // namespace
}  // namespace leanattn
