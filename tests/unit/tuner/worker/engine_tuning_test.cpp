// engine_tuning_test.cpp -- engines that tune, with the program's real sessions on a simulated GPU: what a plan is
// afterwards, first uses, shapes that are left out, and processes that die.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cache/layers.hpp"
#include "leanattn/leanattn.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/temporary_directory.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"

namespace leanattn {
namespace {

const Shape kSmall{.batch = 1, .longest_context = 1024}, kLarge{.batch = 4, .longest_context = 8192};

class TuningEngine : public ::testing::Test {
 protected:
  TuningEngine() {
    ::setenv("LEANATTN_SIMULATED_NOTE", note_.c_str(), 1);
    ::unsetenv("LEANATTN_SIMULATED");
    EngineParts parts = fictional_parts();
    parts.device = simulated_device();
    parts.device.ordinal = 0;
    parts.device.uuid = "GPU-of-the-test";
    parts.cache_directory = directory_.path();
    parts.patience = {.before_stop = std::chrono::milliseconds(0), .before_kill = std::chrono::milliseconds(0)};
    parts.open_winners = [this] { return open_layered_winners(device_model(simulated_device()), directory_.path()); };
    parts.is_capturing = [this](CUstream_st*) -> Result<bool> { return capturing_.load(); };
    engine_ = std::make_unique<EngineCore>(std::move(parts));
  }
  void TearDown() override {
    engine_.reset();
    // Every process that was started has been reaped.
    errno = 0;
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    ::unsetenv("LEANATTN_SIMULATED");
    ::unsetenv("LEANATTN_SIMULATED_NOTE");
  }

  static void plant(const char* fault) { ::setenv("LEANATTN_SIMULATED", fault, 1); }
  static TuneOptions options(double budget_s = 600) { return {.budget_s = budget_s, .program = SIMULATED_PROGRAM}; }
  Result<TuneReport> tune(std::vector<Shape> shapes, const TuneOptions& with = options()) {
    return engine_->tune(kLlama, shapes, with);
  }
  Provenance provenance(const Shape& shape) { return engine_->lookup(kLlama, shape)->provenance; }
  const PlanCore* plan(const Shape& shape) {
    const auto made = engine_->plan(kLlama, shape, kStream);
    return made ? *made : nullptr;
  }

  /// The orders that programs were given.
  std::vector<nlohmann::json> orders() const {
    std::vector<nlohmann::json> found;
    std::ifstream file(note_);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("{")) found.push_back(nlohmann::json::parse(line));
    }
    return found;
  }

  const TemporaryDirectory directory_, notes_;
  const std::string note_ = (notes_ / "orders").string();
  std::atomic<bool> capturing_{false};
  std::unique_ptr<EngineCore> engine_;
};

TEST_F(TuningEngine, PlansAreExactAfterwardsWithoutAReload) {
  const PlanCore* const before = plan(kSmall);
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->choice().provenance, Provenance::fallback);
  const auto report = tune({kLarge, kSmall});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_FALSE(report->error) << report->error->message;
  ASSERT_EQ(report->shapes.size(), 2u);
  for (const ShapeTuning& shape : report->shapes) {
    EXPECT_EQ(shape.status, ErrorCode::ok);
    EXPECT_TRUE(shape.measured);
    EXPECT_TRUE(shape.finished);
    EXPECT_EQ(shape.choice.provenance, Provenance::exact);
    EXPECT_GT(shape.read_limit_us, 0);
    EXPECT_GT(shape.default_us, 0);
    EXPECT_GE(shape.choice.tuned_us, shape.read_limit_us);
    EXPECT_GT(shape.candidates, 1);
  }
  EXPECT_LT(report->shapes[1].choice.tuned_us, report->shapes[0].choice.tuned_us) << "results are in the call's order";
  const PlanCore* const after = plan(kSmall);
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->choice().provenance, Provenance::exact);
  EXPECT_EQ(after->choice().tuned_us, report->shapes[1].choice.tuned_us);
  EXPECT_EQ(before->choice().provenance, Provenance::fallback) << "a plan that was returned does not change";
}

TEST_F(TuningEngine, TheProgramIsToldTheGpuTheDatabaseAndTheLimits) {
  ASSERT_TRUE(tune({{.batch = 2, .max_batch = 64, .longest_context = 2048}},
                   {.budget_s = 60, .shape_budget_s = 7, .memory_bytes = 1 << 30, .program = SIMULATED_PROGRAM}));
  ASSERT_EQ(orders().size(), 1u);
  const nlohmann::json order = orders().front();
  EXPECT_EQ(order.at("uuid"), "GPU-of-the-test");
  EXPECT_EQ(order.at("sm_count"), 132);
  EXPECT_EQ(order.at("cache_directory"), directory_.path().string());
  EXPECT_EQ(order.at("budget_ms"), 7000);
  EXPECT_EQ(order.at("memory_bytes"), 1 << 30);
  EXPECT_EQ(order.at("parent"), ::getpid());
  EXPECT_EQ(order.at("shapes").at(0).at("max_batch"), 0);
  EXPECT_EQ(provenance({.batch = 2, .max_batch = 8, .longest_context = 2048}), Provenance::exact);
}

TEST_F(TuningEngine, WhatIsExactAlreadyIsNotTunedAgainUnlessAskedFor) {
  ASSERT_TRUE(tune({kSmall}));
  const auto again = tune({kSmall, kSmall, kLarge});
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->shapes[0].measured);
  EXPECT_EQ(again->shapes[0].status, ErrorCode::ok);
  EXPECT_GT(again->shapes[0].choice.tuned_us, 0);
  EXPECT_TRUE(again->shapes[2].measured);
  ASSERT_EQ(orders().size(), 2u);
  EXPECT_EQ(orders()[1].at("shapes").size(), 1u);
  ASSERT_TRUE(tune({kSmall, kLarge}));
  EXPECT_EQ(orders().size(), 2u) << "nothing was left to do";
  TuneOptions anew = options();
  anew.retune = true;
  const auto retuned = tune({kSmall}, anew);
  ASSERT_TRUE(retuned);
  EXPECT_TRUE(retuned->shapes[0].measured);
}

TEST_F(TuningEngine, OneThatWaitsForItsTurnFindsTheAnswerOfTheOther) {
  std::atomic<int> measured{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const auto report = tune({kSmall});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->shapes[0].status, ErrorCode::ok);
      measured += report->shapes[0].measured;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(orders().size(), 1u);
}

TEST_F(TuningEngine, ProgressNamesTheShapesOfTheCall) {
  TuneOptions watched = options();
  std::set<int> shapes;
  std::set<std::string> phases;
  watched.progress = [&](const TuneStep& step) {
    shapes.insert(step.shape);
    phases.insert(step.phase);
    EXPECT_EQ(step.shape_count, 2);
    return true;
  };
  ASSERT_TRUE(tune({kLarge, kSmall}, watched));
  EXPECT_FALSE(phases.empty());
  for (const int shape : shapes) EXPECT_TRUE(shape == 0 || shape == 1) << shape;
}

TEST_F(TuningEngine, TheCallerCanStopIt) {
  plant("hang");
  TuneOptions watched = options();
  watched.progress = [](const TuneStep&) { return false; };
  const auto report = tune({kSmall}, watched);
  ASSERT_TRUE(report);
  ASSERT_TRUE(report->error);
  EXPECT_EQ(report->error->code, ErrorCode::interrupted);
  EXPECT_EQ(report->shapes[0].status, ErrorCode::interrupted);
}

TEST_F(TuningEngine, OneThatIgnoresItsBudgetIsKilled) {
  plant("hang");
  const auto report = tune({kSmall}, options(0.001));
  ASSERT_TRUE(report);
  ASSERT_TRUE(report->error);
  EXPECT_EQ(report->error->code, ErrorCode::internal);
  EXPECT_NE(report->error->message.find("did not end"), std::string::npos) << report->error->message;
  EXPECT_EQ(provenance(kSmall), Provenance::fallback);
}

TEST_F(TuningEngine, WhatWasTunedBeforeTheProgramDiedIsKept) {
  plant("half");
  const auto report = tune({kLarge, kSmall});
  ASSERT_TRUE(report);
  ASSERT_TRUE(report->error);
  EXPECT_NE(report->error->message.find("killed by signal 9"), std::string::npos) << report->error->message;
  EXPECT_EQ(report->shapes[1].status, ErrorCode::ok) << "the smallest shape comes first";
  EXPECT_EQ(report->shapes[0].status, ErrorCode::internal);
  EXPECT_EQ(provenance(kSmall), Provenance::exact);
}

TEST_F(TuningEngine, AShapeThatDoesNotFitIsLeftOutAndNamed) {
  plant("memory");
  const auto report = tune({kLarge, kSmall});
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->error);
  EXPECT_EQ(report->shapes[0].status, ErrorCode::out_of_memory);
  EXPECT_EQ(report->shapes[1].status, ErrorCode::ok);
  TuneOptions little = options();
  little.memory_bytes = 1 << 20;
  const auto none = tune({{.batch = 8, .longest_context = 8192}}, little);
  ASSERT_TRUE(none);
  EXPECT_EQ(none->shapes[0].status, ErrorCode::out_of_memory);
  EXPECT_EQ(orders().size(), 1u) << "no program is started for a shape that is over the limit";
}

TEST_F(TuningEngine, KernelsThatAreWrongNeverBecomePlans) {
  plant("wrong");
  const auto report = tune({kSmall});
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->shapes[0].measured);
  EXPECT_GT(report->shapes[0].incorrect, 0);
  EXPECT_NE(report->shapes[0].status, ErrorCode::ok);
  EXPECT_EQ(provenance(kSmall), Provenance::fallback);
}

TEST_F(TuningEngine, WaitingFirstUsesAreExactAtOnce) {
  ASSERT_NE(plan(kSmall), nullptr);
  ASSERT_TRUE(engine_->set_autotune(Autotune::wait, options()));
  EXPECT_EQ(plan(kSmall)->choice().provenance, Provenance::exact) << "although it was planned before";
  EXPECT_EQ(plan(kLarge)->choice().provenance, Provenance::exact);
  EXPECT_EQ(plan(kLarge)->choice().provenance, Provenance::exact);
  EXPECT_EQ(orders().size(), 2u);
  ASSERT_TRUE(engine_->set_autotune(Autotune::off, {}));
  EXPECT_NE(plan({.batch = 16, .longest_context = 512})->choice().provenance, Provenance::exact);
  EXPECT_EQ(orders().size(), 2u);
  EXPECT_STREQ(engine_->warnings(), "");
}

TEST_F(TuningEngine, FirstUsesInTheBackgroundAnswerAtOnceAndBecomeExact) {
  ASSERT_TRUE(engine_->set_autotune(Autotune::background, options()));
  const PlanCore* const first = plan(kSmall);
  EXPECT_EQ(first->choice().provenance, Provenance::fallback);
  for (int i = 0; i < 100; ++i) plan(kLarge);
  for (const Shape& shape : {kSmall, kLarge}) {
    while (plan(shape)->choice().provenance != Provenance::exact) ::poll(nullptr, 0, 1);
  }
  std::size_t shapes = 0;
  for (const nlohmann::json& order : orders()) shapes += order.at("shapes").size();
  EXPECT_EQ(shapes, 2u) << "each shape is asked for once";
}

TEST_F(TuningEngine, NothingStartsWhileTheStreamIsCaptured) {
  ASSERT_NE(plan(kSmall), nullptr);
  for (const Autotune mode : {Autotune::wait, Autotune::background}) {
    capturing_ = true;
    ASSERT_TRUE(engine_->set_autotune(mode, options()));
    EXPECT_EQ(plan(kSmall)->choice().provenance, Provenance::fallback);
    ASSERT_TRUE(engine_->set_autotune(Autotune::off, {}));
    EXPECT_TRUE(orders().empty());
  }
}

TEST_F(TuningEngine, FirstUsesEndWithTheirBudgetAndWithTheFirstFailure) {
  ASSERT_TRUE(engine_->set_autotune(Autotune::wait, options(0.1)));
  EXPECT_EQ(plan(kSmall)->choice().provenance, Provenance::fallback);
  EXPECT_TRUE(orders().empty()) << "nothing can be measured in a tenth of a second";
  ASSERT_TRUE(engine_->set_autotune(Autotune::wait, {.budget_s = 60, .program = "/bin/false"}));
  for (const Shape& shape : {Shape{.batch = 2, .longest_context = 777}, Shape{.batch = 3, .longest_context = 333}})
    ASSERT_NE(plan(shape), nullptr);
  const std::string warnings = engine_->warnings();
  EXPECT_NE(warnings.find("tuning on first use: /bin/false exited with code 1"), std::string::npos) << warnings;
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 0) << "it is not tried again: " << warnings;
}

TEST_F(TuningEngine, AnEngineThatGoesTakesItsTuningWithIt) {
  plant("hang");
  ASSERT_TRUE(engine_->set_autotune(Autotune::background, options()));
  plan(kSmall);
  while (orders().empty()) ::poll(nullptr, 0, 1);
  engine_.reset();  // TearDown() finds no process
}

TEST_F(TuningEngine, TheProgramDiesWithTheProcessOfItsEngine) {
  plant("hang");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that a program which outlives the host becomes a child of this process
  const pid_t host = ::fork();
  if (host == 0) {
    ::execl(SIMULATED_PROGRAM, SIMULATED_PROGRAM, "host", directory_.path().c_str(), SIMULATED_PROGRAM, nullptr);
    ::_exit(99);
  }
  pid_t program = 0;
  for (int waited_ms = 0; waited_ms < 60'000 && program == 0; ++waited_ms) {
    std::ifstream file(note_);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("pid ")) program = std::stoi(line.substr(4));
    }
    ::poll(nullptr, 0, 1);
  }
  ASSERT_GT(program, 0);
  ::kill(host, SIGKILL);
  ASSERT_EQ(::waitpid(host, nullptr, 0), host);
  int status = 0;
  ASSERT_EQ(::waitpid(program, &status, 0), program) << "it would wait for ever if nothing killed it";
  EXPECT_TRUE(WIFSIGNALED(status));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(TuningEngine, TheRealProgramTakesOrdersAndSaysWhatItLacks) {
  const auto report = tune({kSmall}, {.budget_s = 60, .program = LEANATTN_PROGRAM});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_TRUE(report->error);
  EXPECT_TRUE(report->error->code == ErrorCode::no_driver || report->error->code == ErrorCode::no_device)
      << error_code_name(report->error->code) << ": " << report->error->message;
  EXPECT_EQ(report->shapes[0].status, report->error->code);
}

TEST_F(TuningEngine, TheCInterfaceFillsOneResultForEachShape) {
  leanattn_problem problem;
  leanattn_problem_init(&problem);
  problem.q_heads = 32, problem.kv_heads = 8, problem.head_dim = 128;
  leanattn_shape shapes[2];
  leanattn_tuned_shape results[2];
  for (int i = 0; i < 2; ++i) {
    leanattn_shape_init(&shapes[i]);
    shapes[i].batch = i + 1;
    shapes[i].longest_context = 2048;
    leanattn_tuned_shape_init(&results[i]);
  }
  leanattn_tune_options limits;
  leanattn_tune_options_init(&limits);
  limits.budget_s = 60;
  limits.program = SIMULATED_PROGRAM;
  int calls = 0;
  limits.progress_context = &calls;
  limits.progress = [](const leanattn_tune_progress* progress, void* context) -> std::int32_t {
    EXPECT_EQ(progress->struct_size, sizeof *progress);
    EXPECT_STRNE(progress->phase, "");
    ++*static_cast<int*>(context);
    return 0;
  };
  ASSERT_EQ(leanattn_engine_tune(engine_.get(), &problem, shapes, 2, &limits, results), LEANATTN_OK)
      << leanattn_last_error_message();
  EXPECT_GT(calls, 0);
  for (const leanattn_tuned_shape& result : results) {
    EXPECT_EQ(result.status, LEANATTN_OK);
    EXPECT_EQ(result.provenance, LEANATTN_EXACT);
    EXPECT_EQ(result.measured, 1);
    EXPECT_EQ(result.finished, 1);
    EXPECT_GT(result.median_us, 0);
    EXPECT_GT(result.read_limit_us, 0);
  }
  ASSERT_EQ(leanattn_engine_tune(engine_.get(), &problem, shapes, 2, &limits, nullptr), LEANATTN_OK);
  ASSERT_EQ(leanattn_engine_autotune(engine_.get(), LEANATTN_AUTOTUNE_WAIT, &limits), LEANATTN_OK);
  shapes[0].batch = 7;
  leanattn_choice choice;
  leanattn_choice_init(&choice);
  const leanattn_plan* made = nullptr;
  ASSERT_EQ(leanattn_engine_plan(engine_.get(), &problem, &shapes[0], nullptr, &made), LEANATTN_OK);
  ASSERT_EQ(leanattn_engine_lookup(engine_.get(), &problem, &shapes[0], &choice), LEANATTN_OK);
  EXPECT_EQ(choice.provenance, LEANATTN_EXACT);
  ASSERT_EQ(leanattn_engine_autotune(engine_.get(), LEANATTN_AUTOTUNE_OFF, nullptr), LEANATTN_OK);
}

}  // namespace
}  // namespace leanattn
