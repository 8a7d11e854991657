// engine_gpu_test.cpp -- plans of the public interface agree with the FP64 oracle, launched directly and in a graph.
#include <stdlib.h>

#include <memory>
#include <thread>
#include <vector>

#include "leanattn/leanattn.h"
#include "runtime/cuda/current_context.hpp"
#include "runtime/engine/engine.hpp"
#include "tests/gpu/gpu_fixture.hpp"

namespace leanattn {
namespace {

class EngineOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto opened = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
    ASSERT_TRUE(opened) << opened.error().message;
    engine = std::move(*opened);
  }

  /// A workspace of the plan's size, which is all zero.
  DeviceBuffer workspace_for(const PlanCore& plan) {
    auto buffer = DeviceBuffer::allocate(plan.limits().workspace.total_bytes);
    EXPECT_TRUE(buffer) << buffer.error().message;
    EXPECT_EQ(leanattn_plan_init_workspace(&plan, buffer->data(), buffer->bytes(), stream), LEANATTN_OK)
        << leanattn_last_error_message();
    return std::move(*buffer);
  }

  /// Reads the case's outputs back and compares them with its oracle.
  void expect_right(DecodeCase& decode_case, bool lse, const std::string& what) {
    const auto reference = decode_case.reference(stream);
    ASSERT_TRUE(reference) << reference.error().message;
    std::vector<char> o(static_cast<std::size_t>(decode_case.o_bytes())),
        l(static_cast<std::size_t>(decode_case.lse_bytes()));
    const Stream& queue = runner->stream_object();
    ASSERT_TRUE(copy_to_host(o.data(), decode_case.o_buffer().data(), decode_case.o_bytes(), queue));
    ASSERT_TRUE(copy_to_host(l.data(), decode_case.lse_buffer().data(), decode_case.lse_bytes(), queue));
    const ComparisonReport report = decode_case.compare_raw(**reference, o.data(), l.data(), lse);
    EXPECT_TRUE(report.passed()) << what << ": " << report.first_failure;
  }

  std::unique_ptr<EngineCore> engine;
};

TEST_F(EngineOnGpu, DefaultPlansAgreeWithTheOracleForEveryHeadSizeGroupAndLayout) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const int group : {1, 4, 7, 16, 40}) {
      for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
        const bool lse = group != 4;
        const KernelSpec heads{.head_dim = head_dim, .group = group, .layout = layout};
        auto decode_case = runner->make_case(heads, {.kv_heads = 2,
                                                     .context_lengths = {3000, 0, 1, 517},
                                                     .context_capacity = 0,
                                                     .padded = true,
                                                     .data = DataKind::uniform});
        ASSERT_TRUE(decode_case) << decode_case.error().message;
        DecodeProblem problem = decode_case->problem();
        problem.lse = lse;
        const auto plan = engine->plan(problem, {.batch = 4, .max_batch = 9, .longest_context = 3000}, stream);
        ASSERT_TRUE(plan) << plan.error().message << plan.error().log;
        DeviceBuffer workspace = workspace_for(**plan);
        ASSERT_TRUE(decode_case->reset_outputs(stream));
        const auto args = to_public(decode_case->args(), lse);
        ASSERT_EQ(leanattn_plan_launch(*plan, &args, workspace.data(), stream), LEANATTN_OK)
            << leanattn_last_error_message();
        expect_right(*decode_case, lse, (*plan)->name());
      }
    }
  }
}

TEST_F(EngineOnGpu, ACapturedPlanStaysRightWhileLengthsChange) {
  const KernelSpec heads{.head_dim = 128, .group = 4};
  auto decode_case = runner->make_case(heads, {.kv_heads = 8,
                                               .context_lengths = {4000, 1, 0, 900},
                                               .context_capacity = 4000,
                                               .padded = false,
                                               .data = DataKind::uniform});
  ASSERT_TRUE(decode_case) << decode_case.error().message;
  const DecodeProblem problem = decode_case->problem();
  const Shape shape{.batch = 4, .longest_context = 4000};
  const auto plan = engine->plan(problem, shape, stream);
  ASSERT_TRUE(plan) << plan.error().message;
  DeviceBuffer workspace = workspace_for(**plan);
  const auto args = to_public(decode_case->args(), problem.lse);
  const auto graph = Graph::capture(runner->stream_object(), [&](CUstream_st* capturing) -> Result<void> {
    const auto again = engine->plan(problem, shape, capturing);
    if (!again) return tl::unexpected(again.error());
    return (*again)->launch(args, workspace.data(), capturing);
  });
  ASSERT_TRUE(graph) << graph.error().message;
  for (const std::vector<int>& lengths :
       {std::vector<int>{4000, 1, 0, 900}, {1, 1, 1, 1}, {0, 0, 0, 4000}, {64, 4000, 3999, 65}}) {
    ASSERT_TRUE(decode_case->set_context_lengths(lengths, stream));
    ASSERT_TRUE(decode_case->reset_outputs(stream));
    ASSERT_TRUE(graph->launch(stream));
    expect_right(*decode_case, problem.lse, "replay");
  }
}

TEST_F(EngineOnGpu, ACaptureRefusesAKernelThatIsNotLoadedAndSurvives) {
  const DecodeProblem problem{.q_heads = 6, .kv_heads = 2, .head_dim = 64};
  const auto graph = Graph::capture(runner->stream_object(), [&](CUstream_st* capturing) -> Result<void> {
    const auto plan = engine->plan(problem, {}, capturing);
    EXPECT_EQ(plan ? ErrorCode::ok : plan.error().code, ErrorCode::not_prepared);
    return {};
  });
  EXPECT_TRUE(graph) << graph.error().message;
}

TEST_F(EngineOnGpu, AThreadWithoutAContextPlansAndLaunches) {
  const KernelSpec heads{.head_dim = 64, .group = 8};
  auto decode_case = runner->make_case(
      heads,
      {.kv_heads = 1, .context_lengths = {2048}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(decode_case) << decode_case.error().message;
  ASSERT_TRUE(decode_case->reset_outputs(stream));
  const auto args = to_public(decode_case->args(), true);
  DeviceBuffer workspace;
  std::thread([&] {
    const auto plan = engine->plan(decode_case->problem(), {.batch = 1, .longest_context = 2048}, nullptr);
    ASSERT_TRUE(plan) << plan.error().message;
    {
      const CurrentContext scope(GpuUnderTest::instance().context->get());
      workspace = workspace_for(**plan);
    }
    ASSERT_EQ(leanattn_plan_launch(*plan, &args, workspace.data(), stream), LEANATTN_OK)
        << leanattn_last_error_message();
  }).join();
  expect_right(*decode_case, true, "from a new thread");
}

TEST_F(EngineOnGpu, DebugChecksLetRightLaunchesThroughAndNameForeignPointers) {
  setenv("LEANATTN_DEBUG", "1", 1);
  auto checked = EngineCore::open({.device = 0, .cache_dir = {}, .disk_cache = false});
  unsetenv("LEANATTN_DEBUG");
  ASSERT_TRUE(checked) << checked.error().message;
  const KernelSpec heads{.head_dim = 64, .group = 8};
  auto decode_case = runner->make_case(
      heads,
      {.kv_heads = 1, .context_lengths = {300}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(decode_case) << decode_case.error().message;
  const auto plan = (*checked)->plan(decode_case->problem(), {.batch = 1, .longest_context = 300}, stream);
  ASSERT_TRUE(plan) << plan.error().message;
  DeviceBuffer workspace = workspace_for(**plan);
  auto args = to_public(decode_case->args(), true);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(decode_case->reset_outputs(stream));
    ASSERT_EQ(leanattn_plan_launch(*plan, &args, workspace.data(), stream), LEANATTN_OK)
        << leanattn_last_error_message();
  }
  expect_right(*decode_case, true, "with checks");
  alignas(16) static char host_memory[4096];
  args.q = host_memory;
  EXPECT_EQ(leanattn_plan_launch(*plan, &args, workspace.data(), stream), LEANATTN_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(leanattn_last_error_message()).find("q is "), 0u) << leanattn_last_error_message();
}

}  // namespace
}  // namespace leanattn
