// engine_test.cpp -- EngineCore on a fictional GPU: each kernel is prepared once, plans are kept, stream captures and
// failures do no harm.
#include "runtime/engine/engine.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <random>
#include <set>
#include <thread>

#include "runtime/lookup/default_config.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const Shape kShape{.batch = 4, .longest_context = 8192};

TEST(Engine, AStampedePreparesEachKernelOnce) {
  constexpr int kThreads = 32;
  std::atomic<int> preparations{0};
  std::barrier start(kThreads);
  std::atomic<bool> waiters_may_come{false};
  auto parts = fictional_parts();
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    ++preparations;
    waiters_may_come.wait(false);  // until all threads have started
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  std::vector<const PlanCore*> plans(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      waiters_may_come = true;
      waiters_may_come.notify_all();
      plans[static_cast<std::size_t>(i)] = engine.plan(kLlama, kShape, nullptr).value();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(preparations, 1);
  EXPECT_EQ(std::set<const PlanCore*>(plans.begin(), plans.end()).size(), 1u);
}

TEST(Engine, FeaturesThatANameCannotTellApartAreTwoKernels) {
  std::vector<double> caps;
  auto parts = fictional_parts();
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    caps.push_back(spec.features.soft_cap);
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  DecodeProblem problem = kLlama;
  for (const double cap : {30.1, 30.1 + 1e-9}) {
    problem.features.soft_cap = cap;
    const PlanCore* const plan = engine.plan(problem, kShape, nullptr).value();
    EXPECT_EQ(plan->limits().problem.features.soft_cap, cap);
  }
  EXPECT_EQ(caps, (std::vector<double>{30.1, 30.1 + 1e-9}));
}

TEST(Engine, AKnownPairIsTheSamePlanWithoutAnotherLookUp) {
  std::atomic<int> preparations{0};
  auto parts = fictional_parts();
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    ++preparations;
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  const PlanCore* const first = engine.plan(kLlama, kShape, nullptr).value();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(engine.plan(kLlama, kShape, nullptr).value(), first);
  EXPECT_EQ(preparations, 1);
  EXPECT_EQ(engine.plan_count(), 1u);
}

TEST(Engine, ShapesThatComeToTheSameLaunchShareAPlan) {
  EngineCore engine(fictional_parts());
  std::set<const PlanCore*> plans;
  for (int context = 60000; context < 61000; ++context)
    plans.insert(engine.plan(kLlama, {.batch = 4, .longest_context = context}, nullptr).value());
  EXPECT_EQ(plans.size(), 1u);
  EXPECT_EQ(engine.plan_count(), 1u);
}

TEST(Engine, MorePairsThanTheCacheHoldsAreStillAnsweredRight) {
  EngineCore engine(fictional_parts());
  std::mt19937 random(7);
  std::uniform_int_distribution<int> batch(1, 512), context(1, 1 << 17);
  for (int i = 0; i < tries(6000, 20000); ++i) {
    const Shape shape{.batch = batch(random), .longest_context = context(random)};
    const auto plan = engine.plan(kLlama, shape, nullptr);
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_EQ((*plan)->limits().size.batch, shape.batch);
    ASSERT_EQ((*plan)->choice().config, engine.lookup(kLlama, shape)->config);
  }
}

TEST(Engine, ThreadsThatLookUpWhileOthersFillAndReloadSeeOnlyPlansOfTheirShape) {
  EngineCore engine(fictional_parts());
  constexpr int kThreads = 16;
  const int kRounds = tries(1000, 4000);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      std::uniform_int_distribution<int> batch(1, 40), context(1, 400);
      for (int round = 0; round < kRounds; ++round) {
        const Shape shape{.batch = batch(random), .longest_context = 64 * context(random)};
        const auto plan = engine.plan(kLlama, shape, nullptr);
        if (!plan || (*plan)->limits().size.batch != shape.batch) ++wrong;
        if (i == 0 && round % 500 == 0) engine.reload();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Engine, APlanForACapturingStreamMustBePreparedBefore) {
  bool capturing = true;
  auto parts = fictional_parts();
  parts.is_capturing = [&](CUstream_st*) -> Result<bool> { return capturing; };
  int preparations = 0;
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    ++preparations;
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  const auto refused = engine.plan(kLlama, kShape, kStream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::not_prepared);
  EXPECT_FALSE(refused.error().hint.empty());
  EXPECT_EQ(preparations, 0);

  capturing = false;
  ASSERT_TRUE(engine.plan(kLlama, kShape, kStream));
  capturing = true;
  EXPECT_TRUE(engine.plan(kLlama, kShape, kStream)) << "the pair is known";
  EXPECT_TRUE(engine.plan(kLlama, {.batch = 4, .longest_context = 8000}, kStream))
      << "the pair is new, but its kernel is loaded";
  EXPECT_EQ(preparations, 1);
}

TEST(Engine, WinnersThatComeLaterDoNotTakeAPlanFromACapturingStream) {
  bool capturing = false, tuned = false;
  auto parts = fictional_parts();
  parts.is_capturing = [&](CUstream_st*) -> Result<bool> { return capturing; };
  parts.open_winners = [&] {
    return by_problem(tuned ? layered({winner(kLlama, kShape, tuned_config(kLlama, 224))}) : LayeredWinners{});
  };
  EngineCore engine(std::move(parts));
  const PlanCore* const before = engine.plan(kLlama, kShape, kStream).value();
  tuned = true;
  engine.reload();

  capturing = true;
  EXPECT_EQ(engine.plan(kLlama, kShape, kStream).value(), before);
  EXPECT_EQ(engine.plan(kLlama, kShape, kStream).value(), before);
  capturing = false;
  const PlanCore* const after = engine.plan(kLlama, kShape, kStream).value();
  EXPECT_EQ(after->choice().config, tuned_config(kLlama, 224));
  capturing = true;
  EXPECT_EQ(engine.plan(kLlama, kShape, kStream).value(), after);
}

TEST(Engine, ATunedKernelThatCannotBeBuiltGivesWayToTheDefault) {
  for (const ErrorCode code : {ErrorCode::compile_failed, ErrorCode::kernel_rejected, ErrorCode::load_failed}) {
    auto parts = fictional_parts(layered({winner(kLlama, kShape, tuned_config(kLlama, 224))}));
    parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
      if (spec.load == LoadPath::bulk) return fail(code, "not on this machine");
      return pretended(spec);
    };
    EngineCore engine(std::move(parts));
    const auto plan = engine.plan(kLlama, kShape, nullptr);
    ASSERT_TRUE(plan) << error_code_name(code);
    EXPECT_EQ((*plan)->choice().provenance, Provenance::fallback);
    EXPECT_EQ((*plan)->choice().config, default_config({fictional_gpu(), kLlama, kShape}));
  }
}

TEST(Engine, ATunedKernelThatCannotBeBuiltGivesWayToTheNextThatWasMeasured) {
  const Config rejected = tuned_config(kLlama, 224);
  Config next = rejected;
  next.spec.warps = 4, next.grid = 112;
  auto entry = winner(kLlama, kShape, rejected);
  entry.winner.next_config = to_json(next), entry.winner.next_us = 11;
  auto parts = fictional_parts(layered({entry}));
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (spec == rejected.spec) return fail(ErrorCode::kernel_rejected, "spills");
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  const auto plan = engine.plan(kLlama, kShape, nullptr);
  ASSERT_TRUE(plan);
  EXPECT_EQ((*plan)->choice().config, next);
  EXPECT_EQ((*plan)->choice().provenance, Provenance::exact);
  EXPECT_EQ((*plan)->choice().tuned_us, 11);
}

TEST(Engine, ADefaultThatCannotBeBuiltGivesWayToTheNext) {
  const auto configs = default_configs({fictional_gpu(), kLlama, kShape});
  ASSERT_GE(configs.size(), 2u);
  auto parts = fictional_parts(layered({winner(kLlama, kShape, tuned_config(kLlama, 224))}));
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (spec == configs[1].spec) return pretended(spec);
    return fail(ErrorCode::kernel_rejected, kernel_name(spec) + " spills registers");
  };
  EngineCore engine(std::move(parts));
  const auto plan = engine.plan(kLlama, kShape, nullptr);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ((*plan)->choice().config, configs[1]);
  EXPECT_EQ((*plan)->choice().provenance, Provenance::fallback);
}

TEST(Engine, WhenNothingCanBeBuiltTheErrorSaysSo) {
  auto parts = fictional_parts();
  parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> { return fail(ErrorCode::compile_failed, "broken"); };
  EngineCore engine(std::move(parts));
  const auto plan = engine.plan(kLlama, kShape, nullptr);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::compile_failed);
}

TEST(Engine, ALostContextIsReportedNotWorkedAround) {
  auto parts = fictional_parts(layered({winner(kLlama, kShape, tuned_config(kLlama, 224))}));
  parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> { return fail(ErrorCode::context_lost, "gone"); };
  EngineCore engine(std::move(parts));
  const auto plan = engine.plan(kLlama, kShape, nullptr);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::context_lost);
}

TEST(Engine, AFailureIsToldAndTheNextCallTriesAgain) {
  int preparations = 0;
  auto parts = fictional_parts();
  parts.prepare = [&](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (++preparations == 1) return fail(ErrorCode::nvrtc_missing, "no libnvrtc", "install it");
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  const auto first = engine.plan(kLlama, kShape, nullptr);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, ErrorCode::nvrtc_missing);
  EXPECT_TRUE(engine.plan(kLlama, kShape, nullptr));
}

TEST(Engine, AnExceptionWhilePreparingIsAnErrorForEveryWaiter) {
  auto parts = fictional_parts();
  parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> { throw std::runtime_error("unexpected"); };
  EngineCore engine(std::move(parts));
  const auto plan = engine.plan(kLlama, kShape, nullptr);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::internal);
  EXPECT_NE(plan.error().message.find("unexpected"), std::string::npos);
}

TEST(Engine, ReloadUsesTheNewWinnersAndLeavesOldPlansAlone) {
  auto winners = std::make_shared<LayeredWinners>();
  auto parts = fictional_parts();
  parts.open_winners = [winners] { return by_problem(*winners); };
  EngineCore engine(std::move(parts));
  const PlanCore* const before = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(before->choice().provenance, Provenance::fallback);
  *winners = layered({winner(kLlama, kShape, tuned_config(kLlama, 224))});
  EXPECT_EQ(engine.plan(kLlama, kShape, nullptr).value(), before) << "before the reload";
  engine.reload();
  const PlanCore* const after = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(after->choice().provenance, Provenance::exact);
  EXPECT_EQ(after->choice().config.grid, 224);
  EXPECT_EQ(before->choice().provenance, Provenance::fallback);
}

TEST(Engine, UsesWinnersThatAnotherProcessKeptLockedAsSoonAsTheyCanBeRead) {
  std::atomic<int> tries = 0;
  auto parts = fictional_parts();
  // Locked when the engine is made, and at the first try in the background.
  parts.open_winners = [&] {
    LayeredWinners winners;
    if (++tries <= 2) {
      winners.locked = true;
    } else {
      winners = layered({winner(kLlama, kShape, tuned_config(kLlama, 224))});
    }
    return by_problem(std::move(winners));
  };
  EngineCore engine(std::move(parts));
  ASSERT_TRUE(engine.plan(kLlama, kShape, nullptr)) << "nothing waits for them";
  while (engine.plan(kLlama, kShape, nullptr).value()->choice().provenance != Provenance::exact)
    std::this_thread::yield();
  EXPECT_EQ(tries, 3);
}

TEST(Engine, ReadsAProblemsWinnersAgainThatWereLockedWhenItWasMet) {
  std::atomic<int> reads = 0;
  auto parts = fictional_parts();
  parts.open_winners = [&] {
    WinnersByProblem source = by_problem(layered({winner(kLlama, kShape, tuned_config(kLlama, 224))}));
    source.read = [&, inner = source.read](std::span<const std::string> problems) {
      if (++reads > 1) return inner(problems);
      LayeredWinners nothing;
      nothing.locked = true;
      return nothing;
    };
    return source;
  };
  EngineCore engine(std::move(parts));
  EXPECT_NE(engine.plan(kLlama, kShape, nullptr).value()->choice().provenance, Provenance::exact);
  while (engine.plan(kLlama, kShape, nullptr).value()->choice().provenance != Provenance::exact)
    std::this_thread::yield();
}

TEST(Engine, AnotherSegmentCostMakesAnotherPlan) {
  Config config = tuned_config(kLlama, 224);
  auto winners = std::make_shared<LayeredWinners>(layered({winner(kLlama, kShape, config)}));
  auto parts = fictional_parts();
  parts.open_winners = [winners] { return by_problem(*winners); };
  EngineCore engine(std::move(parts));
  const PlanCore* const before = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(before->limits().segment_cost, 0);
  config.segment_cost = 2;
  *winners = layered({winner(kLlama, kShape, config)});
  engine.reload();
  EXPECT_EQ(engine.plan(kLlama, kShape, nullptr).value()->limits().segment_cost, 2);
  EXPECT_EQ(before->limits().segment_cost, 0);
}

TEST(Engine, AWorkspaceHoldsTheLargestBatch) {
  EngineCore engine(fictional_parts());
  const PlanCore* const plan =
      engine.plan(kLlama, {.batch = 4, .max_batch = 64, .longest_context = 8192}, nullptr).value();
  const Config& config = plan->choice().config;
  EXPECT_EQ(plan->limits().size.batch, 64);
  EXPECT_EQ(plan->limits().workspace.total_bytes, workspace_layout(config.spec, config.grid).total_bytes);
}

/// Parts with one winner, a kernel that waits in a grid of 132 CTAs.
EngineParts waiting_parts() {
  Config config = tuned_config(kLlama, 132);
  config.spec.fixup = FixUp::wait;
  return fictional_parts(layered({winner(kLlama, kShape, config)}));
}

TEST(Engine, WhereAGridThatWaitsIsNotResidentAtOnceTicketsTakeItsPlace) {
  auto parts = waiting_parts();
  parts.prepare = [](const KernelSpec& spec) -> Result<PreparedKernel> { return pretended(spec, 100); };
  EngineCore engine(std::move(parts));
  const PlanCore* const plan = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(plan->choice().config.spec.fixup, FixUp::ticket);
  EXPECT_EQ(plan->choice().config.grid, 100) << "one wave";
  EXPECT_EQ(engine.plan(kLlama, kShape, nullptr).value(), plan);
  EXPECT_EQ(engine.plan_count(), 1u);
}

TEST(Engine, AGridThatWaitsIsCutWhereTheKernelWithTicketsCannotBeBuilt) {
  auto parts = waiting_parts();
  parts.prepare = [](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (spec.fixup == FixUp::ticket) return fail(ErrorCode::kernel_rejected, "spills");
    return pretended(spec, 100);
  };
  EngineCore engine(std::move(parts));
  const PlanCore* const plan = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(plan->choice().config.spec.fixup, FixUp::wait);
  EXPECT_EQ(plan->choice().config.grid, 100);
}

TEST(Engine, AStreamOfFewSmsGetsTicketsAndTheOthersKeepTheKernelThatWaits) {
  auto* const narrow = reinterpret_cast<CUstream_st*>(0x10);
  auto* const wide = reinterpret_cast<CUstream_st*>(0x20);
  for (const bool narrow_comes_first : {true, false}) {
    auto parts = waiting_parts();
    parts.stream_sms = [&](CUstream_st* stream) { return stream == narrow ? 16 : 132; };
    EngineCore engine(std::move(parts));
    if (narrow_comes_first) {
      ASSERT_TRUE(engine.plan(kLlama, kShape, narrow));
    }
    for (int round = 0; round < 3; ++round) {
      const PlanCore* const everywhere = engine.plan(kLlama, kShape, nullptr).value();
      EXPECT_EQ(everywhere->choice().config.spec.fixup, FixUp::wait);
      EXPECT_EQ(everywhere->choice().config.grid, 132);
      EXPECT_EQ(engine.plan(kLlama, kShape, wide).value(), everywhere);
      const PlanCore* const here = engine.plan(kLlama, kShape, narrow).value();
      EXPECT_EQ(here->choice().config.spec.fixup, FixUp::ticket);
      EXPECT_EQ(here->choice().config.grid, 16);
      EXPECT_EQ(engine.plan(kLlama, kShape, narrow).value(), here);
    }
    EXPECT_EQ(engine.plan_count(), 2u);
  }
}

TEST(Engine, StreamsOfEvenFewerSmsDoNotGetThePlanOfOthersWithFew) {
  auto* const few = reinterpret_cast<CUstream_st*>(0x10);
  auto* const fewer = reinterpret_cast<CUstream_st*>(0x20);
  auto parts = waiting_parts();
  parts.stream_sms = [&](CUstream_st* stream) { return stream == few ? 16 : stream == fewer ? 8 : 132; };
  // Without tickets the kernel still waits there, with a grid that the stream's SMs hold at once.
  parts.prepare = [](const KernelSpec& spec) -> Result<PreparedKernel> {
    if (spec.fixup == FixUp::ticket) return fail(ErrorCode::kernel_rejected, "spills");
    return pretended(spec);
  };
  EngineCore engine(std::move(parts));
  for (int round = 0; round < 2; ++round) {
    EXPECT_LE(engine.plan(kLlama, kShape, few).value()->choice().config.grid, 16);
    EXPECT_EQ(engine.plan(kLlama, kShape, fewer).value()->choice().config.grid, 8);
    EXPECT_EQ(engine.plan(kLlama, kShape, nullptr).value()->choice().config.grid, 132);
  }
}

TEST(Engine, NobodyAsksForTheSmsOfAStreamWhereNothingWaits) {
  auto parts = fictional_parts();
  parts.stream_sms = [](CUstream_st*) {
    ADD_FAILURE() << "asked";
    return 1;
  };
  EngineCore engine(std::move(parts));
  for (int round = 0; round < 2; ++round)
    ASSERT_TRUE(engine.plan(kLlama, kShape, reinterpret_cast<CUstream_st*>(0x10)));
}

TEST(Engine, ShapesOfTheSameLaunchShareAPlanAlsoWhereItWaits) {
  EngineCore engine(waiting_parts());
  const PlanCore* const plan = engine.plan(kLlama, kShape, nullptr).value();
  EXPECT_EQ(engine.plan(kLlama, {.batch = 4, .longest_context = 8192, .total_context = 32768}, nullptr).value(), plan);
}

TEST(Engine, NonsenseIsRefusedBeforeAnythingIsPrepared) {
  auto parts = fictional_parts();
  parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> {
    ADD_FAILURE() << "prepared";
    return fail(ErrorCode::internal, "");
  };
  EngineCore engine(std::move(parts));
  const auto code = [&](const DecodeProblem& problem, const Shape& shape) {
    const auto plan = engine.plan(problem, shape, nullptr);
    return plan ? ErrorCode::ok : plan.error().code;
  };
  EXPECT_EQ(code({.q_heads = 30, .kv_heads = 8}, kShape), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.q_heads = 32, .kv_heads = 0}, kShape), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.head_dim = 72}, kShape), ErrorCode::unsupported);
  EXPECT_EQ(code(kLlama, {.batch = 0}), ErrorCode::invalid_argument);
  EXPECT_EQ(code(kLlama, {.batch = 1, .longest_context = -1}), ErrorCode::invalid_argument);
}

TEST(Engine, WarningsHaveOneSentenceOnEachLine) {
  LayeredWinners winners = layered({winner(kLlama, kShape, tuned_config(kLlama, 224))});
  winners.entries.front().winner.config = "{}";
  winners.warnings = {"the site database was skipped: locked"};
  auto parts = fictional_parts(winners);
  parts.warnings = {"no cache on disk: HOME is not set"};
  EngineCore engine(std::move(parts));
  const char* const opened = engine.warnings();
  EXPECT_STREQ(opened, "no cache on disk: HOME is not set\nthe site database was skipped: locked");
  ASSERT_TRUE(engine.lookup(kLlama, kShape));
  EXPECT_STREQ(engine.warnings(),
               "no cache on disk: HOME is not set\nthe site database was skipped: locked\n"
               "winners left out because another version wrote them: 1");
  EXPECT_STREQ(opened, "no cache on disk: HOME is not set\nthe site database was skipped: locked")
      << "a text that was returned stays valid";
}

}  // namespace
}  // namespace leanattn
