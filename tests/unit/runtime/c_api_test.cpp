// c_api_test.cpp -- the contract of every C function: null and ill-sized arguments, errors per thread, versions mixed.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "engine_fixture.hpp"
#include "leanattn/leanattn.hpp"
#include "runtime/driver.hpp"

namespace leanattn {
namespace {

const DecodeProblem kLlama{.q_heads = 32, .kv_heads = 8, .head_dim = 128};
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

  /// The last call failed as it says, and left a message with `what` and a hint.
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

TEST_F(CApi, VersionAndNamesAreThere) {
  EXPECT_STREQ(leanattn_version(), "0.1.0");
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
  EXPECT_EQ(info.grid, 224);
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
  problem.pdl = 77;  // bytes behind the older struct: not the library's to read
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
  expect_error(leanattn_plan_launch(plan, &args, somewhere, nullptr), invalid, "batch is 0");
  EXPECT_EQ(leanattn_plan_workspace_bytes(nullptr), -1);
  EXPECT_STREQ(leanattn_engine_warnings(nullptr), "");
  leanattn_engine_destroy(nullptr);
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
  problem.head_dim = 80;
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_UNSUPPORTED, "head_dim 80");
  problem.head_dim = 128;
  shape.batch = -1;
  expect_error(leanattn_engine_plan(engine, &problem, &shape, nullptr, &plan), LEANATTN_INVALID_ARGUMENT,
               "batch is -1");
}

TEST_F(CApi, EveryThreadHasItsOwnLastError) {
  problem.head_dim = 80;
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

TEST_F(CApi, AnExceptionStopsAtTheWall) {
  auto parts = fictional_parts();
  int reads = 0;
  parts.read_winners = [&]() -> LayeredWinners {
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
