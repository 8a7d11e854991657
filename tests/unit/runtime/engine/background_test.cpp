// background_test.cpp -- plan() with WhenNotLoaded::stand_in: a stand-in at once, and the better plan when its kernel
// is built.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/lookup/default_config.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const Shape kTuned{.batch = 4, .longest_context = 8192};

/// An engine with one winner, whose kernel is built only when the test opens the gate. The default's is built at once.
class BackgroundBuild : public ::testing::Test {
 protected:
  BackgroundBuild() {
    EngineParts parts = fictional_parts(layered({winner(kLlama, kTuned, config_)}));
    parts.prepare = [this](const KernelSpec& spec) -> Result<PreparedKernel> {
      if (spec != config_.spec) {
        ++other_builds_;
        return pretended(spec);
      }
      ++builds_;
      gate_.get_future().wait();
      if (fails_) return fail(ErrorCode::compile_failed, "not on this machine");
      return pretended(spec);
    };
    parts.is_capturing = [this](CUstream_st*) -> Result<bool> { return capturing_; };
    engine_ = std::make_unique<EngineCore>(std::move(parts));
  }
  ~BackgroundBuild() override { open_gate(); }

  void open_gate() {
    if (!std::exchange(open_, true)) gate_.set_value();
  }
  const PlanCore* ask(const Shape& shape = kTuned) {
    const auto plan = engine_->plan(kLlama, shape, kStream, WhenNotLoaded::stand_in);
    return plan ? *plan : nullptr;
  }
  /// Asks again and again, as a decode loop does, until the answer is no stand-in.
  const PlanCore* ask_until_final() {
    const PlanCore* plan = ask();
    for (; plan != nullptr && plan->stand_in(); plan = ask()) std::this_thread::yield();
    return plan;
  }

  const Config config_ = tuned_config(kLlama, 224);
  std::promise<void> gate_;
  bool open_ = false;
  std::atomic<bool> fails_{false}, capturing_{false};
  std::atomic<int> builds_{0}, other_builds_{0};
  std::unique_ptr<EngineCore> engine_;  // destroyed first, because it may be building
};

TEST_F(BackgroundBuild, TheDefaultStandsInUntilTheTunedKernelIsBuilt) {
  const PlanCore* const stand_in = ask();
  ASSERT_NE(stand_in, nullptr);
  EXPECT_TRUE(stand_in->stand_in());
  EXPECT_EQ(stand_in->choice().provenance, Provenance::fallback);
  EXPECT_EQ(stand_in->choice().config, default_config({fictional_gpu(), kLlama, kTuned}));
  for (int i = 0; i < 100; ++i) ASSERT_EQ(ask(), stand_in);
  EXPECT_EQ(other_builds_, 1);
  open_gate();
  const PlanCore* const better = ask_until_final();
  ASSERT_NE(better, nullptr);
  EXPECT_EQ(better->choice().provenance, Provenance::exact);
  EXPECT_EQ(better->choice().config, config_);
  EXPECT_EQ(builds_, 1);
  EXPECT_TRUE(stand_in->stand_in()) << "a plan that was returned does not change";
}

TEST_F(BackgroundBuild, AKernelThatIsLoadedStandsInWithoutAnyCompile) {
  Config loaded = config_;
  loaded.spec.stages = 3;
  EngineParts parts = fictional_parts(
      layered({winner(kLlama, kTuned, config_), winner(kLlama, {.batch = 64, .longest_context = 512}, loaded)}));
  std::promise<void> gate;
  std::multiset<std::string> built;
  std::mutex mutex;
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (spec == config_.spec) gate.get_future().wait();
    const std::lock_guard lock(mutex);
    built.insert(kernel_name(spec));
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  ASSERT_TRUE(engine.plan(kLlama, {.batch = 64, .longest_context = 512}, nullptr));
  const auto plan = engine.plan(kLlama, kTuned, nullptr, WhenNotLoaded::stand_in);
  EXPECT_TRUE(plan && (*plan)->stand_in() && (*plan)->choice().config.spec == loaded.spec);
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(built, std::multiset<std::string>{kernel_name(loaded.spec)});
  }
  // The kernel of another problem would read the cache wrongly.
  DecodeProblem strided = kLlama;
  strided.layout = KvLayout::strided;
  const auto other = engine.plan(strided, kTuned, nullptr, WhenNotLoaded::stand_in);
  EXPECT_TRUE(other && (*other)->choice().config.spec.layout == KvLayout::strided);
  gate.set_value();
}

TEST_F(BackgroundBuild, ACallWithoutTheOptionWaitsForTheSameBuild) {
  ASSERT_TRUE(ask()->stand_in());
  std::thread opener([this] { open_gate(); });
  const auto plan = engine_->plan(kLlama, kTuned, kStream);
  opener.join();
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan)->choice().config, config_);
  EXPECT_EQ(builds_, 1);
  EXPECT_EQ(ask(), *plan) << "and then all calls get the better plan";
}

TEST_F(BackgroundBuild, ABuildThatFailsIsNotTriedAgainBeforeAReload) {
  fails_ = true;
  open_gate();
  const PlanCore* const plan = ask_until_final();
  ASSERT_NE(plan, nullptr);
  const WinnerTable table = WinnerTable::build(fictional_gpu(), layered({winner(kLlama, kTuned, config_)}));
  EXPECT_EQ(plan->choice().config, table.launch_order(kLlama, kTuned)[1].config);
  for (int batch = 1; batch <= 4; ++batch) {
    ASSERT_NE(ask({.batch = 4, .max_batch = 4 + batch, .longest_context = 8192}), nullptr);
  }
  EXPECT_EQ(builds_, 1);
  gate_ = std::promise<void>();
  gate_.set_value();
  fails_ = false;
  engine_->reload();
  EXPECT_EQ(ask_until_final()->choice().config, config_);
  EXPECT_EQ(builds_, 2);
}

TEST_F(BackgroundBuild, UnderStreamCaptureAStandInMustBeLoadedAlready) {
  capturing_ = true;
  const auto refused = engine_->plan(kLlama, kTuned, kStream, WhenNotLoaded::stand_in);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::not_prepared);
  capturing_ = false;
  ASSERT_TRUE(ask()->stand_in());
  capturing_ = true;
  EXPECT_TRUE(ask({.batch = 4, .max_batch = 8, .longest_context = 8192})->stand_in())
      << "the pair is new, but the kernel is loaded";
}

TEST_F(BackgroundBuild, AnEngineWithABuildInProgressCanBeDestroyed) {
  ASSERT_TRUE(ask()->stand_in());
  std::thread opener([this] { open_gate(); });
  engine_.reset();
  opener.join();
  EXPECT_LE(builds_, 1) << "it was waited for, or never started";
}

TEST_F(BackgroundBuild, TheCInterfaceSaysWhatAPlanIs) {
  leanattn_problem problem;
  leanattn_problem_init(&problem);
  problem.q_heads = 32, problem.kv_heads = 8, problem.head_dim = 128;
  leanattn_shape shape;
  leanattn_shape_init(&shape);
  shape.batch = 4, shape.longest_context = 8192;
  leanattn_plan_options options;
  leanattn_plan_options_init(&options);
  options.when_missing = LEANATTN_WHEN_MISSING_FALLBACK;
  leanattn_plan_info info;
  leanattn_plan_info_init(&info);
  const leanattn_plan* plan = nullptr;
  const auto ask_c = [&](const leanattn_plan_options* how) {
    const leanattn_status status = leanattn_engine_plan_with(engine_.get(), &problem, &shape, how, nullptr, &plan);
    if (status == LEANATTN_OK) leanattn_plan_get_info(plan, &info);
    return status;
  };
  ASSERT_EQ(ask_c(&options), LEANATTN_OK);
  EXPECT_EQ(info.stand_in, 1);
  options.when_missing = 2;
  EXPECT_EQ(ask_c(&options), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_NE(std::string(leanattn_last_error_message()).find("when_missing is 2"), std::string::npos);
  options.when_missing = LEANATTN_WHEN_MISSING_COMPILE;
  options.reserved = 7;
  EXPECT_EQ(ask_c(&options), LEANATTN_INVALID_ARGUMENT);
  options.struct_size = 8;
  EXPECT_EQ(ask_c(&options), LEANATTN_INVALID_ARGUMENT);
  open_gate();
  ASSERT_EQ(ask_c(nullptr), LEANATTN_OK) << "without options it is leanattn_engine_plan";
  EXPECT_EQ(info.stand_in, 0);
}

}  // namespace
}  // namespace leanattn
