// recurrent_flags_test.cpp -- what flags of `leanattn recurrent` say of a problem.
#include "cli/flags/recurrent_flags.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

TEST(RecurrentFlags, NothingGivenIsTheUsualProblem) {
  EXPECT_EQ(problem_of(RecurrentFlags{}).value(), RecurrentProblem{});
  EXPECT_EQ(batches_of(RecurrentFlags{}, "1,16").value(), (std::vector<int>{1, 16}));
}

TEST(RecurrentFlags, AModelSaysAllButWhatAStepIs) {
  RecurrentFlags flags;
  flags.model = "kimi-k3", flags.tokens = "4", flags.snapshots = true, flags.state = "bf16";
  RecurrentProblem expected = usual_problem(RecurrentKind::kda);
  expected.qk_heads = expected.v_heads = 96, expected.gates = Gates::bounded, expected.tokens = 4;
  expected.output_gate = OutputGate::sigmoid, expected.state = StateType::bf16, expected.snapshots = true;
  EXPECT_EQ(problem_of(flags).value(), expected);
  flags.output_gate = "none", flags.dtype = "fp16";
  expected.output_gate = OutputGate::none, expected.dtype = DType::fp16;
  EXPECT_EQ(problem_of(flags).value(), expected) << "what is given goes first";
}

TEST(RecurrentFlags, HeadsAreDividedAmongGpusAndRepeatedWhereTheyAreFewer) {
  const auto heads = [](const char* model, const char* gpus) {
    RecurrentFlags flags;
    flags.model = model, flags.tensor_parallel = gpus;
    const auto problem = problem_of(flags);
    return problem ? std::to_string(problem->qk_heads) + "/" + std::to_string(problem->v_heads)
                   : problem.error().message;
  };
  EXPECT_EQ(heads("qwen3.5-397b-a17b", "8"), "2/8");
  EXPECT_EQ(heads("qwen3.5-397b-a17b", "32"), "1/2") << "two GPUs have the same head of q and k";
  EXPECT_EQ(heads("nemotron-h-8b", "16"), "1/8");
  EXPECT_EQ(heads("qwen3.5-27b", "3"), "--tensor-parallel 3: 16 heads of q and k and 48 of v cannot be divided by it");
  EXPECT_EQ(heads("qwen3.5-27b", "5"), "--tensor-parallel 5: 16 heads of q and k and 48 of v cannot be divided by it");
}

}  // namespace
}  // namespace leanattn
