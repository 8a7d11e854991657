// c_api_test.cpp -- the contract of every C function: null and ill-sized arguments, errors of each thread, programs of
// other versions.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <type_traits>

#include "generator/feature_table.hpp"
#include "leanattn/leanattn.hpp"
#include "runtime/api/c_structs.hpp"
#include "runtime/cuda/driver.hpp"
#include "tests/unit/runtime/engine_fixture.hpp"

namespace leanattn {
namespace {

const Shape kShape{.batch = 4, .longest_context = 8192};

class CApi : public ::testing::Test {
 protected:
  CApi() : core(fictional_parts(layered({winner(kLlama, kShape, tuned_config(kLlama, 224), 12.5)}))) {
    leanattn_problem_init(&problem);
    problem.q_heads = 32;
    problem.kv_heads = 8;
    problem.head_dim = 128;
    leanattn_shape_init(&shape);
    shape.batch = 4;
    shape.longest_context = 8192;
    leanattn_choice_init(&choice);
    leanattn_plan_info_init(&info);
  }

  /// Expects that the last call failed with `status` and left a hint and a message that contains `what`.
  static void expect_error(leanattn_status given, leanattn_status expected, const std::string& what) {
    EXPECT_EQ(given, expected) << leanattn_status_name(given);
    EXPECT_EQ(leanattn_last_error_status(), expected);
    EXPECT_NE(std::string(leanattn_last_error_message()).find(what), std::string::npos)
        << leanattn_last_error_message();
    EXPECT_STRNE(leanattn_last_error_hint(), "");
  }

  EngineCore core;
  leanattn_engine* const engine = &core;
  leanattn_problem problem;
  leanattn_shape shape;
  leanattn_choice choice;
  leanattn_plan_info info;
  const leanattn_plan* plan = nullptr;
};

TEST_F(CApi, RequestsThatAreKnownGiveTheShapeAndItsMix) {
  const std::int32_t lengths[] = {4096, 4096, 8192}, tokens[] = {1, 1, 2048};
  ASSERT_EQ(leanattn_shape_of_requests(lengths, tokens, 3, &shape), LEANATTN_OK);
  EXPECT_EQ(shape.batch, 3);
  EXPECT_EQ(shape.longest_context, 8192);
  EXPECT_EQ(shape.total_context, 16384);
  EXPECT_EQ(shape.query_tokens, 2050);
  EXPECT_EQ(shape.chunks, 1);
  EXPECT_EQ(shape.chunk_context, 8192);
  EXPECT_EQ(shape.chunk_pairs, 14681088);
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK) << "a mix without prefill";
  problem.ragged_q = 1, problem.q_len = 2048, shape.chunks = 4;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT, "chunks is 4");
  shape.struct_size = 32;  // of an older program, which has no mix
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK);
  ASSERT_EQ(leanattn_shape_of_requests(lengths, nullptr, 2, &shape), LEANATTN_OK);
  EXPECT_EQ(shape.struct_size, 32u);
  EXPECT_EQ(shape.total_context, 0);
  EXPECT_EQ(shape.chunks, 4) << "beyond the older struct";
  expect_error(leanattn_shape_of_requests(nullptr, nullptr, 2, &shape), LEANATTN_INVALID_ARGUMENT, "context_lengths");
  expect_error(leanattn_shape_of_requests(lengths, nullptr, 0, &shape), LEANATTN_INVALID_ARGUMENT, "batch is 0");
}

TEST_F(CApi, VersionAndNamesAreThere) {
  EXPECT_STREQ(leanattn_version(), "0.2.0");
  EXPECT_STREQ(leanattn_status_name(LEANATTN_OK), "ok");
  EXPECT_STREQ(leanattn_status_name(LEANATTN_NOT_PREPARED), "not_prepared");
  EXPECT_NE(leanattn_status_name(static_cast<leanattn_status>(31)), nullptr);
}

TEST_F(CApi, LookUpSaysWhatWouldBeLaunchedAndWhy) {
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK) << leanattn_last_error_message();
  EXPECT_EQ(choice.provenance, LEANATTN_EXACT);
  EXPECT_EQ(choice.grid, 224);
  EXPECT_EQ(choice.tuned_us, 12.5);
  EXPECT_EQ(choice.tuned_batch, 4);
  EXPECT_EQ(choice.tuned_longest_context, 8192);
  EXPECT_EQ(choice.tuned_total_context, 4 * 8192);
  EXPECT_STREQ(choice.layer, "user");
  EXPECT_EQ(choice.kernel_name, kernel_name(tuned_config(kLlama, 224).spec));
}

TEST_F(CApi, APlanSaysWhatItIsAndWhatItNeeds) {
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_OK)
      << leanattn_last_error_message();
  ASSERT_EQ(leanattn_plan_get_info(plan, &info), LEANATTN_OK);
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK);
  EXPECT_STREQ(info.kernel_name, choice.kernel_name);
  EXPECT_EQ(info.grid, 224);
  EXPECT_EQ(info.max_batch, 4);
  EXPECT_EQ(info.threads, 64);
  EXPECT_EQ(info.registers, 128);
  EXPECT_EQ(info.provenance, LEANATTN_EXACT);
  EXPECT_GT(info.workspace_bytes, 0);
  EXPECT_EQ(leanattn_plan_workspace_bytes(plan), info.workspace_bytes);
  EXPECT_EQ(choice.workspace_bytes, info.workspace_bytes);
}

TEST_F(CApi, DependentLaunchIsAskedForInTheProblemAndReported) {
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_OK);
  ASSERT_EQ(leanattn_plan_get_info(plan, &info), LEANATTN_OK);
  EXPECT_EQ(info.pdl, 0);
  EXPECT_EQ(info.tuned_pdl, 0);
  problem.pdl = 1;
  const leanattn_plan* dependent = nullptr;
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &dependent), LEANATTN_OK)
      << leanattn_last_error_message();
  EXPECT_NE(dependent, plan);
  ASSERT_EQ(leanattn_plan_get_info(dependent, &info), LEANATTN_OK);
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK);
  EXPECT_EQ(info.provenance, LEANATTN_WITHOUT_PDL);
  EXPECT_EQ(info.grid, choice.grid);
  EXPECT_EQ(info.pdl, 1);
  EXPECT_EQ(info.tuned_pdl, 0);
  EXPECT_EQ(choice.provenance, LEANATTN_WITHOUT_PDL);
  EXPECT_EQ(choice.pdl, 1);
  EXPECT_EQ(choice.tuned_pdl, 0);
  EXPECT_EQ(choice.tuned_us, 12.5);
  EXPECT_STREQ(choice.kernel_name, info.kernel_name);
}

TEST_F(CApi, AProgramFromBeforeDependentLaunchGetsOrdinaryLaunches) {
  problem.struct_size = 32;
  problem.pdl = 77;  // lies behind the older struct, where the library must not read
  problem.reserved = 77;
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK) << leanattn_last_error_message();
  EXPECT_EQ(choice.provenance, LEANATTN_EXACT);
  EXPECT_EQ(choice.pdl, 0);
  leanattn_choice older;
  leanattn_choice_init(&older);
  older.struct_size = 208;
  older.pdl = older.tuned_pdl = 77;
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &older), LEANATTN_OK);
  EXPECT_EQ(older.pdl, 77);
  EXPECT_EQ(older.tuned_pdl, 77);
  problem.struct_size = sizeof problem;
  problem.pdl = 0;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT,
               "problem.reserved is 77");
}

TEST_F(CApi, NullsAreRefusedByName) {
  void* const somewhere = reinterpret_cast<void*>(0x1000);
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_OK);
  leanattn_decode_args args;
  leanattn_decode_args_init(&args);
  const auto invalid = LEANATTN_INVALID_ARGUMENT;
  expect_error(leanattn_engine_create(nullptr, nullptr), invalid, "engine is null");
  expect_error(leanattn_engine_reload(nullptr), invalid, "engine is null");
  expect_error(leanattn_engine_lookup(nullptr, &problem, &shape, &choice), invalid, "engine is null");
  expect_error(leanattn_engine_lookup(engine, nullptr, &shape, &choice), invalid, "problem is null");
  expect_error(leanattn_engine_lookup(engine, &problem, nullptr, &choice), invalid, "shape is null");
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, nullptr), invalid, "choice is null");
  const leanattn_plan* out = nullptr;
  expect_error(leanattn_engine_plan(nullptr, &problem, &shape, nullptr, &out), invalid, "engine is null");
  expect_error(leanattn_engine_plan(engine, nullptr, &shape, nullptr, &out), invalid, "problem is null");
  expect_error(leanattn_engine_plan(engine, &problem, nullptr, nullptr, &out), invalid, "shape is null");
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, nullptr), invalid, "plan is null");
  expect_error(leanattn_plan_get_info(nullptr, &info), invalid, "plan is null");
  expect_error(leanattn_plan_get_info(plan, nullptr), invalid, "plan_info is null");
  expect_error(leanattn_plan_init_workspace(nullptr, somewhere, 1, nullptr), invalid, "plan is null");
  expect_error(leanattn_plan_init_workspace(plan, nullptr, 1 << 30, nullptr), invalid, "workspace is null");
  expect_error(leanattn_plan_reset_workspace(plan, somewhere, 1, nullptr), invalid, "workspace has 1 bytes");
  expect_error(leanattn_plan_launch(nullptr, &args, somewhere, nullptr), invalid, "plan is null");
  expect_error(leanattn_plan_launch(plan, nullptr, somewhere, nullptr), invalid, "decode_args is null");
  expect_error(leanattn_plan_launch(plan, &args, somewhere, nullptr), invalid, "context_capacity is 0");
  EXPECT_EQ(leanattn_plan_workspace_bytes(nullptr), -1);
  EXPECT_STREQ(leanattn_engine_warnings(nullptr), "");
  leanattn_engine_destroy(nullptr);
}

TEST_F(CApi, ATuningThatCannotBeDoneIsRefusedByName) {
  const auto invalid = LEANATTN_INVALID_ARGUMENT;
  leanattn_tune_options limits;
  leanattn_tune_options_init(&limits);
  limits.budget_s = 1;
  leanattn_tuned_shape results[2];
  leanattn_shape shapes[2] = {shape, shape};
  for (leanattn_tuned_shape& result : results) leanattn_tuned_shape_init(&result);
  const auto tune = [&](int count = 2) {
    return leanattn_engine_tune(engine, &problem, shapes, count, &limits, results);
  };
  expect_error(leanattn_engine_tune(nullptr, &problem, shapes, 2, &limits, results), invalid, "engine is null");
  expect_error(leanattn_engine_tune(engine, nullptr, shapes, 2, &limits, results), invalid, "problem is null");
  expect_error(leanattn_engine_tune(engine, &problem, nullptr, 2, &limits, results), invalid, "shapes is null");
  expect_error(tune(0), invalid, "shape_count is 0");
  expect_error(tune(), LEANATTN_CACHE_UNAVAILABLE, "no cache on disk");
  shapes[1].struct_size = 40;
  expect_error(tune(), invalid, "shapes[1].struct_size is 40");
  shapes[1] = shape;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1} << 40}) {
    results[0].struct_size = results[1].struct_size = size;
    expect_error(tune(), invalid, "tuned_shape.struct_size");
  }
  leanattn_tuned_shape_init(&results[0]);
  expect_error(tune(), invalid, "tuned_shape.struct_size");
  leanattn_tuned_shape_init(&results[1]);
  shapes[1].batch = -1;
  expect_error(tune(), LEANATTN_CACHE_UNAVAILABLE, "no cache on disk");
  for (const double seconds : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    limits.budget_s = seconds;
    expect_error(tune(), invalid, "tune_options.budget_s is");
  }
  limits.budget_s = 1;
  limits.memory_bytes = -1;
  expect_error(tune(), invalid, "tune_options.memory_bytes is -1");
  limits.memory_bytes = 0;
  limits.reserved = 3;
  expect_error(tune(), invalid, "tune_options.reserved is 3");
  limits.reserved = 0;
  expect_error(leanattn_engine_autotune(nullptr, LEANATTN_AUTOTUNE_OFF, nullptr), invalid, "engine is null");
  expect_error(leanattn_engine_autotune(engine, static_cast<leanattn_autotune_mode>(3), &limits), invalid, "mode is 3");
  expect_error(leanattn_engine_autotune(engine, LEANATTN_AUTOTUNE_WAIT, &limits), LEANATTN_CACHE_UNAVAILABLE,
               "no cache on disk");
  EXPECT_EQ(leanattn_engine_autotune(engine, LEANATTN_AUTOTUNE_OFF, nullptr), LEANATTN_OK);
}

TEST_F(CApi, AnOutputIsNullAfterAFailure) {
  plan = reinterpret_cast<const leanattn_plan*>(0x1);
  problem.kv_heads = 0;
  EXPECT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  leanattn_engine* made = reinterpret_cast<leanattn_engine*>(0x1);
  leanattn_engine_options options;
  leanattn_engine_options_init(&options);
  options.flags = 0x80;
  expect_error(leanattn_engine_create(&options, &made), LEANATTN_INVALID_ARGUMENT, "flags is 128");
  EXPECT_EQ(made, nullptr);
}

TEST_F(CApi, AStructWithoutItsSizeIsRefused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{31}, std::size_t{1} << 40}) {
    problem.struct_size = size;
    expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT,
                 "problem.struct_size is " + std::to_string(size));
  }
  problem.struct_size = sizeof problem;
  shape.struct_size = 0;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT,
               "shape.struct_size");
  shape.struct_size = sizeof shape;
  choice.struct_size = 7;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT,
               "choice.struct_size");
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_OK);
  info.struct_size = 0;
  expect_error(leanattn_plan_get_info(plan, &info), LEANATTN_INVALID_ARGUMENT, "plan_info.struct_size");
  leanattn_decode_args args;
  leanattn_decode_args_init(&args);
  args.struct_size = 16;
  expect_error(leanattn_plan_launch(plan, &args, nullptr, nullptr), LEANATTN_INVALID_ARGUMENT,
               "decode_args.struct_size");
  leanattn_engine_options options;
  leanattn_engine_options_init(&options);
  options.struct_size = 1;
  leanattn_engine* made = nullptr;
  expect_error(leanattn_engine_create(&options, &made), LEANATTN_INVALID_ARGUMENT, "engine_options.struct_size");
}

/// leanattn_problem and leanattn_choice as a later version may have them.
struct NewerProblem {
  leanattn_problem known;
  std::int64_t added = 0;
};
struct NewerChoice {
  leanattn_choice known;
  std::int64_t added = 0;
};

TEST_F(CApi, ANewerProgramMayLeaveItsNewFieldsZeroButNotSetThem) {
  NewerProblem newer{};
  newer.known = problem;
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(leanattn_engine_lookup(engine, &newer.known, &shape, &choice), LEANATTN_OK)
      << leanattn_last_error_message();
  newer.added = 1;
  expect_error(leanattn_engine_lookup(engine, &newer.known, &shape, &choice), LEANATTN_INVALID_ARGUMENT,
               "does not know");
}

TEST_F(CApi, ANewerProgramsOutputFieldsAreLeftAlone) {
  NewerChoice newer{};
  newer.known.struct_size = sizeof newer;
  newer.added = 0x1234;
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &newer.known), LEANATTN_OK);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  EXPECT_EQ(newer.known.grid, 224);
  EXPECT_EQ(newer.added, 0x1234);
}

TEST_F(CApi, EnumeratorsOfAnotherVersionAreRefusedWithTheirValue) {
  problem.dtype = 7;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT, "dtype is 7");
  problem.dtype = LEANATTN_FP16;
  problem.kv_layout = -1;
  expect_error(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_INVALID_ARGUMENT, "kv_layout is -1");
}

TEST_F(CApi, ProblemsOutOfTheirDomainAreRefusedWithTheirValue) {
  problem.q_heads = 30;
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_INVALID_ARGUMENT,
               "30 query heads");
  problem.q_heads = 32;
  problem.head_dim = 72;
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_UNSUPPORTED, "head_dim 72");
  problem.head_dim = 128;
  shape.batch = -1;
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_INVALID_ARGUMENT,
               "batch is -1");
}

TEST_F(CApi, FeaturesOfAProblemReachItsPlan) {
  problem.page_size = 16;
  problem.q_len = 4;
  problem.query_mask = LEANATTN_MASK_TREE;
  problem.ragged_q = 7;
  problem.sink_logits = -1;
  problem.alibi = 1;
  problem.soft_cap = 30.5;
  std::string expression = "score * 0.5f + kv_index";
  problem.score = expression.c_str();
  problem.kv_format = LEANATTN_KV_INT8;
  problem.kv_scale = LEANATTN_SCALE_HEAD;
  problem.v_head_dim = 64;
  DecodeProblem read;
  ASSERT_TRUE(detail::read_problem(&problem, read));
  expression.assign(expression.size(), '!');  // the caller may reuse the text
  const Features expected{.page_size = 16,
                          .q_len = 4,
                          .ragged_q = true,
                          .mask = QueryMask::tree,
                          .sink_logits = true,
                          .soft_cap = 30.5,
                          .alibi = true,
                          .score = "score * 0.5f + kv_index",
                          .kv_format = KvFormat::int8,
                          .kv_scale = KvScale::head,
                          .v_head_dim = 64};
  EXPECT_EQ(read.features, expected) << to_json(read.features);
  problem.query_mask = LEANATTN_MASK_CAUSAL, problem.window = 100, problem.sink_tokens = 4, problem.score = nullptr;
  problem.append = 1, problem.rope = LEANATTN_ROPE_INTERLEAVED, problem.rope_dim = 32, problem.batch_invariant = 1;
  ASSERT_TRUE(detail::read_problem(&problem, read));
  EXPECT_EQ(read.features.window, 100);
  EXPECT_EQ(read.features.sink_tokens, 4);
  EXPECT_EQ(read.features.score, "");
  EXPECT_TRUE(read.features.append);
  EXPECT_EQ(read.features.rope, Rope::interleaved);
  EXPECT_EQ(read.features.rope_dim, 32);
  EXPECT_TRUE(read.features.batch_invariant);
}

TEST_F(CApi, ZeroAndWhatRepeatsThePlainProblemAreThePlainProblem) {
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_OK)
      << leanattn_last_error_message();
  problem.q_len = 1;
  problem.v_head_dim = 128;
  problem.kv_scale = LEANATTN_SCALE_TOKEN;
  problem.score = "";
  const leanattn_plan* again = nullptr;
  ASSERT_EQ(leanattn_engine_plan(engine, &problem, &shape, nullptr, &again), LEANATTN_OK)
      << leanattn_last_error_message();
  EXPECT_EQ(again, plan);
}

TEST_F(CApi, FeaturesOutOfTheirDomainAreRefusedByName) {
  struct Case {
    std::function<void(leanattn_problem&)> change;
    leanattn_status status;
    const char* named;
  };
  constexpr std::int32_t kNone = 99;  // EveryFieldOfAFeatureReachesItsMember tries the first value that is none
  const Case cases[] = {
      {[](leanattn_problem& p) { p.query_mask = kNone; }, LEANATTN_INVALID_ARGUMENT, "query_mask is 99"},
      {[](leanattn_problem& p) { p.query_mask = -1; }, LEANATTN_INVALID_ARGUMENT, "query_mask is -1"},
      {[](leanattn_problem& p) { p.kv_format = kNone; }, LEANATTN_INVALID_ARGUMENT, "kv_format is 99"},
      {[](leanattn_problem& p) { p.kv_scale = kNone; }, LEANATTN_INVALID_ARGUMENT, "kv_scale is 99"},
      {[](leanattn_problem& p) { p.rope = kNone; }, LEANATTN_INVALID_ARGUMENT, "rope is 99"},
      {[](leanattn_problem& p) { p.rope_dim = 64; }, LEANATTN_INVALID_ARGUMENT, "rope_dim is 64"},
      {[](leanattn_problem& p) { p.rope = 1, p.rope_dim = 256; }, LEANATTN_INVALID_ARGUMENT, "rope_dim is 256, more"},
      {[](leanattn_problem& p) { p.latent = 1, p.v_head_dim = 256; }, LEANATTN_INVALID_ARGUMENT, "v_head_dim is 256"},
      {[](leanattn_problem& p) { p.page_size = -16; }, LEANATTN_INVALID_ARGUMENT, "page_size is -16"},
      {[](leanattn_problem& p) { p.q_len = -1; }, LEANATTN_INVALID_ARGUMENT, "q_len is -1"},
      {[](leanattn_problem& p) { p.q_len = 17; }, LEANATTN_UNSUPPORTED, "q_len is 17"},
      {[](leanattn_problem& p) { p.window = -1; }, LEANATTN_INVALID_ARGUMENT, "window is -1"},
      {[](leanattn_problem& p) { p.sink_tokens = 1; }, LEANATTN_INVALID_ARGUMENT, "sink_tokens is 1"},
      {[](leanattn_problem& p) { p.soft_cap = -2; }, LEANATTN_INVALID_ARGUMENT, "soft_cap is -2"},
      {[](leanattn_problem& p) { p.score = "exit(1)"; }, LEANATTN_INVALID_ARGUMENT, "'exit'"},
      {[](leanattn_problem& p) { p.v_head_dim = 40; }, LEANATTN_UNSUPPORTED, "v_head_dim 40"},
  };
  for (const Case& c : cases) {
    leanattn_problem bad = problem;
    c.change(bad);
    expect_error(leanattn_engine_plan(engine, &bad, &shape, nullptr, &plan), c.status, c.named);
    expect_error(leanattn_engine_lookup(engine, &bad, &shape, &choice), c.status, c.named);
  }
}

TEST_F(CApi, AProgramFromBeforeFeaturesGetsPlainKernels) {
  problem.struct_size = 40;
  problem.page_size = 77;  // lies behind the older struct, where the library must not read
  problem.latent = 77;
  ASSERT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK) << leanattn_last_error_message();
  EXPECT_EQ(choice.provenance, LEANATTN_EXACT);
  EXPECT_EQ(choice.kernel_name, kernel_name(tuned_config(kLlama, 224).spec));
}

TEST_F(CApi, EveryFieldOfAFeatureReachesItsMember) {
  for_each_feature([]<class T>(const Feature<T>& row) {
    if (row.c_member == nullptr) return;
    leanattn_problem c;
    leanattn_problem_init(&c);
    c.head_dim = 128;
    c.kv_format = LEANATTN_KV_INT8;  // without which kv_scale means nothing
    if constexpr (std::is_same_v<T, std::string>) {
      c.*row.c_member = "score";
    } else {
      c.*row.c_member = std::is_same_v<T, int> ? 2 : 1;
    }
    DecodeProblem read;
    ASSERT_TRUE(detail::read_problem(&c, read)) << row.name;
    Features expected{.kv_format = KvFormat::int8};
    expected.*row.member = [] {
      if constexpr (std::is_same_v<T, std::string>) return T("score");
      if constexpr (!std::is_same_v<T, std::string>) return static_cast<T>(std::is_same_v<T, int> ? 2 : 1);
    }();
    EXPECT_EQ(read.features, expected) << row.name << ": " << to_json(read.features);
    if constexpr (std::is_enum_v<T>) {
      c.*row.c_member = static_cast<std::int32_t>(std::size(Enumeration<T>::kAll));
      const auto refused = detail::read_problem(&c, read);
      ASSERT_FALSE(refused) << row.name;
      EXPECT_EQ(refused.error().message, fmt::format("{} is {}", row.c_name(), c.*row.c_member));
    }
  });
  leanattn_problem c;
  leanattn_problem_init(&c);
  c.query_mask = 3;
  DecodeProblem read;
  EXPECT_EQ(detail::read_problem(&c, read).error().hint,
            "Give LEANATTN_MASK_CAUSAL (0), LEANATTN_MASK_TREE (1) or LEANATTN_MASK_FULL (2).");
}

TEST_F(CApi, AFourBitCacheHasItsUsualScaleWhereNoneIsNamed) {
  leanattn_problem c;
  leanattn_problem_init(&c);
  c.head_dim = 128;
  c.kv_format = LEANATTN_KV_INT4;
  DecodeProblem read;
  ASSERT_TRUE(detail::read_problem(&c, read));
  EXPECT_EQ(read.features.kv_scale, KvScale::in_row);
  c.kv_scale = LEANATTN_SCALE_TOKEN;
  ASSERT_TRUE(detail::read_problem(&c, read));
  EXPECT_EQ(read.features.kv_scale, KvScale::token);
}

TEST_F(CApi, TheCxxProblemAndArgumentsAreTheCOnesFieldByField) {
  Problem cxx{.q_heads = 16, .kv_heads = 4, .head_dim = 192};
  cxx.page_size = 32, cxx.q_len = 3, cxx.ragged_q = true, cxx.query_mask = AttentionMask::full, cxx.sink_logits = true;
  cxx.alibi = true, cxx.soft_cap = 50, cxx.score = "score", cxx.kv_format = CacheFormat::fp8_e5m2;
  cxx.kv_scale = CacheScale::token, cxx.v_head_dim = 128;
  const leanattn_problem c = detail::to_c(cxx);
  DecodeProblem read;
  ASSERT_TRUE(detail::read_problem(&c, read));
  const Features expected{.page_size = 32,
                          .q_len = 3,
                          .ragged_q = true,
                          .mask = QueryMask::full,
                          .sink_logits = true,
                          .soft_cap = 50,
                          .alibi = true,
                          .score = "score",
                          .kv_format = KvFormat::fp8_e5m2,
                          .kv_scale = KvScale::token,
                          .v_head_dim = 128};
  EXPECT_EQ(read.features, expected) << to_json(read.features);
  cxx.query_mask = AttentionMask::causal, cxx.window = 9, cxx.sink_tokens = 2;
  EXPECT_EQ(detail::to_c(cxx).window, 9);
  EXPECT_EQ(detail::to_c(cxx).sink_tokens, 2);
  EXPECT_EQ(detail::to_c(Problem{}).score, nullptr);
  cxx.append = true, cxx.rope = RopePairing::half_split, cxx.rope_dim = 96, cxx.batch_invariant = true;
  EXPECT_EQ(detail::to_c(cxx).append, 1);
  EXPECT_EQ(detail::to_c(cxx).rope, LEANATTN_ROPE_HALF_SPLIT);
  EXPECT_EQ(detail::to_c(cxx).rope_dim, 96);
  EXPECT_EQ(detail::to_c(cxx).batch_invariant, 1);
  EXPECT_EQ(detail::to_c(cxx).spans, 0);
  EXPECT_EQ(detail::to_c(cxx).packed_kv, 0);
  cxx.spans = cxx.packed_kv = true;
  EXPECT_EQ(detail::to_c(cxx).spans, 1);
  EXPECT_EQ(detail::to_c(cxx).packed_kv, 1);

  DecodeArgs args;
  args.page_table = reinterpret_cast<std::int32_t*>(0x10), args.q_offsets = reinterpret_cast<std::int32_t*>(0x20);
  args.tree_mask = reinterpret_cast<std::uint32_t*>(0x30), args.alibi_slopes = reinterpret_cast<float*>(0x40);
  args.sink_logits = reinterpret_cast<float*>(0x50), args.k_scale = reinterpret_cast<float*>(0x60);
  args.v_scale = reinterpret_cast<float*>(0x70);
  args.q_stride_token = 1, args.o_stride_token = 2, args.page_table_stride = 3, args.kv_scale_stride_batch = 4;
  args.kv_scale_stride_head = 5, args.kv_scale_stride_token = 6, args.pool_pages = 7, args.max_pages = 8;
  args.k_new = reinterpret_cast<void*>(0x80), args.v_new = reinterpret_cast<void*>(0x90);
  args.rope_table = reinterpret_cast<float*>(0xa0), args.spans = reinterpret_cast<std::int32_t*>(0xb0);
  args.kv_offsets = reinterpret_cast<std::int32_t*>(0xc0);
  args.k_block_scales = reinterpret_cast<void*>(0xd0), args.v_block_scales = reinterpret_cast<void*>(0xe0);
  args.k_new_stride_batch = 9, args.k_new_stride_token = 10, args.k_new_stride_head = 11;
  args.v_new_stride_batch = 12, args.v_new_stride_token = 13, args.v_new_stride_head = 14;
  const leanattn_decode_args c_args = detail::to_c(args);
  EXPECT_EQ(c_args.k_new, args.k_new);
  EXPECT_EQ(c_args.v_new, args.v_new);
  EXPECT_EQ(c_args.rope_table, args.rope_table);
  EXPECT_EQ(c_args.spans, args.spans);
  EXPECT_EQ(c_args.kv_offsets, args.kv_offsets);
  EXPECT_EQ(c_args.k_block_scales, args.k_block_scales);
  EXPECT_EQ(c_args.v_block_scales, args.v_block_scales);
  EXPECT_EQ(c_args.k_new_stride_batch, 9);
  EXPECT_EQ(c_args.k_new_stride_token, 10);
  EXPECT_EQ(c_args.k_new_stride_head, 11);
  EXPECT_EQ(c_args.v_new_stride_batch, 12);
  EXPECT_EQ(c_args.v_new_stride_token, 13);
  EXPECT_EQ(c_args.v_new_stride_head, 14);
  EXPECT_EQ(c_args.page_table, args.page_table);
  EXPECT_EQ(c_args.q_offsets, args.q_offsets);
  EXPECT_EQ(c_args.tree_mask, args.tree_mask);
  EXPECT_EQ(c_args.alibi_slopes, args.alibi_slopes);
  EXPECT_EQ(c_args.sink_logits, args.sink_logits);
  EXPECT_EQ(c_args.k_scale, args.k_scale);
  EXPECT_EQ(c_args.v_scale, args.v_scale);
  EXPECT_EQ(c_args.q_stride_token, 1);
  EXPECT_EQ(c_args.o_stride_token, 2);
  EXPECT_EQ(c_args.page_table_stride, 3);
  EXPECT_EQ(c_args.kv_scale_stride_batch, 4);
  EXPECT_EQ(c_args.kv_scale_stride_head, 5);
  EXPECT_EQ(c_args.kv_scale_stride_token, 6);
  EXPECT_EQ(c_args.pool_pages, 7);
  EXPECT_EQ(c_args.max_pages, 8);
}

TEST_F(CApi, EveryThreadHasItsOwnLastError) {
  problem.head_dim = 72;
  EXPECT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_UNSUPPORTED);
  const std::string mine = leanattn_last_error_message();
  std::thread other([&] {
    EXPECT_EQ(leanattn_last_error_status(), LEANATTN_OK);
    EXPECT_STREQ(leanattn_last_error_message(), "");
    EXPECT_EQ(leanattn_engine_reload(nullptr), LEANATTN_INVALID_ARGUMENT);
    EXPECT_STREQ(leanattn_last_error_message(), "engine is null");
  });
  other.join();
  EXPECT_EQ(leanattn_last_error_status(), LEANATTN_UNSUPPORTED);
  EXPECT_EQ(leanattn_last_error_message(), mine);
}

TEST_F(CApi, ASuccessLeavesTheLastErrorAlone) {
  EXPECT_EQ(leanattn_engine_reload(nullptr), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(leanattn_engine_lookup(engine, &problem, &shape, &choice), LEANATTN_OK);
  EXPECT_EQ(leanattn_last_error_status(), LEANATTN_INVALID_ARGUMENT);
}

TEST_F(CApi, ALogTravelsWithItsError) {
  auto parts = fictional_parts();
  parts.prepare = [](const KernelSpec&) -> Result<PreparedKernel> {
    return fail(ErrorCode::compile_failed, "NVRTC rejects the source", "report it", "line 1: no");
  };
  EngineCore failing(std::move(parts));
  expect_error(leanattn_engine_plan(&failing, &problem, &shape, nullptr, &plan), LEANATTN_COMPILE_FAILED,
               "NVRTC rejects");
  EXPECT_STREQ(leanattn_last_error_log(), "line 1: no");
}

TEST_F(CApi, AnExceptionBecomesAStatus) {
  auto parts = fictional_parts();
  int reads = 0;
  parts.open_winners = [&]() -> WinnersByProblem {
    if (++reads > 1) throw std::bad_alloc();
    return {};
  };
  EngineCore throwing(std::move(parts));
  EXPECT_EQ(leanattn_engine_reload(&throwing), LEANATTN_OUT_OF_MEMORY);
  EXPECT_STRNE(leanattn_last_error_message(), "");
}

TEST_F(CApi, WithoutADriverAnEngineSaysSoAndWhatToDo) {
  if (driver()) GTEST_SKIP() << "this machine has a driver";
  leanattn_engine* made = nullptr;
  const leanattn_status status = leanattn_engine_create(nullptr, &made);
  EXPECT_TRUE(status == LEANATTN_NO_DRIVER || status == LEANATTN_NO_DEVICE) << leanattn_status_name(status);
  EXPECT_EQ(made, nullptr);
  EXPECT_STRNE(leanattn_last_error_message(), "");
  EXPECT_STRNE(leanattn_last_error_hint(), "");
}

TEST_F(CApi, TheCxxWrapperCarriesCodeMessageAndHint) {
  if (driver()) GTEST_SKIP() << "this machine has a driver";
  const auto made = Engine::create();
  ASSERT_FALSE(made);
  EXPECT_TRUE(made.error().code == ErrorCode::no_driver || made.error().code == ErrorCode::no_device);
  EXPECT_FALSE(made.error().message.empty());
  EXPECT_FALSE(made.error().hint.empty());
}

}  // namespace
}  // namespace leanattn
