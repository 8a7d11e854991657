// feature_flags_test.cpp -- every flag of a feature reaches its field, overrides the model's, and is named when it is
// refused.
#include "cli/flags/feature_flags.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cli/flags/shape_flags.hpp"

namespace leanattn {
namespace {

ShapeFlags llama() {
  ShapeFlags flags;
  flags.model = "llama-3-8b";
  return flags;
}

Features features_of(const std::function<void(FeatureFlags&)>& change) {
  ShapeFlags flags = llama();
  change(flags.features);
  const auto workload = resolve(flags, "1", "8k");
  EXPECT_TRUE(workload.has_value()) << (workload ? "" : workload.error().message);
  return workload ? workload->problem.features : Features{};
}

TEST(FeatureFlags, WithoutAnyOfThemAProblemIsPlain) {
  EXPECT_TRUE(is_plain(features_of([](FeatureFlags&) {})));
}

TEST(FeatureFlags, EachReachesItsField) {
  struct Case {
    std::function<void(FeatureFlags&)> change;
    Features expected;
  };
  const Case cases[] = {
      {[](FeatureFlags& f) { f["--page-size"] = "16"; }, {.page_size = 16}},
      {[](FeatureFlags& f) { f["--q-len"] = "4"; }, {.q_len = 4}},
      {[](FeatureFlags& f) { f["--q-len"] = "8", f["--ragged-q"] = "true"; }, {.q_len = 8, .ragged_q = true}},
      {[](FeatureFlags& f) { f["--q-len"] = "8", f["--query-mask"] = "tree"; }, {.q_len = 8, .mask = QueryMask::tree}},
      {[](FeatureFlags& f) { f["--q-len"] = "2", f["--query-mask"] = "full"; }, {.q_len = 2, .mask = QueryMask::full}},
      {[](FeatureFlags& f) { f["--window"] = "4k", f["--sink-tokens"] = "4"; }, {.window = 4096, .sink_tokens = 4}},
      {[](FeatureFlags& f) { f["--sink-logits"] = "true"; }, {.sink_logits = true}},
      {[](FeatureFlags& f) { f["--soft-cap"] = "30.5"; }, {.soft_cap = 30.5}},
      {[](FeatureFlags& f) { f["--alibi"] = "true"; }, {.alibi = true}},
      {[](FeatureFlags& f) { f["--score"] = "score * 0.5f"; }, {.score = "score * 0.5f"}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "fp8_e4m3"; }, {.kv_format = KvFormat::fp8_e4m3}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "fp8_e5m2"; }, {.kv_format = KvFormat::fp8_e5m2}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "int8", f["--kv-scale"] = "token"; },
       {.kv_format = KvFormat::int8, .kv_scale = KvScale::token}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "int4"; }, {.kv_format = KvFormat::int4, .kv_scale = KvScale::in_row}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "int4", f["--kv-scale"] = "token"; },
       {.kv_format = KvFormat::int4, .kv_scale = KvScale::token}},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "nvfp4"; }, {.kv_format = KvFormat::nvfp4}},
      {[](FeatureFlags& f) { f["--v-head-dim"] = "64"; }, {.v_head_dim = 64}},
      {[](FeatureFlags& f) { f["--batch-invariant"] = "true"; }, {.batch_invariant = true}},
      {[](FeatureFlags& f) { f["--append"] = "true"; }, {.append = true}},
      {[](FeatureFlags& f) { f["--rope"] = "half_split"; }, {.rope = Rope::half_split}},
      {[](FeatureFlags& f) { f["--rope"] = "interleaved", f["--rope-dim"] = "64"; },
       {.rope = Rope::interleaved, .rope_dim = 64}},
  };
  for (const Case& c : cases) EXPECT_EQ(features_of(c.change), c.expected) << features_name(c.expected);
}

TEST(FeatureFlags, AFlagThatChangesNothingLeavesAProblemPlain) {
  EXPECT_TRUE(is_plain(features_of([](FeatureFlags& f) { f["--v-head-dim"] = "128"; })));
  EXPECT_TRUE(is_plain(features_of([](FeatureFlags& f) { f["--kv-dtype"] = "bf16"; })));
  EXPECT_TRUE(is_plain(features_of([](FeatureFlags& f) { f["--query-mask"] = "full"; })));
  EXPECT_TRUE(is_plain(features_of([](FeatureFlags& f) { f["--q-len"] = "1"; })));
}

TEST(FeatureFlags, OverrideThoseOfTheModel) {
  ShapeFlags flags;
  flags.model = "gemma-2-9b";
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.features, Features{.soft_cap = 50});
  flags.features["--window"] = "4k";
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.features, (Features{.window = 4096, .soft_cap = 50}));
  flags.features["--soft-cap"] = "0";
  EXPECT_EQ(resolve(flags, "1", "8k")->problem.features, Features{.window = 4096});
}

TEST(FeatureFlags, AWrongFlagIsNamed) {
  struct Case {
    std::function<void(FeatureFlags&)> change;
    ErrorCode code;
    const char* named;
  };
  const Case cases[] = {
      {[](FeatureFlags& f) { f["--page-size"] = "x"; }, ErrorCode::invalid_argument, "--page-size 'x'"},
      {[](FeatureFlags& f) { f["--page-size"] = "2m"; }, ErrorCode::invalid_argument, "page_size is 2097152"},
      {[](FeatureFlags& f) { f["--q-len"] = "-1"; }, ErrorCode::invalid_argument, "--q-len -1"},
      {[](FeatureFlags& f) { f["--q-len"] = "0"; }, ErrorCode::invalid_argument, "q_len is 0"},
      {[](FeatureFlags& f) { f["--q-len"] = "17"; }, ErrorCode::unsupported, "q_len is 17"},
      {[](FeatureFlags& f) { f["--query-mask"] = "oak"; }, ErrorCode::invalid_argument, "--query-mask oak"},
      {[](FeatureFlags& f) { f["--query-mask"] = "tree"; }, ErrorCode::invalid_argument, "tree mask"},
      {[](FeatureFlags& f) { f["--sink-tokens"] = "4"; }, ErrorCode::invalid_argument, "sink_tokens is 4"},
      {[](FeatureFlags& f) { f["--soft-cap"] = "30,5"; }, ErrorCode::invalid_argument, "--soft-cap '30,5'"},
      {[](FeatureFlags& f) { f["--soft-cap"] = "-1"; }, ErrorCode::invalid_argument, "soft_cap is -1"},
      {[](FeatureFlags& f) { f["--score"] = "system()"; }, ErrorCode::invalid_argument, "'system'"},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "fp4"; }, ErrorCode::invalid_argument, "--kv-dtype fp4"},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "fp16"; }, ErrorCode::unsupported, "--kv-dtype fp16"},
      {[](FeatureFlags& f) { f["--kv-scale"] = "head"; }, ErrorCode::invalid_argument, "--kv-scale head"},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "int8", f["--kv-scale"] = "row"; }, ErrorCode::invalid_argument,
       "--kv-scale row"},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "int4", f["--kv-scale"] = "tensor"; }, ErrorCode::unsupported,
       "a cache of int4 with a scale per tensor"},
      {[](FeatureFlags& f) { f["--kv-dtype"] = "nvfp4", f["--kv-scale"] = "in_row"; }, ErrorCode::unsupported,
       "a cache of nvfp4 with a scale per in_row"},
      {[](FeatureFlags& f) { f["--v-head-dim"] = "72"; }, ErrorCode::unsupported, "v_head_dim 72"},
      {[](FeatureFlags& f) { f["--rope"] = "twice"; }, ErrorCode::invalid_argument, "--rope twice"},
      {[](FeatureFlags& f) { f["--rope-dim"] = "64"; }, ErrorCode::invalid_argument, "rope_dim is 64 without rope"},
      {[](FeatureFlags& f) { f["--rope"] = "half_split", f["--rope-dim"] = "256"; }, ErrorCode::invalid_argument,
       "rope_dim is 256, more than head_dim"},
  };
  for (const Case& c : cases) {
    ShapeFlags flags = llama();
    c.change(flags.features);
    const auto workload = resolve(flags, "1", "8k");
    ASSERT_FALSE(workload.has_value()) << c.named;
    EXPECT_EQ(workload.error().code, c.code) << workload.error().message;
    EXPECT_NE(workload.error().message.find(c.named), std::string::npos) << workload.error().message;
  }
}

TEST(FeatureFlags, AHeadingNamesThem) {
  ShapeFlags flags = llama();
  EXPECT_EQ(describe(resolve(flags, "1", "8k")->problem), "32/8 heads x 128, bf16");
  flags.features["--page-size"] = "16";
  flags.features["--window"] = "1k";
  EXPECT_EQ(describe(resolve(flags, "1", "8k")->problem), "32/8 heads x 128, bf16, p16, win1024");
}

}  // namespace
}  // namespace leanattn
