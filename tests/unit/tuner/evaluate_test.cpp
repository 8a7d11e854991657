// The evaluations on a simulated GPU: what they report of a search, a look-up and a repetition whose truth is known.
#include "tuner/evaluate.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tune_simulated_gpu.hpp"

namespace leanattn {
namespace {

constexpr std::uint64_t kSeed = 20261122;

class Evaluate : public ::testing::Test {
 protected:
  Evaluate() : gpu(problem, kSeed) {
    RecordProperty("seed", std::to_string(kSeed));
    gpu.compile_s = 0;  // GPU time alone is compared
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

TEST_F(Evaluate, TheSearchIsAsGoodAsAnExhaustiveOneForASmallPartOfItsGpuTime) {
  const auto evaluation = evaluate_search(setup);
  ASSERT_TRUE(evaluation) << evaluation.error().message;
  ASSERT_EQ(evaluation->cases.size(), 2u);
  EXPECT_FALSE(evaluation->interrupted);
  for (const SearchCase& one : evaluation->cases) {
    gpu.set_shape(one.shape);
    EXPECT_LE(gpu.true_us(one.searched.winner), gpu.true_us(one.exhaustive.winner) * 1.01) << to_json(one.shape);
    EXPECT_NEAR(one.duel.ratio.ratio, gpu.true_us(one.searched.winner) / gpu.true_us(one.exhaustive.winner), 0.01);
    EXPECT_GT(one.exhaustive.candidates, 2000);
    EXPECT_LE(one.share_of_gpu_time(), 0.15) << to_json(one.shape);
  }
}

}  // namespace
}  // namespace leanattn
