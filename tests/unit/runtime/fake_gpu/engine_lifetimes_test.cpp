// engine_lifetimes_test.cpp -- several engines on one GPU and on several, lost contexts, forked processes, and builds
// in the background.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <thread>

#include "fake_gpu_fixture.hpp"
#include "tests/quiet_fork.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

using EngineLifetimes = FakeGpuEngine;

TEST_F(EngineLifetimes, EveryDevicesEngineLaunchesOnItsOwnDevice) {
  fake_gpu().devices = 2;
  Engine first = open(0), second = open(1);
  const auto plan_first = first.plan(problem_, shape_), plan_second = second.plan(problem_, shape_);
  ASSERT_TRUE(plan_first && plan_second);
  Workspace workspace(plan_first->workspace_bytes());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(plan_first->launch(args(), workspace.data, nullptr));
    EXPECT_EQ(fake_gpu().launches.back().device, 0);
    ASSERT_TRUE(plan_second->launch(args(), workspace.data, nullptr));
    EXPECT_EQ(fake_gpu().launches.back().device, 1);
  }
}

TEST_F(EngineLifetimes, TheEndOfOneEngineLeavesAnotherOfTheSameDeviceWhole) {
  std::optional<Engine> first(open());
  Engine second = open();
  const auto plan = second.plan(problem_, shape_);
  ASSERT_TRUE(first->plan(problem_, shape_));
  ASSERT_TRUE(plan);
  EXPECT_EQ(fake_gpu().live_libraries, 2) << "each engine loads its kernels for itself";
  first.reset();
  EXPECT_EQ(fake_gpu().live_libraries, 1);
  Workspace workspace(plan->workspace_bytes());
  EXPECT_TRUE(plan->launch(args(), workspace.data, nullptr));
}

TEST_F(EngineLifetimes, AfterALostContextANewEngineWorksOnceTheOldOneIsGone) {
  std::optional<Engine> engine(open());
  std::optional<Plan> plan(*engine->plan(problem_, shape_));
  Workspace workspace(plan->workspace_bytes());
  fake_gpu().fail_once["cuLaunchKernelEx"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  for (int i = 0; i < 3; ++i) {
    const auto lost = plan->launch(args(), workspace.data, nullptr);
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code, ErrorCode::context_lost) << i;
    EXPECT_FALSE(lost.error().hint.empty());
  }
  Problem other = problem_;
  other.head_dim = 64;
  const auto unloaded = engine->plan(other, shape_);
  ASSERT_FALSE(unloaded);
  EXPECT_EQ(unloaded.error().code, ErrorCode::context_lost) << "the error is reported as it is";
  engine.reset();
  engine.emplace(open());
  plan.emplace(*engine->plan(problem_, shape_));
  const auto launched = plan->launch(args(), workspace.data, nullptr);
  EXPECT_TRUE(launched) << launched.error().message;
}

TEST_F(EngineLifetimes, AForkedChildIsToldAndLeavesTheParentsEngineAlone) {
  Engine engine = open();
  const auto plan = engine.plan(problem_, shape_);
  ASSERT_TRUE(plan);
  Workspace workspace(plan->workspace_bytes());
  const auto c_args = detail::to_c(args());
  const pid_t child = quiet_fork();
  if (child == 0) {
    // Each expectation that fails sets a bit of the exit status.
    int wrong = 0;
    wrong |= leanattn_plan_launch(plan->get(), &c_args, workspace.data, nullptr) == LEANATTN_CONTEXT_LOST ? 0 : 1;
    wrong |= std::string(leanattn_last_error_message()).find("forked") != std::string::npos ? 0 : 2;
    Problem other = problem_;
    other.head_dim = 64;
    const auto planned = engine.plan(other, shape_);
    wrong |= !planned && planned.error().code == ErrorCode::context_lost ? 0 : 4;
    const auto reloaded = engine.reload();
    wrong |= !reloaded && reloaded.error().code == ErrorCode::context_lost ? 0 : 8;
    const auto created = Engine::create();
    wrong |= !created && created.error().code == ErrorCode::context_lost ? 0 : 16;
    { const Engine gone(std::move(engine)); }  // destroyed here
    wrong |= fake_gpu().live_libraries == 1 && fake_gpu().live_contexts == 1 ? 0 : 32;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(plan->launch(args(), workspace.data, nullptr)) << "in the parent";
}

TEST_F(EngineLifetimes, BuildsInTheBackgroundDoNotDisturbStreamCaptures) {
  const DecodeProblem problem;
  const Shape tuned{.batch = 4, .longest_context = 8192};
  EngineCore engine(fictional_parts(layered({winner(problem, tuned, tuned_config(problem, 224))})));
  while (engine.plan(problem, tuned, nullptr, WhenNotLoaded::stand_in).value()->stand_in()) std::this_thread::yield();
  EXPECT_EQ(fake_gpu().calls["cuThreadExchangeStreamCaptureMode"], 1);
}

}  // namespace
}  // namespace leanattn
