// group_over_nccl_faults_test.cpp -- what ranks of a group over NCCL are told when one of them does not come, fails or
// launches something else, and how they go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "groups_over_nccl.hpp"
#include "tests/no_threads.hpp"

namespace leanattn {
namespace {

/// Of waits in vain. Ranks that do come have as long, on a machine that may be busy.
constexpr const char* kBoundMs = "400";

class GroupsOverNcclFaults : public GroupsOverNccl {};

TEST_F(GroupsOverNcclFaults, OfTwoLevelsAFaultNamesTheRankAndBothLevelsAreMended) {
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make_two_levels(4, 2, problem);
  contexts.make(7);
  step(contexts, problem);
  // The kernel of rank 2 has waited for its peer 1, which is rank 3.
  const LeanDecodeArgs args = last_decode_of(2);
  args.status->workspace = reinterpret_cast<std::uintptr_t>(args.group);
  args.status->fault = kLeanRankMissing | 1u << kLeanRankShift;
  expect_refused(engines_[2].check(), ErrorCode::group_broken, "rank 3 of a group did not send its results");
  const std::vector<Group::NcclId> ids{Group::nccl_id().value(), Group::nccl_id().value()};
  for (std::size_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(groups_[rank].connect_nccl(ids[rank % 2]));
  expect_refused(engines_[2].check(), ErrorCode::group_broken, "rank 3");
  for (Group& group : groups_) ASSERT_TRUE(group.reset(nullptr));
  EXPECT_TRUE(engines_[2].check());
  contexts.make(8);
  step(contexts, problem);
  expect_right(contexts, problem, "mended");
}

TEST_F(GroupsOverNcclFaults, WithoutAThreadToJoinByTheLimitIsNamed) {
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem_of({}), 8).value(), 1).value());
  const auto id = Group::nccl_id().value();
  {
    const NoThreads none;
    expect_refused(groups_[0].connect_nccl(id), ErrorCode::out_of_memory, "no thread left");
  }
  EXPECT_TRUE(groups_[0].connect_nccl(id)) << "a later call may succeed";
  groups_.clear();
}

TEST_F(GroupsOverNcclFaults, ARankThatNeverJoinsIsAnErrorWithinTheBound) {
  const EnvironmentOf bound("LEANATTN_JOIN_BOUND_MS", "40");
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  expect_refused(plan(0, problem), ErrorCode::invalid_argument, "not connected over NCCL");
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value())) << "it does not wait";
  expect_refused(plan(0, problem), ErrorCode::group_broken, "not all ranks of a group over NCCL have joined it within");
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "40 ms");
  EXPECT_TRUE(eventually([] { return fake_nccl().aborted == 1; })) << "its communicator is aborted";
  groups_.clear();
  EXPECT_TRUE(engines_[0].check()) << "the fault ends with its group";
}

TEST_F(GroupsOverNcclFaults, ARankThatDoesNotSendEndsTheLaunchesAndTheGroupIsConnectedAgain) {
  const EnvironmentOf bound("LEANATTN_WAIT_BOUND_MS", kBoundMs);
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  ASSERT_TRUE(engines_[0].check()) << "nothing waits between launches";

  // Rank 1 stays away. The launch of rank 0 waits in the exchange, as its stream would.
  std::vector<Plan> plans{plan(0, problem).value(), plan(1, problem).value()};
  Workspace workspace(std::max(plans[0].workspace_bytes(), plans[1].workspace_bytes()));
  (void)plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr);  // ends because of the abort
  EXPECT_EQ(fake_nccl().aborted, 1);
  expect_refused(engines_[0].check(), ErrorCode::group_broken,
                 std::string("did not send its results within ") + kBoundMs + " ms");
  expect_refused(plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                 "did not send");
  expect_refused(groups_[0].reset(nullptr), ErrorCode::group_broken, "no communicator of NCCL that works");
  EXPECT_TRUE(engines_[1].check()) << "it has waited for nobody, so that its communicator still works";

  // Both connect again.
  const Group::NcclId id = Group::nccl_id().value();
  ASSERT_TRUE(groups_[0].connect_nccl(id));
  expect_refused(plans[0].launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::not_prepared,
                 "still connecting");
  ASSERT_TRUE(groups_[1].connect_nccl(id));
  EXPECT_EQ(fake_nccl().aborted, 2) << "a communicator is given up for a new one";
  EXPECT_TRUE(engines_[0].check() && engines_[1].check()) << "the fault is forgotten";
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "connected again");
}

TEST_F(GroupsOverNcclFaults, ALaunchThatTheDriverRefusesIsNotWaitedFor) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  refuses_next_ = true;
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::launch_failed,
                 "does not fit the SMs of this stream");
  refuses_next_ = false;
  EXPECT_EQ(fake_gpu().launches.back().kernel, "merge_partials_bf16");
  EXPECT_EQ(progress_->begun, progress_->ended) << "or the group would break once the bound is over";
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "after a refused launch");
}

TEST_F(GroupsOverNcclFaults, AFaultOfEachGroupStaysUntilThatGroupIsMendedOrEnds) {
  const Problem problem = problem_of({});
  open_engines(1);
  const auto break_two_groups = [&] {
    const EnvironmentOf bound("LEANATTN_JOIN_BOUND_MS", "40");
    for (int group = 0; group < 2; ++group) {
      groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
      ASSERT_TRUE(groups_.back().connect_nccl(Group::nccl_id().value()));
      expect_refused(engines_[0].plan(problem, shape_, groups_.back()), ErrorCode::group_broken,
                     "have joined it within");
    }
  };
  break_two_groups();
  groups_.erase(groups_.begin());
  expect_refused(engines_[0].check(), ErrorCode::group_broken, "have joined it within");
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  EXPECT_TRUE(engines_[0].check()) << "it connects again";
  groups_.clear();
  break_two_groups();
  for (int group = 0; group < 2; ++group) {
    expect_refused(engines_[0].check(), ErrorCode::group_broken, "have joined it within");
    ASSERT_TRUE(engines_[0].acknowledge());
  }
  EXPECT_TRUE(engines_[0].check());
}

TEST_F(GroupsOverNcclFaults, AnAbortThatTakesLongOutlivesTheEngine) {
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  ASSERT_TRUE(eventually([] { return fake_nccl().live_comms == 1; }));
  fake_nccl().holds_aborts = true;
  groups_.clear();  // which waits for a second
  engines_.clear();
  EXPECT_EQ(fake_nccl().aborted, 0);
  fake_nccl().holds_aborts = false;
  fake_nccl().holds_aborts.notify_all();
  EXPECT_TRUE(eventually([] { return live_objects_now() == 0; })) << "all is given back with a context current";
}

TEST_F(GroupsOverNcclFaults, WithDebugTheNextLaunchNamesTheRankThatLaunchedSomethingElse) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make(4, problem);
  contexts.make(1);
  step(contexts, problem);
  step(contexts, problem);
  // Rank 2 is told of another context.
  std::vector<int> other = contexts.lengths;
  ++other[0];
  other_lengths_ = {2, other.data()};
  step(contexts, problem);
  other_lengths_ = {};
  for (std::size_t rank = 0; rank < 4; ++rank) {
    expect_refused(
        checked_launch(rank, contexts, problem), ErrorCode::group_broken,
        "rank " + std::to_string(rank == 2 ? 0 : 2) + " of a group was given other full_context_lengths than this one");
  }
  contexts.make(2);
  step(contexts, problem);
  expect_right(contexts, problem, "after a disagreement");
  // Scales differ.
  other_scale_ = {1, 0.5f};
  step(contexts, problem);
  other_scale_ = {};
  expect_refused(checked_launch(3, contexts, problem), ErrorCode::group_broken,
                 "rank 1 of a group launched with scale 0.5, and this one with 0.25");
}

TEST_F(GroupsOverNcclFaults, WithDebugRanksOfTwoLevelsNameEachOtherAndProblemsMustBeEqual) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts{.ranks = 4};
  const Problem problem = problem_of(contexts);
  make_two_levels(4, 2, problem);
  contexts.make(1);
  Problem capped = problem;
  capped.soft_cap = 30;
  other_problem_ = {2, capped};
  step(contexts, problem);
  other_problem_ = {};
  expect_refused(checked_launch(0, contexts, problem), ErrorCode::group_broken,
                 "rank 2 of a group launched another problem than this one");
  expect_refused(checked_launch(2, contexts, problem), ErrorCode::group_broken,
                 "rank 0 of a group launched another problem than this one");
}

TEST_F(GroupsOverNcclFaults, WithDebugALaunchThatIsCapturedTellsNothing) {
  const EnvironmentOf debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const auto context = Context::retain(0);
  {
    const auto stream = Stream::create();
    const auto made = plan(0, problem);
    Workspace workspace(made->workspace_bytes());
    const int sends = fake_nccl().calls["ncclSend"];
    const auto graph = Graph::capture(*stream, [&](CUstream_st* captured) {
      return made->launch(arguments(contexts, problem, 0), workspace.data, captured);
    });
    ASSERT_TRUE(graph) << graph.error().message;
    EXPECT_EQ(fake_nccl().calls["ncclSend"], sends + 2) << "O and LSE";
  }
  cuCtxSetCurrent(nullptr);
}

TEST_F(GroupsOverNcclFaults, WithDebugABrokenLaunchAccusesNobodyOnceTheGroupIsConnectedAgain) {
  const EnvironmentOf bound("LEANATTN_WAIT_BOUND_MS", kBoundMs), debug("LEANATTN_DEBUG", "1");
  fake_gpu().knows_pointers = true;
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  contexts.make(2);
  (void)checked_launch(0, contexts, problem);  // rank 1 tells nothing of these lengths
  expect_refused(engines_[0].check(), ErrorCode::group_broken,
                 std::string("did not send its results within ") + kBoundMs + " ms");
  const Group::NcclId id = Group::nccl_id().value();
  for (Group& group : groups_) ASSERT_TRUE(group.connect_nccl(id));
  contexts.make(3);
  step(contexts, problem);
  expect_right(contexts, problem, "connected again");
}

TEST_F(GroupsOverNcclFaults, WhatNcclFindsIsToldByTheNextCall) {
  Contexts contexts;
  const Problem problem = problem_of(contexts);
  make_and_step(contexts, problem);
  const Plan made = plan(0, problem).value();
  Workspace workspace(made.workspace_bytes());
  fake_nccl().async_error = 6;
  const auto launched = made.launch(arguments(contexts, problem, 0), workspace.data, nullptr);
  expect_refused(launched, ErrorCode::group_broken, "remote process exited");
  EXPECT_NE(launched.error().hint.find("NCCL does not say which rank"), std::string::npos) << launched.error().hint;
  EXPECT_TRUE(eventually([] { return fake_nccl().aborted == 1; }));
  fake_nccl().async_error = 0;
  expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                 "remote process exited");
}

TEST_F(GroupsOverNcclFaults, ACallThatNcclRefusesBreaksTheGroup) {
  for (const char* call : {"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    groups_.clear(), engines_.clear();
    Contexts contexts;
    const Problem problem = problem_of(contexts);
    make_and_step(contexts, problem);
    const Plan made = plan(0, problem).value();
    Workspace workspace(made.workspace_bytes());
    fake_nccl().fail_once[call] = 3;
    expect_refused(made.launch(arguments(contexts, problem, 0), workspace.data, nullptr), ErrorCode::group_broken,
                   std::string(call) + ": told to fail (3)");
    expect_refused(engines_[0].check(), ErrorCode::group_broken, call);
  }
}

TEST_F(GroupsOverNcclFaults, RanksThatFailToJoinSayWhy) {
  const Problem problem = problem_of({});
  open_engines(1);
  groups_.push_back(Group::create(engines_[0], 0, 2, Group::bytes(problem, 8).value(), 1).value());
  fake_nccl().fail_once["ncclCommInitRankConfig"] = 2;
  ASSERT_TRUE(groups_[0].connect_nccl(Group::nccl_id().value()));
  expect_refused(plan(0, problem), ErrorCode::group_broken, "ncclCommInitRankConfig: told to fail (2)");
}

}  // namespace
}  // namespace leanattn
