// group_backend_test.cpp -- the backend of groups on fictional GPUs: what it launches on which GPU and with which data,
// and what it refuses. The GPUs execute nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "generator/generator.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"
#include "tests/unit/tuner/fake_gpu/tuned_gpu.hpp"
#include "tuner/backend/group_backend.hpp"

namespace leanattn {
namespace {

class TuningOfGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto api = nvrtc(); !api) GTEST_SKIP() << api.error().message;
    fake_gpu() = tuned_gpu(2);
    if (!cubins) cubins = open_cubin_db(std::nullopt, nullptr);
    problem.features.context_parallel = 2;
  }
  void TearDown() override {
    if (IsSkipped()) return;
    backend.reset();
    cuCtxSetCurrent(nullptr);
    EXPECT_EQ(fake_gpu().live_objects(), 0) << "something was not given back to the driver";
  }

  static void TearDownTestSuite() { cubins.reset(); }

  void open(const std::vector<int>& devices) {
    const auto device = device_facts(devices.front());
    ASSERT_TRUE(device) << device.error().message;
    facts = *device;
    auto made = GroupBackend::create(facts, problem, L2Policy::cold, cubins.get(), devices);
    ASSERT_TRUE(made) << made.error().message;
    backend = std::move(*made);
  }
  /// The default configuration with another number of CTAs, compiled.
  Config config_of(std::int64_t grid) {
    Config config = default_config({facts, problem, shape});
    config.grid = grid;
    const auto compiled = backend->compile(config.spec);
    EXPECT_TRUE(compiled) << compiled.error().message << compiled.error().log;
    return config;
  }
  /// The arguments of the launches of decode kernels since the last call, by device.
  std::map<int, std::vector<LeanDecodeArgs>> launched(const Config& config) {
    std::map<int, std::vector<LeanDecodeArgs>> launches;
    for (const FakeLaunch& launch : fake_gpu().launches) {
      if (launch.kernel != kernel_name(config.spec)) continue;
      LeanDecodeArgs args;
      std::memcpy(&args, launch.arguments.data(), sizeof args);
      launches[launch.device].push_back(args);
    }
    fake_gpu().launches.clear();
    return launches;
  }

  DecodeProblem problem;
  Shape shape{.batch = 2, .longest_context = 512};
  DeviceFacts facts;
  std::unique_ptr<GroupBackend> backend;
  inline static std::unique_ptr<CubinCache> cubins;  ///< of all tests, so that each kernel is compiled once
};

TEST_F(TuningOfGroups, EveryRankReplaysEqualLaunchesOnItsOwnGpuAndData) {
  open({0, 1});
  const auto begun = backend->begin_shape(shape);
  ASSERT_TRUE(begun) << begun.error().message;
  const std::vector<Config> configs{config_of(16), config_of(40)};
  fake_gpu().launches.clear();
  const auto times = backend->time(configs);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->us.size(), configs.size());
  const auto launches = launched(configs[0]);
  ASSERT_EQ(launches.size(), 2u);
  const auto& first = launches.at(0);
  const auto& second = launches.at(1);
  ASSERT_EQ(first.size(), second.size()) << "the exchange keeps ranks in step only if they launch equally often";
  std::set<const void*> copies;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].group_rank, 0);
    EXPECT_EQ(second[i].group_rank, 1);
    EXPECT_NE(first[i].group, second[i].group);
    EXPECT_NE(first[i].q, second[i].q) << "a rank reads q from its own GPU";
    EXPECT_NE(first[i].k, second[i].k);
    EXPECT_NE(first[i].o, second[i].o);
    EXPECT_NE(first[i].partials, second[i].partials);
    EXPECT_EQ(first[i].group_checks, 0) << "as engines launch";
    EXPECT_EQ(first[i].batch, shape.batch);
    for (int request = 0; request < shape.batch; ++request) {
      EXPECT_EQ(first[i].context_lengths[request], 512) << "ranks get what the shape says";
      EXPECT_EQ(second[i].context_lengths[request], 512);
      EXPECT_EQ(first[i].full_lengths[request], 1024);
      EXPECT_EQ(second[i].context_starts[request], 512);
    }
    copies.insert(first[i].k);
  }
  EXPECT_GT(copies.size(), 1u) << "a cold L2 needs copies in turn";
  EXPECT_EQ(fake_gpu().peer_access, (std::set<std::pair<int, int>>{{0, 1}, {1, 0}}));
}

TEST_F(TuningOfGroups, OneGpuStandsInForAllRanksAndHoldsTheirCtasTogether) {
  open({0, 0});
  ASSERT_TRUE(backend->begin_shape(shape));
  const std::int64_t resident = std::int64_t{fake_gpu().sm_count} * fake_gpu().resident_ctas_per_sm;
  const auto times = backend->time(std::vector<Config>{config_of(resident / 2)});
  ASSERT_TRUE(times) << times.error().message;
  const auto outcome = backend->check(config_of(resident / 2 + 1));
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome->verdict, Verdict::launch_failed);
  EXPECT_NE(outcome->reason.find("holds " + std::to_string(resident / 2)), std::string::npos) << outcome->reason;
}

TEST_F(TuningOfGroups, ARoundWithoutCandidatesIsTheSentinelAlone) {
  open({0, 1});
  ASSERT_TRUE(backend->begin_shape(shape));
  const auto times = backend->time({});
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_TRUE(times->us.empty());
  EXPECT_GT(times->sentinel_us, 0);
}

TEST_F(TuningOfGroups, ShapesFollowEachOther) {
  problem.features.page_size = 16, problem.features.context_interleave = 16;
  problem.layout = KvLayout::strided;
  open({0, 1});
  for (const std::int64_t context : {512, 100, 3000}) {
    shape.longest_context = context;
    const auto begun = backend->begin_shape(shape);
    ASSERT_TRUE(begun) << begun.error().message;
    const Config config = config_of(8);
    fake_gpu().launches.clear();
    ASSERT_TRUE(backend->time(std::vector<Config>{config}));
    const auto launches = launched(config);
    for (const int device : {0, 1}) {
      const LeanDecodeArgs& args = launches.at(device).front();
      EXPECT_LE(std::abs(args.context_lengths[0] - context), 16) << "units are dealt whole";
      EXPECT_EQ(args.k_stride_head, problem.head_dim) << "the caches have the problem's layout";
      EXPECT_EQ(args.k_stride_token, problem.kv_heads * problem.head_dim);
    }
  }
}

TEST_F(TuningOfGroups, GpusThatDoNotReachEachOtherAreNamed) {
  open({0, 1});
  fake_gpu().peers_reach = false;
  const auto begun = backend->begin_shape(shape);
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ErrorCode::unsupported);
  EXPECT_NE(begun.error().message.find("cannot reach the memory of GPU 1"), std::string::npos) << begun.error().message;
  EXPECT_NE(begun.error().hint.find("peer access"), std::string::npos) << begun.error().hint;
}

TEST_F(TuningOfGroups, ARankThatWaitedInVainIsNamedAndTheNextCandidateGoesOn) {
  open({0, 1});
  ASSERT_TRUE(backend->begin_shape(shape));
  const std::vector<Config> configs{config_of(16)};
  fake_gpu().launches.clear();
  ASSERT_TRUE(backend->time(configs));
  // As a kernel of rank 0 reports it while the next round runs.
  const LeanDecodeArgs args = launched(configs[0]).at(0).front();
  args.status->fault = kLeanRankMissing | 1u << kLeanRankShift;
  args.status->workspace = reinterpret_cast<std::uintptr_t>(args.group);
  const auto failed = backend->time(configs);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::launch_failed);
  EXPECT_NE(failed.error().message.find("rank 1"), std::string::npos) << failed.error().message;
  EXPECT_EQ(args.status->fault, 0u) << "the fault is forgotten once the group is reset";
  EXPECT_TRUE(backend->time(configs));
}

TEST_F(TuningOfGroups, ScalesPerTokenAndWrongNumbersOfGpusAreRefused) {
  const auto device = device_facts(0).value();
  const auto alone = GroupBackend::create(device, problem, L2Policy::cold, nullptr, {0});
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, ErrorCode::invalid_argument);
  problem.features.kv_format = KvFormat::int8, problem.features.kv_scale = KvScale::token;
  const auto scales = GroupBackend::create(device, problem, L2Policy::cold, nullptr, {0, 1});
  ASSERT_FALSE(scales);
  EXPECT_EQ(scales.error().code, ErrorCode::unsupported);
  EXPECT_FALSE(scales.error().hint.empty());
}

}  // namespace
}  // namespace leanattn
