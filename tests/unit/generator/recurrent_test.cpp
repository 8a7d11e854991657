// Problems and specs of operation `recurrent`: what is refused, and what kernels consist of.
#include <gtest/gtest.h>

#include "generator/recurrent/recurrent_spec.hpp"

namespace leanattn {
namespace {

TEST(RecurrentProblem, TheTableOfUpdatesIsInTheOrderOfKinds) {
  ASSERT_EQ(recurrent_updates().size(), kRecurrentKinds.size());
  for (const RecurrentKind kind : kRecurrentKinds) {
    EXPECT_EQ(update_of(kind).kind, kind);
    EXPECT_EQ(parse_recurrent_kind(to_string(kind)).value(), kind);
    EXPECT_TRUE(validate(usual_problem(kind))) << to_string(kind);
  }
}

TEST(RecurrentProblem, RefusesWhatHasNoKernelAndSaysWhy) {
  const auto refused = [](auto change) {
    RecurrentProblem problem;
    change(problem);
    const auto ok = validate(problem);
    return ok ? std::string() : ok.error().message + ". " + ok.error().hint;
  };
  EXPECT_EQ(refused([](auto& p) { p.v_heads = 24; }),
            "24 heads of v for 16 of q and k. v_heads is a multiple of qk_heads.");
  EXPECT_EQ(refused([](auto& p) { p.tokens = 17; }), "17 tokens a step. Give 1 to 16. Prompts are the engine's.");
  EXPECT_EQ(refused([](auto& p) { p.key_dim = 80; }), "key_dim is 80. Give a multiple of 32 from 32 to 256.");
  EXPECT_EQ(refused([](auto& p) { p.gates = Gates::bounded; }),
            "bounded gates of kind gated_delta. Choose one of: softplus, given");
  EXPECT_EQ(refused([](auto& p) { p.norm_heads = 3; }),
            "3 heads of 32 are normalised together. Give a number that divides v_heads.");
  EXPECT_EQ(refused([](auto& p) { p.norm_heads = 2, p.output_gate = OutputGate::silu; }),
            "2 heads are normalised together with the output gate silu. The gate silu_first has groups of heads.");
  EXPECT_EQ(refused([](auto& p) { p.kind = RecurrentKind::rwkv7, p.gates = Gates::given, p.key_dim = 96; }),
            "key_dim is 96 of kind rwkv7. Give 32, 64, 128 or 256.");
  EXPECT_EQ(refused([](auto& p) { p.conv_width = 5; }),
            "conv_width is 5. Give 2 to 4, or 0 where q, k and v have gone through it.");
  EXPECT_EQ(refused([](auto& p) { p.tokens = 4, p.ring = 7; }),
            "a ring of 7 for 4 tokens a step. Give at least twice the tokens, and at most 16.");
  EXPECT_EQ(refused([](auto& p) { p.ring = 17; }),
            "a ring of 17 for 1 tokens a step. Give at least twice the tokens, and at most 16.");
  EXPECT_EQ(refused([](auto& p) { p.tokens = 4, p.ring = 16, p.snapshots = true; }),
            "a ring and snapshots. With a ring no state is stored for a token that may be rejected.");
  EXPECT_EQ(refused([](auto& p) { p.kind = RecurrentKind::rwkv7, p.gates = Gates::given, p.ring = 9; }),
            "a ring of kind rwkv7. An entry has one vector, and this update adds two.");
  EXPECT_EQ(refused([](auto& p) { p.tokens = 2, p.ring = 9, p.conv_width = 4; }).find("a ring and a convolution"), 0u);
  EXPECT_EQ(refused([](auto& p) { p.ring = 9, p.conv_width = 4; }), "");
  EXPECT_EQ(refused([](auto&) {}), "");
}

TEST(RecurrentProblem, ARingsStateIsStoredOncePerPeriod) {
  RecurrentProblem problem;  // 32 heads of 128 x 128 in fp32
  problem.ring = 9;
  EXPECT_EQ(ring_period(problem), 8);
  EXPECT_EQ(ring_entry_bytes(problem), 4 * (32 * 128 + 16 * 128 + 32));
  // Eight steps read eight states, write one, read 1 + .. + 8 entries and write eight.
  EXPECT_EQ(state_traffic(problem, 8), 9 * state_bytes(problem) + 44 * ring_entry_bytes(problem));
  problem.tokens = 4, problem.ring = 16;
  EXPECT_EQ(ring_period(problem), 3);
  EXPECT_EQ(state_traffic(problem, 3), 4 * state_bytes(problem) + (24 + 12) * ring_entry_bytes(problem));
  problem.ring = 8;
  EXPECT_EQ(ring_period(problem), 1) << "every step stores";
}

TEST(RecurrentProblem, CountsAStateOnceForEachTimeThatItIsReadOrWritten) {
  RecurrentProblem problem;  // 32 heads of 128 x 128 in fp32
  EXPECT_EQ(state_bytes(problem), 2 << 20);
  EXPECT_EQ(state_traffic(problem, 4), 16 << 20);
  problem.tokens = 4;
  EXPECT_EQ(state_traffic(problem, 4), 16 << 20) << "states between tokens stay in registers";
  problem.snapshots = true;
  EXPECT_EQ(state_traffic(problem, 4), 40 << 20);
  problem.state = StateType::bf16;
  EXPECT_EQ(state_traffic(problem, 4), 20 << 20);
}

TEST(RecurrentProblem, AConvolutionsStateHasTokensThatMayNotBeAccepted) {
  RecurrentProblem problem;
  problem.conv_width = 4;
  EXPECT_EQ(conv_tokens(problem), 3);
  problem.tokens = 5;
  EXPECT_EQ(conv_tokens(problem), 3) << "all are accepted";
  problem.snapshots = true;
  EXPECT_EQ(conv_tokens(problem), 7);
}

TEST(RecurrentSpec, RowsOfACtaDivideAHead) {
  RecurrentSpec spec;
  EXPECT_TRUE(validate(spec));
  EXPECT_EQ(ctas_of_head(spec), 4);
  spec.tunables.warp_rows = 3;
  EXPECT_FALSE(validate(spec));
  spec.tunables = {.warps = 8, .warp_rows = 32, .row_lanes = 8};
  EXPECT_FALSE(validate(spec)) << "256 rows of 128";
  spec.tunables = {.warps = 1, .warp_rows = 8, .row_lanes = 2};
  EXPECT_FALSE(validate(spec));
  spec.problem.keys_first = true;
  spec.tunables = {.warps = 1, .warp_rows = 8, .row_lanes = 8};
  EXPECT_FALSE(validate(spec)) << "two rows of a lane are not 16 bytes of a column";
  spec.problem.keys_first = false;
  spec.problem.key_dim = 32;
  spec.tunables = {.warps = 1, .warp_rows = 8, .row_lanes = 16};
  EXPECT_FALSE(validate(spec)) << "16 lanes x 16 bytes are more than a row";
}

TEST(RecurrentSpec, HeadsThatAreNormalisedTogetherAreOneCluster) {
  RecurrentSpec spec{.arch = {9, 0, true}, .problem = usual_problem(RecurrentKind::mamba2)};
  spec.problem.value_dim = 64, spec.problem.v_heads = 128, spec.problem.output_gate = OutputGate::silu_first;
  spec.tunables = {.warps = 4, .warp_rows = 8, .row_lanes = 8};
  EXPECT_EQ(ctas_of_cluster(spec), 2);
  spec.problem.norm_heads = 8;
  EXPECT_EQ(ctas_of_cluster(spec), 16);
  EXPECT_TRUE(validate(spec)) << validate(spec).error().message;
  spec.arch = {12, 0, true};
  EXPECT_FALSE(validate(spec)) << "only GPUs of data centres have clusters of 16";
  spec.arch = {8, 0, false};
  EXPECT_FALSE(validate(spec));
  spec.problem.norm_heads = 1, spec.tunables.warps = 8;
  EXPECT_TRUE(validate(spec)) << "a CTA has all rows of a head";
  spec.arch = {9, 0, true}, spec.problem.norm_heads = 32;
  EXPECT_FALSE(validate(spec));
}

TEST(RecurrentSpec, EverySearchSpaceHasKernels) {
  for (const RecurrentKind kind : kRecurrentKinds) {
    for (const int dim : {32, 64, 96, 128, 192, 256}) {
      for (const StateType state : kStateTypes) {
        for (const OutputGate gate : {OutputGate::none, OutputGate::silu}) {
          RecurrentProblem problem = usual_problem(kind);
          if (update_of(kind).erasure >= Erasure::channels && dim % 3 == 0) continue;
          problem.key_dim = problem.value_dim = dim, problem.state = state, problem.output_gate = gate;
          problem.conv_width = gate == OutputGate::none && dim % 64 == 0 && dim < 256 ? 4 : 0;
          for (const bool keys_first : {false, true}) {
            problem.keys_first = keys_first;
            for (const Arch arch : matrix_arches()) {
              // Before sm_90 a CTA has all rows of a head whose output is gated.
              if (gate != OutputGate::none && arch.major < 9 && dim != 32 && dim != 64 && dim != 128) continue;
              for (problem.tokens = 1; problem.tokens <= kMostRecurrentTokens; problem.tokens += 15)
                EXPECT_FALSE(recurrent_search_space(arch, problem).empty()) << describe(problem) << to_string(arch);
              if (problem.conv_width > 0 || update_of(kind).erasure == Erasure::vectors) continue;
              for (problem.tokens = 1; problem.tokens <= 8; problem.tokens += 7) {
                problem.ring = kMostRingEntries;
                EXPECT_FALSE(recurrent_search_space(arch, problem).empty()) << describe(problem) << to_string(arch);
                problem.ring = 0;
              }
            }
          }
        }
      }
    }
  }
}

TEST(RecurrentSpec, AKernelHasOnlyWhatItsUpdateNeeds) {
  RecurrentSpec spec;
  const std::string delta = emit(spec)->source;
  EXPECT_EQ(delta, emit(spec)->source);
  EXPECT_NE(delta.find("float softplus("), std::string::npos);
  EXPECT_EQ(delta.find("lower_bound *"), std::string::npos) << "of other gates";
  EXPECT_EQ(delta.find("args.token_offsets["), std::string::npos) << "not ragged";
  EXPECT_EQ(delta.find("fmaf(skip"), std::string::npos);
  EXPECT_EQ(delta.find("context_lengths"), std::string::npos) << "nothing of attention";
  EXPECT_EQ(delta.find("convolved("), std::string::npos);
  EXPECT_EQ(delta.find("Entries"), std::string::npos) << "no ring";
  spec.problem.conv_width = 4;
  EXPECT_NE(emit(spec)->source.find("convolved("), std::string::npos);
  spec.problem = usual_problem(RecurrentKind::mamba2);
  const std::string mamba = emit(spec)->source;
  EXPECT_NE(mamba.find("fmaf(skip"), std::string::npos);
  EXPECT_EQ(mamba.find("sigmoid"), std::string::npos);
}

TEST(RecurrentSpec, NamesDifferBetweenKernels) {
  RecurrentSpec spec;
  const std::string name = kernel_name(spec);
  EXPECT_EQ(name, "recurrent_sm90a_gated_delta_softplus_bf16_fp32_norm_h16x32_k128_v128_t1_w4x8_l8_o1");
  const auto differs = [&](auto change) {
    RecurrentSpec other = spec;
    change(other);
    return kernel_name(other) != name && emit(other)->source != emit(spec)->source;
  };
  spec.tunables.row_lanes = 16;  // so that a lane has four rows
  EXPECT_TRUE(differs([](auto& s) { s.problem.keys_first = true; }));
  spec.tunables.row_lanes = 8;
  EXPECT_TRUE(differs([](auto& s) { s.problem.normalises = false; }));
  EXPECT_TRUE(differs([](auto& s) { s.problem.ragged = true; }));
  EXPECT_TRUE(differs([](auto& s) { s.problem.tokens = 2; }));
  EXPECT_TRUE(differs([](auto& s) { s.problem.conv_width = 3; }));
  EXPECT_TRUE(differs([](auto& s) { s.problem.ring = 9; }));
  EXPECT_TRUE(differs([](auto& s) { s.problem.gates = Gates::given; }));
  EXPECT_TRUE(differs([](auto& s) { s.tunables.row_lanes = 16; }));
}

TEST(RecurrentSpec, RevisionsFollowFromModulesAndConstants) {
  RecurrentSpec spec;
  const std::string revision = kernel_revision(spec);
  EXPECT_EQ(kernel_revision(spec), revision);
  spec.tunables.warps = 2;
  EXPECT_NE(kernel_revision(spec), revision);
  spec = {}, spec.problem.state = StateType::bf16;
  EXPECT_NE(kernel_revision(spec), revision);
}

}  // namespace
}  // namespace leanattn
