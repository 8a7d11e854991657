// evaluation_test.cpp -- on a simulated GPU whose true times are known, the evaluations report what is true.
#include "tuner/evaluate/evaluation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/device_identity.hpp"
#include "tests/thoroughness.hpp"
#include "tests/unit/tuner/simulated_gpu.hpp"
#include "tuner/evaluate/bench.hpp"
#include "tuner/evaluate/random_shapes.hpp"

namespace leanattn {
namespace {

constexpr std::uint64_t kSeed = 20261122;

class Evaluate : public ::testing::Test {
 protected:
  Evaluate() : gpu(problem, kSeed) {
    RecordProperty("seed", std::to_string(kSeed));
    gpu.compile_s = 0;  // The tests compare GPU time only.
    setup.request.problem = problem;
    setup.request.shapes = {{.batch = 1, .longest_context = 8192}, {.batch = 16, .longest_context = 4096}};
    setup.request.compile_threads = 2;
    setup.environment.library_revision = "r1";
  }

  DeviceFacts device = simulated_device();
  DecodeProblem problem;
  SimulatedGpu gpu;
  EvaluationSetup setup{.device = device,
                        .environment = {},
                        .backend = gpu,
                        .request = {},
                        .effort = effort_for(16),
                        .exhaustive = exhaustive_effort()};
};

/// What takes minutes under sanitizers.
class EvaluateThoroughly : public Evaluate {
  void SetUp() override {
    if (!thorough()) GTEST_SKIP() << "a thorough run has this test; see tests/thoroughness.hpp";
  }
};

TEST_F(EvaluateThoroughly, TheSearchIsAsGoodAsAnExhaustiveOneForASmallPartOfItsGpuTime) {
  const auto evaluation = evaluate_search(setup);
  ASSERT_TRUE(evaluation) << evaluation.error().message;
  ASSERT_EQ(evaluation->cases.size(), 2u);
  EXPECT_FALSE(evaluation->interrupted);
  for (const SearchCase& one : evaluation->cases) {
    gpu.set_shape(one.shape);
    EXPECT_LE(gpu.true_us(one.searched.winner), gpu.true_us(one.exhaustive.winner) * 1.01) << to_json(one.shape);
    EXPECT_NEAR(one.duel.ratio.ratio, gpu.true_us(one.searched.winner) / gpu.true_us(one.exhaustive.winner), 0.01);
    EXPECT_GT(one.exhaustive.candidates, 3000);
    EXPECT_LE(one.share_of_gpu_time(), 0.15) << to_json(one.shape);
  }
}

/// Tunes a problem for several shapes on the simulated GPU and gives the winners and the model that an engine would
/// read.
LayeredWinners tuned_winners(EvaluationSetup& setup, TuningDb& db) {
  TuneRequest request = setup.request;
  request.shapes.clear();
  for (const int batch : {1, 4, 16, 64}) {
    for (const std::int64_t context : {512, 4096, 32768}) {
      const Shape shape{.batch = batch, .longest_context = context};
      if (kv_bytes(request.problem, shape) <= kMostRandomKvBytes) request.shapes.push_back(shape);
    }
  }
  const auto tuned =
      run_session(request, setup.device, setup.environment, setup.backend, db, effort_for(2), nullptr, nullptr);
  EXPECT_TRUE(tuned) << (tuned ? "" : tuned.error().message);
  const DeviceModel model = device_model(setup.device);
  LayeredWinners layers;
  const auto winners = db.winners(model).value();
  for (const Winner& winner : winners) layers.entries.push_back({winner, "user"});
  return layers;
}

TEST_F(EvaluateThoroughly, LookUpsOfShapesThatNobodyTunedLoseLittle) {
  const auto db = TuningDb::open(std::nullopt, OpenMode::read_write, nullptr).value();
  const LayeredWinners winners = tuned_winners(setup, *db);
  const WinnerTable table = WinnerTable::build(setup.device, winners);
  setup.request.shapes = random_shapes(problem, 12, kSeed, false, {});
  setup.exhaustive = exhaustive_effort(24, 1.5);
  const auto evaluation = evaluate_regret(setup, table);
  ASSERT_TRUE(evaluation) << evaluation.error().message;
  ASSERT_EQ(evaluation->cases.size(), 12u);
  EXPECT_LE(evaluation->median_regret(), 0.02) << "seed " << kSeed;
  EXPECT_LE(evaluation->largest_regret(), 0.10) << "seed " << kSeed;
  std::vector<double> errors;
  for (const RegretCase& one : evaluation->cases) {
    EXPECT_NE(one.choice.provenance, Provenance::exact);
    // bench() looks up what an engine looks up.
    EXPECT_EQ(look_up({device, problem, one.shape}, L2Policy::cold, winners).config, one.choice.config);
    gpu.set_shape(one.shape);
    EXPECT_NEAR(one.duel.ratio.ratio, gpu.true_us(one.choice.config) / gpu.true_us(one.swept.winner), 0.01);
    errors.push_back(std::abs(one.choice.predicted_us / gpu.true_us(one.choice.config) - 1));
  }
  EXPECT_LE(median(errors), 0.05) << "seed " << kSeed;
  const auto json = nlohmann::json::parse(to_json(setup, *evaluation, kSeed));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["seed"], kSeed);
  EXPECT_EQ(json["cases"].size(), 12u);
  EXPECT_EQ(json["median"], evaluation->median_regret());
  EXPECT_EQ(json["p95"], evaluation->high_regret());
  EXPECT_EQ(json["max"], evaluation->largest_regret());
  for (const auto& one : json["cases"]) {
    for (const char* key : {"problem", "shape", "answer", "looked_up_us", "best_us", "regret"})
      EXPECT_TRUE(one.contains(key)) << key;
  }
}

TEST_F(EvaluateThoroughly, TwoTuningsDifferOnlyInWinnersThatAreEquallyFast) {
  setup.request.shapes.push_back({.batch = 4, .longest_context = 1024});
  const auto evaluation = evaluate_repeat(setup);
  ASSERT_TRUE(evaluation) << evaluation.error().message;
  ASSERT_EQ(evaluation->cases.size(), 3u);
  EXPECT_LE(evaluation->largest_difference(), 0.015) << "seed " << kSeed;
  for (const RepeatCase& one : evaluation->cases) EXPECT_NEAR(one.predicted_ratio, 1, 0.05) << to_json(one.shape);
  const auto json = nlohmann::json::parse(to_json(setup, *evaluation));
  EXPECT_EQ(json["differing"], evaluation->differing());
  EXPECT_EQ(json["cases"].size(), 3u);
}

TEST_F(Evaluate, TuningsThatArePressedForTimeCompileForThemselves) {
  setup.effort = {.specs = 2, .sweep_specs = 2, .refine_specs = 1, .twin_specs = 2, .refine_generations = 0};
  const auto compiles_of_a_repetition = [&](std::optional<std::chrono::milliseconds> budget) {
    SimulatedGpu own(problem, kSeed);
    EvaluationSetup with_own{.device = device,
                             .environment = setup.environment,
                             .backend = own,
                             .request = setup.request,
                             .effort = setup.effort,
                             .exhaustive = setup.exhaustive};
    with_own.request.budget = budget;
    const auto evaluation = evaluate_repeat(with_own);
    EXPECT_TRUE(evaluation) << evaluation.error().message;
    return own.compiles.load();
  };
  EXPECT_GE(compiles_of_a_repetition(std::chrono::hours(1)), 2 * compiles_of_a_repetition(std::nullopt));
}

TEST_F(Evaluate, ADuelFindsTheSlowerAndSaysByHowMuch) {
  const Shape shape = setup.request.shapes[0];
  ASSERT_TRUE(gpu.begin_shape(shape));
  const Config first = default_config({device, problem, shape});
  Config second = first;
  second.grid = 8;  // a sixteenth of the SMs has a CTA
  const auto fought = duel(gpu, first, second);
  ASSERT_TRUE(fought);
  EXPECT_NEAR(fought->ratio.ratio, gpu.true_us(first) / gpu.true_us(second), 0.01);
  EXPECT_LT(fought->ratio.high, 0.5);
  const auto alone = duel(gpu, first, first);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->ratio.ratio, 1);
  EXPECT_EQ(alone->ratio.pairs, 0);
  gpu.wrong = [&](const Config& config) { return config == second; };
  EXPECT_EQ(duel(gpu, first, second).error().code, ErrorCode::wrong_result);
}

TEST_F(Evaluate, EveryCaseIsHandedOutAtOnceAndOnlyTheLastOneCompletes) {
  setup.effort = {.specs = 2, .sweep_specs = 2, .refine_specs = 1, .twin_specs = 2, .refine_generations = 0};
  setup.exhaustive = exhaustive_effort(2, 1.1);
  setup.exhaustive.refine_generations = 0;
  std::vector<std::pair<std::size_t, bool>> told;
  const auto note = [&](const auto& evaluation) { told.emplace_back(evaluation.cases.size(), evaluation.interrupted); };
  const std::vector<std::pair<std::size_t, bool>> each = {{1, true}, {2, false}};
  ASSERT_TRUE(evaluate_search(setup, note));
  EXPECT_EQ(told, each);
  told.clear();
  ASSERT_TRUE(evaluate_repeat(setup, note));
  EXPECT_EQ(told, each);
  told.clear();
  ASSERT_TRUE(evaluate_regret(setup, WinnerTable::build(device, {}), note));
  EXPECT_EQ(told, each);
}

TEST_F(Evaluate, ARegretBesideABudgetTunesEachShapeForSoLong) {
  setup.exhaustive = setup.effort;
  const auto whole = evaluate_regret(setup, WinnerTable::build(device, {}));
  ASSERT_TRUE(whole) << whole.error().message;
  setup.request.budget = std::chrono::milliseconds(500);
  const auto brief = evaluate_regret(setup, WinnerTable::build(device, {}));
  ASSERT_TRUE(brief) << brief.error().message;
  ASSERT_EQ(brief->cases.size(), setup.request.shapes.size());
  for (std::size_t i = 0; i < brief->cases.size(); ++i) {
    EXPECT_GT(brief->cases[i].swept.candidates, 0);
    EXPECT_LT(brief->cases[i].swept.gpu_seconds, whole->cases[i].swept.gpu_seconds);
  }
}

TEST(RegretEvaluation, IsSummarisedByOrder) {
  RegretEvaluation evaluation;
  for (int i = 20; i > 0; --i) {
    RegretCase one;
    one.problem.head_dim = i > 10 ? 64 : 128;
    one.duel.ratio.ratio = 1 + 0.01 * i;
    evaluation.cases.push_back(one);
  }
  EXPECT_NEAR(evaluation.median_regret(), 0.105, 1e-9);
  EXPECT_NEAR(evaluation.high_regret(), 0.19, 1e-9);
  EXPECT_NEAR(evaluation.largest_regret(), 0.20, 1e-9);
  evaluation.cases.resize(1);
  EXPECT_NEAR(evaluation.high_regret(), 0.20, 1e-9);
  EXPECT_EQ(RegretEvaluation().high_regret(), 0);
}

TEST_F(Evaluate, RegretsOfSeveralProblemsNameNoneForAll) {
  RegretEvaluation evaluation;
  evaluation.cases.resize(2);
  evaluation.cases[0].problem = evaluation.cases[1].problem = setup.request.problem;
  EXPECT_TRUE(nlohmann::json::parse(to_json(setup, evaluation, 1)).contains("problem"));
  evaluation.cases[1].problem.head_dim *= 2, evaluation.several_problems = true;
  const auto json = nlohmann::json::parse(to_json(setup, evaluation, 1));
  EXPECT_FALSE(json.contains("problem"));
  EXPECT_EQ(json["cases"][1]["problem"]["head_dim"], 2 * setup.request.problem.head_dim);
}

TEST_F(Evaluate, ACaseThatWasHandedOutOutlivesAnErrorOfTheNextOne) {
  setup.effort = {.specs = 8, .sweep_specs = 2, .refine_specs = 1, .twin_specs = 2, .refine_generations = 1};
  setup.exhaustive = exhaustive_effort(8, 1.3);
  setup.exhaustive.refine_generations = 1;
  std::size_t told = 0;
  const auto break_the_gpu = [&](const RegretEvaluation& evaluation) {
    told = evaluation.cases.size();
    gpu.wrong = [](const Config&) { return true; };
  };
  EXPECT_FALSE(evaluate_regret(setup, WinnerTable::build(device, {}), break_the_gpu));
  EXPECT_EQ(told, 1u);
}

TEST_F(Evaluate, CancellingLeavesWhatWasDoneAndSaysSo) {
  std::atomic<bool> cancel = false;
  setup.cancel = &cancel;
  gpu.before_round = [&](int) {
    cancel = gpu.shapes_begun >= 3;
  };  // This is while the first shape is searched exhaustively.
  setup.exhaustive = exhaustive_effort(16, 1.5);
  const auto evaluation = evaluate_search(setup);
  ASSERT_TRUE(evaluation) << evaluation.error().message;
  EXPECT_TRUE(evaluation->interrupted);
  EXPECT_LT(evaluation->cases.size(), 2u);
}

}  // namespace
}  // namespace leanattn
