// faults_test.cpp -- launches that ended with a fault, on a fictional GPU: how kernels are told where to report, and
// how an engine answers afterwards. The test writes into the status block what a kernel would.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "fake_gpu_fixture.hpp"

namespace leanattn {
namespace {

class Faults : public FakeGpuEngine {
 protected:
  /// An engine with a plan, a workspace and one launch behind it.
  void launch_once() {
    engine_.emplace(open());
    auto plan = engine_->plan(problem_, shape_);
    ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
    plan_.emplace(*plan);
    workspace_.emplace(plan_->workspace_bytes());
    ASSERT_TRUE(plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr));
    ASSERT_TRUE(plan_->launch(args(), workspace_->data, nullptr));
  }
  void TearDown() override {
    engine_.reset();
    FakeGpuEngine::TearDown();
  }

  /// The block that the last launch was given.
  static LeanStatus& status() { return *last_launch_args().status; }
  /// What a kernel does that finds this fault.
  static void report(unsigned fault) {
    status().workspace = reinterpret_cast<std::uintptr_t>(last_launch_args().tickets);
    status().fault = fault;
  }
  void expect_fault(const Result<void>& answer, const std::string& what) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, ErrorCode::workspace_corrupt);
    EXPECT_NE(answer.error().message.find(what), std::string::npos) << answer.error().message;
    EXPECT_NE(answer.error().message.find(fmt::format("workspace {} ended", workspace_->data)), std::string::npos)
        << answer.error().message;
    for (const char* const part : {"not all zero", "context_lengths changed", "initialise"})
      EXPECT_NE(answer.error().hint.find(part), std::string::npos) << answer.error().hint;
  }

  std::optional<Engine> engine_;
  std::optional<Plan> plan_;
  std::optional<Workspace> workspace_;
};

TEST_F(Faults, EveryLaunchKnowsTheStatusBlockOfItsEngine) {
  launch_once();
  ASSERT_NE(last_launch_args().status, nullptr);
  EXPECT_EQ(status().fault, 0u);
  EXPECT_EQ(status().wait_bound_us, 10000000u);
  LeanStatus* const first = &status();
  std::optional<Context> context(std::move(*Context::retain(0)));
  {
    auto stream = Stream::create();
    ASSERT_TRUE(stream);
    const auto graph = Graph::capture(
        *stream, [&](CUstream_st* capturing) { return plan_->launch(args(), workspace_->data, capturing); });
    ASSERT_TRUE(graph) << graph.error().message;
    ASSERT_TRUE(graph->launch(stream->get()));
    EXPECT_EQ(last_launch_args().status, first) << "replays of graphs report to the same block";
    Engine other = open();
    const auto plan = other.plan(problem_, shape_);
    ASSERT_TRUE(plan && plan->launch(args(), workspace_->data, nullptr));
    EXPECT_NE(last_launch_args().status, first);
  }
  context.reset();
}

TEST_F(Faults, TheEnvironmentSetsTheBoundOfWaits) {
  setenv("LEANATTN_WAIT_BOUND_MS", "25", 1);
  launch_once();
  EXPECT_EQ(status().wait_bound_us, 25000u);
  EXPECT_EQ(engine_->warnings(), "");
  for (const char* const nonsense : {"0", "-1", "3600001", "soon", "5s", "99999999999999999999"}) {
    setenv("LEANATTN_WAIT_BOUND_MS", nonsense, 1);
    launch_once();
    EXPECT_EQ(status().wait_bound_us, 10000000u) << nonsense;
    EXPECT_NE(engine_->warnings().find("LEANATTN_WAIT_BOUND_MS is \"" + std::string(nonsense)), std::string::npos)
        << engine_->warnings();
  }
  unsetenv("LEANATTN_WAIT_BOUND_MS");
}

TEST_F(Faults, NothingIsLaunchedAfterAFaultUntilAWorkspaceIsInitialised) {
  launch_once();
  ASSERT_TRUE(engine_->check());
  report(kLeanWaitedInVain);
  expect_fault(engine_->check(), "waited for 10000 ms in vain");
  for (int i = 0; i < 2; ++i) expect_fault(plan_->launch(args(), workspace_->data, nullptr), "in vain");
  EXPECT_EQ(fake_gpu().launches.size(), 1u);
  std::memset(workspace_->data, 0x55, static_cast<std::size_t>(workspace_->bytes));
  fake_gpu().calls.clear();
  ASSERT_TRUE(plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr));
  EXPECT_EQ(fake_gpu().calls["cuStreamSynchronize"], 1) << "launches in front of it may report until they end";
  for (std::int64_t i = 0; i < workspace_->bytes; ++i) ASSERT_EQ(static_cast<char*>(workspace_->data)[i], 0) << i;
  EXPECT_TRUE(engine_->check());
  EXPECT_TRUE(plan_->launch(args(), workspace_->data, nullptr));
  EXPECT_EQ(fake_gpu().launches.size(), 2u);
  fake_gpu().calls.clear();
  ASSERT_TRUE(plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr));
  EXPECT_EQ(fake_gpu().calls["cuStreamSynchronize"], 0) << "without a fault it only enqueues";
}

TEST_F(Faults, InitialisingAnotherWorkspaceAcknowledgesNothing) {
  launch_once();
  report(kLeanWaitedInVain);
  Workspace other(workspace_->bytes);
  ASSERT_TRUE(plan_->init_workspace(other.data, other.bytes, nullptr)) << "a stream may come with one of its own";
  expect_fault(plan_->launch(args(), other.data, nullptr), "in vain");
  status().workspace += static_cast<std::uint64_t>(workspace_->bytes);
  ASSERT_TRUE(plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr));
  EXPECT_FALSE(engine_->check()) << "its end is no part of it";
  --status().workspace;
  ASSERT_TRUE(plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr));
  EXPECT_TRUE(engine_->check()) << "a plan may use any part of it";
}

TEST_F(Faults, AnImpossibleTicketIsNamed) {
  launch_once();
  report(kLeanWrongTicket);
  expect_fault(engine_->check(), "a counter there had an impossible value");
}

TEST_F(Faults, AcknowledgingLetsLaunchesGoOn) {
  launch_once();
  report(kLeanWaitedInVain);
  ASSERT_FALSE(engine_->check());
  ASSERT_TRUE(engine_->acknowledge());
  EXPECT_TRUE(engine_->check());
  EXPECT_TRUE(plan_->launch(args(), workspace_->data, nullptr));
}

TEST_F(Faults, AnInitialisationThatIsOnlyCapturedAcknowledgesNothing) {
  launch_once();
  report(kLeanWaitedInVain);
  LeanStatus& block = status();
  std::optional<Context> context(std::move(*Context::retain(0)));
  {
    auto stream = Stream::create();
    ASSERT_TRUE(stream);
    const auto graph = Graph::capture(*stream, [&](CUstream_st* capturing) {
      return plan_->init_workspace(workspace_->data, workspace_->bytes, capturing);
    });
    ASSERT_FALSE(graph);
    EXPECT_EQ(graph.error().code, ErrorCode::workspace_corrupt);
  }
  context.reset();
  EXPECT_EQ(block.fault, kLeanWaitedInVain);
}

TEST_F(Faults, AnInitialisationThatFailsAcknowledgesNothing) {
  launch_once();
  report(kLeanWaitedInVain);
  fake_gpu().fail_once["cuStreamSynchronize"] = CUDA_ERROR_LAUNCH_TIMEOUT;
  const auto failed = plan_->init_workspace(workspace_->data, workspace_->bytes, nullptr);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::context_lost);
  EXPECT_FALSE(engine_->check());
}

TEST_F(Faults, AFaultOfOneEngineIsNoneOfAnother) {
  launch_once();
  LeanStatus& mine = status();
  Engine other = open();
  const auto plan = other.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  mine.fault = kLeanWaitedInVain;
  EXPECT_FALSE(engine_->check());
  EXPECT_TRUE(other.check());
  EXPECT_TRUE(plan->launch(args(), workspace_->data, nullptr));
}

TEST_F(Faults, AnEngineMayBeMadeWhileAStreamIsCaptured) {
  std::optional<Context> context(std::move(*Context::retain(0)));
  {
    auto stream = Stream::create();
    ASSERT_TRUE(stream);
    const auto graph = Graph::capture(*stream, [&](CUstream_st*) -> Result<void> {
      Engine engine = open();
      return engine.check();
    });
    EXPECT_TRUE(graph) << graph.error().message;
  }
  context.reset();
}

TEST_F(Faults, WithoutPinnedMemoryThereIsNoEngine) {
  fake_gpu().fail_once["cuMemAllocHost"] = CUDA_ERROR_OUT_OF_MEMORY;
  EngineOptions options;
  options.cache_dir = directory_.string();
  const auto engine = Engine::create(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::out_of_memory);
}

TEST_F(Faults, TheCFunctionsRefuseNull) {
  EXPECT_EQ(leanattn_engine_check(nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_engine_acknowledge(nullptr), LEANATTN_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace leanattn
