// oracle_kernels_test.cpp -- the helper kernels of a check compile everywhere. No GPU is needed.
#include "tuner/oracle/oracle_kernels.hpp"

#include <gtest/gtest.h>

#include "runtime/cuda/compiler.hpp"
#include "tests/thoroughness.hpp"
#include "tuner/verify/feature_plan.hpp"

namespace leanattn {
namespace {

TEST(OracleKernels, CompileForEveryArchOfTheMatrix) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  const auto arches = matrix_arches();
  for (std::size_t i = 0; i < arches.size(); ++i) {
    if (!in_turn(i, arches.size())) continue;
    const Arch arch = arches[i];
    const auto compiled = compile_source(oracle_source(), arch, nullptr);
    ASSERT_TRUE(compiled.has_value()) << to_string(arch) << ": " << compiled.error().message << "\n"
                                      << compiled.error().log;
    EXPECT_FALSE(compiled->cubin.empty());
    const std::string cubin(compiled->cubin.begin(), compiled->cubin.end());
    for (const char* name : {"check_fill_q", "check_fill_table", "check_fill_kv", "check_oracle", "check_plain"}) {
      EXPECT_NE(cubin.find(name), std::string::npos) << name << " is missing for " << to_string(arch);
    }
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

TEST(OracleKernels, CompileWithEveryScoreExpression) {
  if (const auto version = nvrtc_version(); !version) GTEST_SKIP() << "no NVRTC: " << version.error().message;
  const auto& scores = verify_scores();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!in_turn(i, scores.size())) continue;
    const VerifyScore& score = scores[i];
    const auto compiled = compile_source(oracle_source(score.text), {9, 0, true}, nullptr);
    EXPECT_TRUE(compiled.has_value()) << score.text << ": " << compiled.error().message << "\n" << compiled.error().log;
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
