// recurrent_json_test.cpp -- problems and specs of operation `recurrent` survive a database, and texts of other
// versions are not taken for something that they are not.
#include "generator/recurrent/recurrent_json.hpp"

#include <gtest/gtest.h>

namespace leanattn {
namespace {

TEST(RecurrentJson, EverySpecComesBackAsItWas) {
  for (const RecurrentUpdate& update : recurrent_updates()) {
    for (const Gates gates : update.gates) {
      for (const OutputGate output : kOutputGates) {
        RecurrentProblem problem = usual_problem(update.kind);
        problem.gates = gates, problem.output_gate = output;
        problem.qk_heads = 3, problem.v_heads = 6, problem.key_dim = 64, problem.value_dim = 96;
        problem.dtype = DType::fp16, problem.state = StateType::bf16, problem.normalises = !problem.normalises;
        problem.tokens = 4, problem.ragged = true, problem.snapshots = true;
        problem.conv_width = 4, problem.norm_heads = output == OutputGate::silu_first ? 2 : 1;
        const RecurrentSpec spec{
            .arch = {9, 0, true}, .problem = problem, .tunables = {.warps = 2, .warp_rows = 16, .row_lanes = 8}};
        EXPECT_EQ(recurrent_problem_from_json(to_json(problem)).value(), problem) << to_json(problem);
        EXPECT_EQ(recurrent_spec_from_json(to_json(spec)).value(), spec) << to_json(spec);
        problem.keys_first = true;
        EXPECT_EQ(recurrent_problem_from_json(to_json(problem)).value(), problem) << to_json(problem);
        if (update.erasure == Erasure::vectors) continue;
        problem.snapshots = false, problem.conv_width = 0, problem.ring = 9;
        EXPECT_EQ(recurrent_problem_from_json(to_json(problem)).value(), problem) << to_json(problem);
      }
    }
  }
}

TEST(RecurrentJson, KeysThatAreMissingHaveTheirDefaults) {
  EXPECT_EQ(recurrent_problem_from_json(R"({"kind":"gated_delta"})").value(), RecurrentProblem{});
}

TEST(RecurrentJson, OtherTextsAreRefused) {
  for (const char* text : {"", "[]", "{}", R"({"kind":"gated_delta","convolves":true})", R"({"kind":"rwkv9"})",
                           R"({"kind":"gated_delta","v_heads":3.5})", R"({"kind":"gated_delta","v_heads":33})",
                           R"({"kind":"gated_delta","state":"fp8"})", R"({"kind":"gated_delta","ragged":1})",
                           R"({"kind":"gated_delta","ring":1})", R"({"head_dim":128,"kv_heads":8,"q_heads":32})"})
    EXPECT_FALSE(recurrent_problem_from_json(text)) << text;
  for (const char* text : {"", "{}", R"({"operation":"recurrent"})", R"({"operation":"recurrent","problem":7})",
                           R"({"operation":"attention","problem":{"kind":"gated_delta"}})",
                           R"({"operation":"recurrent","problem":{"kind":"gated_delta"},"warps":3})",
                           R"({"operation":"recurrent","problem":{"kind":"gated_delta"},"stages":2})"})
    EXPECT_FALSE(recurrent_spec_from_json(text)) << text;
  EXPECT_TRUE(recurrent_spec_from_json(R"({"operation":"recurrent","problem":{"kind":"gated_delta"}})"));
}

TEST(RecurrentJson, AStepHasABatchAndNothingElse) {
  EXPECT_EQ(batch_from_json(batch_to_json(16)).value(), 16);
  for (const char* text : {"", "16", "{}", R"({"batch":0})", R"({"batch":1.5})", R"({"batch":99999999999})",
                           R"({"batch":1,"longest_context":64,"max_batch":0,"total_context":0})"})
    EXPECT_FALSE(batch_from_json(text)) << text;
}

}  // namespace
}  // namespace leanattn
