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
  flags.snapshots = expected.snapshots = false, flags.ring = "12", expected.ring = 12;
  EXPECT_EQ(problem_of(flags).value(), expected);
  flags.ring = "0";
  EXPECT_FALSE(problem_of(flags));
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

/// "silu_first of 16": what kernels of a GPU have of an output, or what is left to the engine.
std::string output_on(Arch arch, const RecurrentFlags& flags) {
  const auto asked = problem_of(flags);
  if (!asked) return asked.error().message;
  const auto served = served_problem(flags, *asked, arch);
  if (!served) return served.error().message;
  if (!served->left.empty() && served->problem.output_gate == OutputGate::none) return served->left;
  return std::string(to_string(served->problem.output_gate)) + " of " + std::to_string(served->problem.norm_heads);
}

constexpr Arch kSm90{9, 0, true};

TEST(RecurrentFlags, WhatNoKernelOfTheGpuNormalisesIsLeftToTheEngine) {
  RecurrentFlags flags;
  flags.model = "nemotron-h-8b";
  EXPECT_EQ(output_on(kSm90, flags), "silu_first of 16");
  EXPECT_EQ(output_on({8, 0, false}, flags),
            "RMSNorm x silu_first(z) over 16 heads is left to the engine: no kernel of sm_80 has it.");
  EXPECT_EQ(output_on({12, 0, true}, flags),
            "RMSNorm x silu_first(z) over 16 heads is left to the engine: no kernel of sm_120a has it.");
  flags.model = "qwen3.5-27b";
  EXPECT_EQ(output_on({8, 0, false}, flags), "silu of 1");
  flags.value_dim = "192", flags.model = "", flags.output_gate = "silu";
  EXPECT_EQ(output_on({8, 0, false}, flags).find("sm_80 has no kernel of gated_delta, 16/32 heads of 192"), 0u);
}

TEST(RecurrentFlags, GroupsAreDividedAmongGpusAsAWhole) {
  RecurrentFlags flags;
  flags.model = "nemotron-h-8b", flags.tensor_parallel = "8";
  EXPECT_EQ(output_on(kSm90, flags), "silu_first of 16");
  flags.tensor_parallel = "16";
  EXPECT_EQ(output_on(kSm90, flags),
            "RMSNorm x silu_first(z) over 16 heads is left to the engine: a group lies on several GPUs.");
}

TEST(RecurrentFlags, WhatIsGivenOfAnOutputIsNotLeft) {
  RecurrentFlags flags;
  flags.model = "nemotron-h-8b", flags.output_gate = "silu";
  EXPECT_EQ(output_on(kSm90, flags), "silu of 1");
  flags.output_gate = "silu_first";
  EXPECT_EQ(output_on(kSm90, flags), "silu_first of 16");
  flags.norm_heads = "8";
  EXPECT_EQ(output_on(kSm90, flags), "silu_first of 8");
  flags.norm_heads = "32";
  EXPECT_NE(output_on(kSm90, flags).find("sm_90a has no kernel of mamba2"), std::string::npos);
}

}  // namespace
}  // namespace leanattn
