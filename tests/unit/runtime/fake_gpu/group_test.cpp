// group_test.cpp -- groups of ranks on fictional GPUs: how they are made, exported and connected, what is refused, what
// their launches carry, and how faults name the rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "fake_gpu_fixture.hpp"
#include "runtime/engine/group.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

class GroupsOfRanks : public FakeGpuEngine {
 protected:
  void SetUp() override {
    FakeGpuEngine::SetUp();
    fake_gpu().devices = 2;
    problem_of_two_.context_parallel = 2;
  }
  void TearDown() override {
    groups_.clear();
    engines_.clear();
    FakeGpuEngine::TearDown();
  }

  /// Two ranks on these devices.
  void make(int first, int second) {
    engines_.push_back(open(first));
    engines_.push_back(open(second));
    auto made = Group::of_engines({&engines_[0], &engines_[1]}, bytes());
    ASSERT_TRUE(made) << made.error().message;
    groups_ = std::move(*made);
  }
  std::int64_t bytes() { return Group::bytes(problem_of_two_, 8).value(); }
  Result<Plan> plan(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return engines_[r].plan(problem_of_two_, shape_, groups_[r]);
  }
  /// The arguments of a launch of the rank.
  LeanDecodeArgs launched(int rank, const DecodeArgs& args) {
    const auto made = plan(rank);
    EXPECT_TRUE(made) << made.error().message << made.error().log;
    Workspace workspace(made->workspace_bytes());
    const auto ok = made->launch(args, workspace.data, nullptr);
    EXPECT_TRUE(ok) << ok.error().message;
    return last_launch_args();
  }
  static LeanGroup& group_of(const LeanDecodeArgs& args) { return *static_cast<LeanGroup*>(args.group); }

  Problem problem_of_two_{};
  std::vector<Engine> engines_;
  std::vector<Group> groups_;
};

TEST_F(GroupsOfRanks, ReachEachOthersMemoryInOneProcess) {
  make(0, 1);
  EXPECT_EQ(fake_gpu().peer_access, (std::set<std::pair<int, int>>{{0, 1}, {1, 0}}));
  const LeanDecodeArgs first = launched(0, args()), second = launched(1, args());
  EXPECT_EQ(first.group_rank, 0);
  EXPECT_EQ(second.group_rank, 1);
  ASSERT_NE(first.group, second.group);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(group_of(first).exchange[rank], group_of(second).exchange[rank]) << "both mean the same memory";
    EXPECT_NE(group_of(first).exchange[rank], nullptr);
  }
  EXPECT_NE(group_of(first).exchange[0], group_of(first).exchange[1]);
  EXPECT_EQ(group_of(first).arrivals, 0u);
  // 8 requests of 16 of 32 query heads with 128 / 4 columns each.
  EXPECT_EQ(group_of(first).columns, 8u * 16 * 32);
  EXPECT_EQ(fake_gpu().calls["cuIpcOpenMemHandle"], 0);
}

TEST_F(GroupsOfRanks, SharesOfOneGpuAreCutAndNeitherCooperativeNorDependent) {
  problem_of_two_.pdl = true;
  make(0, 0);
  EXPECT_TRUE(fake_gpu().peer_access.empty()) << "one GPU reaches its own memory";
  launched(0, args());
  const FakeLaunch beside = fake_gpu().launches.back();
  EXPECT_FALSE(beside.cooperative);
  EXPECT_FALSE(beside.programmatic);
  EXPECT_LE(beside.grid, static_cast<unsigned>(fake_gpu().sm_count * fake_gpu().resident_ctas_per_sm / 2));
}

TEST_F(GroupsOfRanks, OnGpusOfTheirOwnAreCooperativeWhateverTheFixUp) {
  make(0, 1);
  launched(0, args());
  EXPECT_TRUE(fake_gpu().launches.back().cooperative);
  EXPECT_LE(fake_gpu().launches.back().grid,
            static_cast<unsigned>(fake_gpu().sm_count * fake_gpu().resident_ctas_per_sm));
}

TEST_F(GroupsOfRanks, OfAnotherProcessAreOpenedByTheirHandlesAndClosedAgain) {
  engines_.push_back(open(0));
  auto own = Group::create(engines_[0], 0, 2, bytes()), other = Group::create(engines_[0], 1, 2, bytes());
  ASSERT_TRUE(own && other);
  std::vector<Group::Blob> blobs{own->export_blob().value(), other->export_blob().value()};
  const std::vector<Group::Blob> blobs_of_one_process = blobs;
  // As if another process had made it: its name there is another one.
  auto& blob = blobs[1];
  const std::size_t at =
      std::string(reinterpret_cast<const char*>(blob.data()), blob.size()).find("." + std::to_string(getpid()));
  ASSERT_NE(at, std::string::npos);
  blob[at] = 'x';
  ASSERT_TRUE(own->connect(blobs));
  EXPECT_EQ(fake_gpu().live_imports, 1);
  EXPECT_EQ(fake_gpu().calls["cuIpcOpenMemHandle"], 1);
  groups_.push_back(std::move(*own));
  groups_.push_back(std::move(*other));
  const LeanDecodeArgs bound = launched(0, args());
  // It is where the other rank has it.
  LeanGroup theirs{};
  ASSERT_TRUE(groups_[1].connect(blobs_of_one_process));
  std::memcpy(&theirs,
              group_of(bound).exchange[1] - (group_of(bound).exchange[0] - reinterpret_cast<char*>(bound.group)),
              sizeof theirs);
  EXPECT_EQ(theirs.exchange[1], group_of(bound).exchange[1]);
  groups_.clear();
  EXPECT_EQ(fake_gpu().live_imports, 0);
}

TEST_F(GroupsOfRanks, TakeMemoryOfTheCallersThatTheCallerHasMapped) {
  constexpr std::int64_t kInside = 512;  // the memory is a part of an allocation
  std::vector<DeviceBuffer> memory;
  std::vector<Group::Blob> blobs;
  for (int rank = 0; rank < 2; ++rank) {
    engines_.push_back(open(rank));
    const auto context = Context::retain(rank);
    memory.push_back(DeviceBuffer::allocate(kInside + bytes()).value());
    groups_.push_back(Group::create(engines_.back(), rank, 2, bytes(), 0, memory.back().at(kInside)).value());
    blobs.push_back(groups_.back().export_blob().value());
  }
  // Where the GPU of rank 0 reaches both.
  std::vector<char> window(static_cast<std::size_t>(bytes()));
  const std::vector<void*> mapped{memory[0].at(kInside), window.data()};
  expect_refused(groups_[0].connect(blobs, {mapped[0]}), ErrorCode::invalid_argument,
                 "1 addresses for a group of 2 ranks");
  expect_refused(groups_[0].connect(blobs, {mapped[0], nullptr}), ErrorCode::invalid_argument, "memory[1] is null");
  expect_refused(groups_[0].connect(blobs, {memory[0].data(), mapped[1]}), ErrorCode::invalid_argument, "memory[0] is");
  expect_refused(groups_[0].connect(blobs, {mapped[1], mapped[0]}), ErrorCode::invalid_argument, "memory[0] is");
  ASSERT_TRUE(groups_[0].connect(blobs, mapped));
  EXPECT_TRUE(fake_gpu().peer_access.empty());
  EXPECT_EQ(fake_gpu().calls["cuIpcOpenMemHandle"], 0);
  // By its handle, as from another process.
  std::vector<Group::Blob> sent = blobs;
  const std::string all(reinterpret_cast<const char*>(sent[0].data()), sent[0].size());
  sent[0][all.find("." + std::to_string(getpid()))] = 'x';
  ASSERT_TRUE(groups_[1].connect(sent));
  EXPECT_EQ(fake_gpu().calls["cuIpcOpenMemHandle"], 1);
  const LeanDecodeArgs first = launched(0, args()), second = launched(1, args());
  EXPECT_EQ(first.group, memory[0].at(kInside));
  EXPECT_EQ(second.group, memory[1].at(kInside));
  const std::ptrdiff_t offset = group_of(first).exchange[0] - static_cast<char*>(first.group);
  EXPECT_EQ(group_of(first).exchange[1], window.data() + offset);
  EXPECT_EQ(group_of(second).exchange[0], group_of(first).exchange[0]) << "the handle is that of the whole allocation";
  const int buffers = fake_gpu().live_buffers;
  groups_.clear();
  EXPECT_EQ(fake_gpu().live_buffers, buffers) << "it stays the caller's";
  for (int rank = 0; rank < 2; ++rank) {
    const auto context = Context::retain(rank);
    memory[static_cast<std::size_t>(rank)] = DeviceBuffer();
  }
}

TEST_F(GroupsOfRanks, RefuseMemoryThatCannotServe) {
  engines_.push_back(open(0));
  engines_.push_back(open(1));
  const auto context = Context::retain(0);
  DeviceBuffer memory = DeviceBuffer::allocate(bytes() + 256).value();
  void* const aligned = memory.at(256);
  const Workspace of_the_host(bytes());
  expect_refused(Group::create(engines_[0], 0, 2, bytes(), 0, of_the_host.data), ErrorCode::invalid_argument,
                 "which CUDA did not allocate");
  expect_refused(Group::create(engines_[0], 0, 2, bytes(), 0, memory.at(512)), ErrorCode::invalid_argument,
                 "bytes to the end of its allocation");
  expect_refused(Group::create(engines_[0], 0, 2, bytes(), 0, static_cast<char*>(aligned) + 16),
                 ErrorCode::invalid_argument, "which is not a multiple of 256 bytes");
  expect_refused(Group::create(engines_[0], 0, 2, bytes(), 1, aligned), ErrorCode::invalid_argument,
                 "memory is given to a rank without peers");
  const Group other = Group::create(engines_[0], 1, 2, bytes()).value();
  groups_.push_back(Group::create(engines_[0], 0, 2, bytes(), 0, aligned).value());
  expect_refused(
      groups_[0].connect({groups_[0].export_blob().value(), other.export_blob().value()}, {aligned, aligned}),
      ErrorCode::invalid_argument, "rank 1 has allocated the memory of its group itself");
  EXPECT_EQ(leanattn_group_connect_mapped(groups_[0].get(), aligned, nullptr), LEANATTN_INVALID_ARGUMENT);
  // Memory that CUDA IPC does not export cannot be mapped by the group, also not within a process.
  fake_gpu().fail_once["cuIpcGetMemHandle"] = CUDA_ERROR_INVALID_VALUE;
  const Group::Blob not_exported = groups_[0].export_blob().value();
  groups_.push_back(Group::create(engines_[1], 1, 2, bytes()).value());
  expect_refused(groups_[1].connect({not_exported, groups_[1].export_blob().value()}), ErrorCode::unsupported,
                 "CUDA IPC cannot export the memory that rank 0 was given");
  groups_.clear();
  memory = DeviceBuffer();
}

TEST_F(GroupsOfRanks, RefuseWhatIsNoGroup) {
  engines_.push_back(open(0));
  for (const auto& [rank, size] : {std::pair(0, 1), std::pair(0, 9)})
    expect_refused(Group::create(engines_[0], rank, size, bytes()), ErrorCode::invalid_argument,
                   "a group of " + std::to_string(size) + " ranks");
  for (const int rank : {-1, 2})
    expect_refused(Group::create(engines_[0], rank, 2, bytes()), ErrorCode::invalid_argument,
                   "rank " + std::to_string(rank) + " of a group of 2");
  for (const std::int64_t few : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 60})
    expect_refused(Group::create(engines_[0], 0, 2, few), ErrorCode::invalid_argument,
                   "memory_bytes of a group is " + std::to_string(few));
  fake_gpu().fail_once["cuMemAlloc"] = CUDA_ERROR_OUT_OF_MEMORY;
  expect_refused(Group::create(engines_[0], 0, 2, bytes()), ErrorCode::out_of_memory, "");
  EXPECT_FALSE(Group::bytes(Problem{}, 4)) << "no group at all";
  Problem wrong = problem_of_two_;
  wrong.context_parallel = 3;
  expect_refused(Group::bytes(wrong, 4), ErrorCode::unsupported, "cannot be dealt to 3 ranks");
  wrong.replicate_output = true;
  EXPECT_TRUE(Group::bytes(wrong, 4));
}

TEST_F(GroupsOfRanks, RefuseBlobsThatDoNotBelongTogether) {
  engines_.push_back(open(0));
  Group first = Group::create(engines_[0], 0, 2, bytes()).value(),
        second = Group::create(engines_[0], 1, 2, bytes()).value(),
        larger = Group::create(engines_[0], 1, 2, 2 * bytes()).value(),
        strange = Group::create(engines_[0], 0, 2, bytes()).value();
  const Group::Blob a = first.export_blob().value(), b = second.export_blob().value(),
                    big = larger.export_blob().value(), other = strange.export_blob().value();
  expect_refused(first.connect({a}), ErrorCode::invalid_argument, "1 blobs for a group of 2 ranks");
  expect_refused(first.connect({a, Group::Blob{}}), ErrorCode::invalid_argument, "blob 1 is none");
  expect_refused(first.connect({b, a}), ErrorCode::invalid_argument, "blob 0 is that of rank 1");
  expect_refused(first.connect({a, big}), ErrorCode::invalid_argument, "room for");
  expect_refused(first.connect({other, b}), ErrorCode::invalid_argument, "blob 0 is of another group");
  ASSERT_TRUE(first.connect({a, b}));
  expect_refused(first.connect({a, b}), ErrorCode::invalid_argument, "connected already");
}

TEST_F(GroupsOfRanks, SayWhichGpusDoNotReachEachOther) {
  fake_gpu().peers_reach = false;
  engines_.push_back(open(0));
  engines_.push_back(open(1));
  const auto made = Group::of_engines({&engines_[0], &engines_[1]}, bytes(), GroupTransport::peers);
  expect_refused(made, ErrorCode::unsupported, "GPU 0 of rank 0 cannot reach the memory of GPU 1 of rank 1");
}

TEST_F(GroupsOfRanks, PlansCheckTheirGroup) {
  make(0, 0);
  expect_refused(engines_[1].plan(problem_of_two_, shape_, groups_[0]), ErrorCode::invalid_argument,
                 "the group is of another engine");
  expect_refused(engines_[0].plan(problem_, shape_, groups_[0]), ErrorCode::invalid_argument,
                 "a problem without context_parallel");
  Problem four = problem_of_two_;
  four.context_parallel = 4;
  expect_refused(engines_[0].plan(four, shape_, groups_[0]), ErrorCode::invalid_argument,
                 "context_parallel 4 on a group of 2 ranks");
  PlanShape large = shape_;
  large.max_batch = 9;
  expect_refused(engines_[0].plan(problem_of_two_, large, groups_[0]), ErrorCode::invalid_argument,
                 "launches of 9 requests need a group with");
  Group alone = Group::create(engines_[0], 0, 2, bytes()).value();
  expect_refused(engines_[0].plan(problem_of_two_, shape_, alone), ErrorCode::invalid_argument, "not connected");
}

TEST_F(GroupsOfRanks, APlanWithoutItsGroupLaunchesNothing) {
  engines_.push_back(open(0));
  const auto made = engines_[0].plan(problem_of_two_, shape_);
  ASSERT_TRUE(made) << made.error().message << made.error().log;
  Workspace workspace(made->workspace_bytes());
  expect_refused(made->launch(args(), workspace.data, nullptr), ErrorCode::invalid_argument, "the plan has no group");
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(GroupsOfRanks, AnEmptyBatchEnqueuesNothingOnAnyRank) {
  make(0, 1);
  DecodeArgs none = args();
  none.batch = 0;
  for (const int rank : {0, 1}) {
    const auto made = plan(rank);
    ASSERT_TRUE(made) << made.error().message << made.error().log;
    Workspace workspace(made->workspace_bytes());
    ASSERT_TRUE(made->launch(none, workspace.data, nullptr));
  }
  EXPECT_TRUE(fake_gpu().launches.empty());
}

TEST_F(GroupsOfRanks, TwoGroupsOfAnEngineHavePlansOfTheirOwn) {
  make(0, 0);
  std::vector<Group> more = Group::of_engines({&engines_[0], &engines_[1]}, bytes()).value();
  const auto one = plan(0), again = plan(0), other = engines_[0].plan(problem_of_two_, shape_, more[0]);
  ASSERT_TRUE(one && again && other);
  EXPECT_EQ(one->get(), again->get());
  EXPECT_NE(one->get(), other->get());
  EXPECT_EQ(fake_gpu().live_libraries, 1) << "they share their kernel";
}

TEST_F(GroupsOfRanks, PlansTakeWhatWasTunedOverTheirLink) {
  use_fresh_directory();
  const DeviceFacts facts = device_facts(0).value();
  const auto store = [&](GroupLink link, std::int64_t grid) {
    DecodeProblem problem;
    problem.features.context_parallel = 2, problem.group_link = link;
    const Shape shape{.batch = 2, .max_batch = 0, .longest_context = 1024, .total_context = 0};
    Config config = default_config({facts, problem, shape});
    config.grid = grid;
    const auto db = TuningDb::open(directory_, OpenMode::read_write, nullptr).value();
    const auto session = db->begin_session(device_model(facts), current_environment(facts), "test").value();
    Trial trial;
    trial.problem = to_json(problem), trial.shape = to_json(shape), trial.policy = "cold";
    trial.config = to_json(config), trial.median_us = 10;
    ASSERT_TRUE(db->add_trial(session, trial));
    ASSERT_TRUE(db->rebuild_winners());
  };
  store(GroupLink::same_gpu, 24);
  store(GroupLink::pcie, 40);
  for (const bool one_gpu : {true, false}) {
    groups_.clear();
    engines_.clear();
    make(0, one_gpu ? 0 : 1);
    for (const int rank : {0, 1}) {
      const auto made = plan(rank);
      ASSERT_TRUE(made) << made.error().message << made.error().log;
      EXPECT_EQ(made->info().provenance, LEANATTN_EXACT);
      // Without NVML nobody knows what joins two GPUs, and what is tuned for any link is a better guess than the part.
      EXPECT_EQ(made->info().grid, one_gpu ? 24 : 40);
    }
  }
}

TEST_F(GroupsOfRanks, PositionsAreAskedForWhereMasksNeedThem) {
  problem_of_two_.q_len = 4;
  make(0, 0);
  const auto made = plan(0);
  ASSERT_TRUE(made) << made.error().message << made.error().log;
  Workspace workspace(made->workspace_bytes());
  DecodeArgs given = args();
  expect_refused(made->launch(given, workspace.data, nullptr), ErrorCode::invalid_argument, "full_context_lengths");
  given.full_context_lengths = reinterpret_cast<std::int32_t*>(0x6000);
  expect_refused(made->launch(given, workspace.data, nullptr), ErrorCode::invalid_argument, "context_starts");
  given.context_starts = reinterpret_cast<std::int32_t*>(0x7000);
  ASSERT_TRUE(made->launch(given, workspace.data, nullptr));
  EXPECT_EQ(last_launch_args().full_lengths, given.full_context_lengths);
  EXPECT_EQ(last_launch_args().context_starts, given.context_starts);
  EXPECT_EQ(last_launch_args().group_checks, 0);
  // Of one query token nobody asks where its tokens lie.
  problem_of_two_.q_len = 1;
  const auto plain = plan(0);
  ASSERT_TRUE(plain);
  expect_refused(plain->launch(given, workspace.data, nullptr), ErrorCode::invalid_argument, "context_starts is given");
}

TEST_F(GroupsOfRanks, PositionsAreAskedForWhereWindowsNeedThem) {
  problem_of_two_.window = 100;
  make(0, 0);
  for (const int unit : {0, 16}) {
    problem_of_two_.context_interleave = unit;
    const auto made = plan(0);
    ASSERT_TRUE(made) << made.error().message << made.error().log;
    Workspace workspace(made->workspace_bytes());
    DecodeArgs given = args();
    expect_refused(made->launch(given, workspace.data, nullptr), ErrorCode::invalid_argument, "full_context_lengths");
    given.full_context_lengths = reinterpret_cast<std::int32_t*>(0x6000);
    if (unit == 0)
      expect_refused(made->launch(given, workspace.data, nullptr), ErrorCode::invalid_argument, "context_starts");
    if (unit == 0) given.context_starts = reinterpret_cast<std::int32_t*>(0x7000);
    ASSERT_TRUE(made->launch(given, workspace.data, nullptr));
    EXPECT_EQ(last_launch_args().full_lengths, given.full_context_lengths);
    EXPECT_EQ(last_launch_args().context_starts, given.context_starts);
  }
}

TEST_F(GroupsOfRanks, FaultsNameTheRankUntilTheGroupIsReset) {
  make(0, 0);
  const LeanDecodeArgs bound = launched(0, args());
  const struct {
    unsigned kind;
    const char* what;
  } kFaults[] = {{kLeanRankMissing, "rank 1 of a group did not send its results within 10000 ms"},
                 {kLeanRankDiffers, "rank 1 of a group launched another kernel, batch or scale"}};
  for (const auto& fault : kFaults) {
    bound.status->workspace = reinterpret_cast<std::uintptr_t>(bound.group);
    bound.status->fault = fault.kind | 1u << kLeanRankShift;
    expect_refused(engines_[0].check(), ErrorCode::group_broken, fault.what);
    EXPECT_TRUE(engines_[1].check()) << "the other rank has a status of its own";
    // The group of rank 1 knows nothing of it.
    ASSERT_TRUE(groups_[1].reset(nullptr));
    EXPECT_FALSE(engines_[0].check());
    group_of(bound).arrivals = 77;
    *group_of(bound).exchange[0] = 1;
    ASSERT_TRUE(groups_[0].reset(nullptr));
    EXPECT_TRUE(engines_[0].check());
    EXPECT_EQ(group_of(bound).arrivals, 0u);
    EXPECT_EQ(*group_of(bound).exchange[0], 0);
    EXPECT_EQ(group_of(bound).exchange[1], group_of(launched(1, args())).exchange[1]) << "it stays connected";
  }
}

TEST_F(GroupsOfRanks, AFaultEndsWithItsGroupSoThatTheEngineGoesOn) {
  make(0, 0);
  std::vector<Group> others = Group::of_engines({&engines_[0], &engines_[1]}, bytes()).value();
  const LeanDecodeArgs bound = launched(0, args());
  bound.status->workspace = reinterpret_cast<std::uintptr_t>(bound.group);
  bound.status->fault = kLeanRankMissing | 1u << kLeanRankShift;
  others.clear();
  EXPECT_FALSE(engines_[0].check()) << "it is not the fault of another group";
  groups_.clear();
  EXPECT_TRUE(engines_[0].check());
}

TEST_F(GroupsOfRanks, TheCInterfaceRefusesNull) {
  make(0, 0);
  leanattn_group* made = nullptr;
  std::int64_t bytes = 0;
  leanattn_group_options options;
  leanattn_group_options_init(&options);
  const leanattn_problem problem = detail::to_c(problem_of_two_);
  EXPECT_EQ(leanattn_group_bytes(nullptr, 1, &bytes), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_bytes(&problem, 1, nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_create(nullptr, &options, &made), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_create(engines_[0].get(), nullptr, &made), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_create(engines_[0].get(), &options, nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_export(nullptr, &bytes), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_export(groups_[0].get(), nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_connect(nullptr, &bytes), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_connect(groups_[0].get(), nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_group_reset(nullptr, nullptr), LEANATTN_INVALID_ARGUMENT);
  options.struct_size = 8;
  EXPECT_EQ(leanattn_group_create(engines_[0].get(), &options, &made), LEANATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(leanattn_last_error_message()).find("struct_size is 8"), std::string::npos);
  leanattn_group_destroy(nullptr);
}

}  // namespace
}  // namespace leanattn
