// oracle_kernels_test.cpp -- the helper kernels of a check compile everywhere. No GPU is needed.
#include "tuner/oracle/oracle_kernels.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/compiler.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/verify/feature_plan.hpp"

namespace leanattn {
namespace {

/// Without a score expression for every architecture, and with each of them for one. NVRTC takes seconds for each.
TEST(OracleKernels, CompileForEveryArchOfTheMatrixAndWithEveryScoreExpression) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  std::vector<std::pair<Arch, std::string>> asked;
  for (const Arch arch : matrix_arches()) asked.emplace_back(arch, "");
  for (const VerifyScore& score : verify_scores()) asked.emplace_back(Arch{9, 0, true}, score.text);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!in_turn(i, asked.size())) continue;
    const auto& [arch, score] = asked[i];
    SCOPED_TRACE(to_string(arch) + " " + score);
    const auto compiled = compile_source(oracle_source(score), arch, nullptr);
    ASSERT_TRUE(compiled.has_value()) << compiled.error().message << "\n" << compiled.error().log;
    const std::string cubin(compiled->cubin.begin(), compiled->cubin.end());
    for (const char* name : {"check_fill_q", "check_fill_table", "check_fill_kv", "check_oracle", "check_plain"})
      EXPECT_NE(cubin.find(name), std::string::npos) << name << " is missing";
  }
}

TEST(OracleKernels, HaveASourceOfTheirOwnForEveryScoreExpression) {
  const std::string plain(oracle_source());
  for (const VerifyScore& score : verify_scores()) {
    const std::string source = oracle_source(score.text);
    EXPECT_NE(source, plain);
    EXPECT_NE(source.find(score.text), std::string::npos) << score.text;
  }
}

TEST(OracleKernels, AreToldEveryFeatureOfAProblem) {
  const DecodeProblem problem{.q_heads = 12,
                              .kv_heads = 2,
                              .head_dim = 192,
                              .dtype = DType::fp16,
                              .features = {.page_size = 16,
                                           .q_len = 3,
                                           .ragged_q = true,
                                           .mask = QueryMask::causal,
                                           .window = 100,
                                           .sink_tokens = 4,
                                           .sink_logits = true,
                                           .soft_cap = 30,
                                           .alibi = true,
                                           .kv_format = KvFormat::int8,
                                           .kv_scale = KvScale::token,
                                           .v_head_dim = 128}};
  const CheckFeatures told = check_features(problem, DataKind::peaked, 7, 0.25);
  EXPECT_EQ(told.seed, 7u);
  EXPECT_EQ(told.scale, 0.25);
  EXPECT_EQ(told.soft_cap, 30);
  EXPECT_EQ(told.kind, 1);
  EXPECT_EQ(told.format, 1);
  EXPECT_EQ(told.q_heads, 12);
  EXPECT_EQ(told.head_dim, 192);
  EXPECT_EQ(told.v_head_dim, 128);
  EXPECT_EQ(told.q_len, 3);
  EXPECT_EQ(told.ragged_q, 1);
  EXPECT_EQ(told.window, 100);
  EXPECT_EQ(told.sink_tokens, 4);
  EXPECT_EQ(told.sink_logits, 1);
  EXPECT_EQ(told.alibi, 1);
  EXPECT_EQ(told.page_size, 16);
  EXPECT_EQ(told.kv_format, 3);
  EXPECT_EQ(told.kv_scale, 2);
  EXPECT_EQ(check_features({.head_dim = 64}, DataKind::uniform, 1, 1).v_head_dim, 64);
}

TEST(OracleKernels, SourceIsFlatAndTheSameEveryTime) {
  const std::string source = oracle_source();
  EXPECT_EQ(source.find("#include"), std::string::npos);
  EXPECT_EQ(source, oracle_source());
}

}  // namespace
}  // namespace leanattn
