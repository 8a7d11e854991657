// engine_tuning_gpu_test.cpp -- an engine that tunes by the real program, in a process that uses the same GPU
// meanwhile.
#include <stdlib.h>

#include <future>
#include <vector>

#include "leanattn/leanattn.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tests/temporary_directory.hpp"

namespace leanattn {
namespace {

class EngineTuningOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ::setenv("LEANATTN_PROGRAM", LEANATTN_PROGRAM, 1);
    auto opened = Engine::create({.device = 0, .cache_dir = directory.path().string()});
    ASSERT_TRUE(opened) << opened.error().message;
    engine.emplace(std::move(*opened));
  }

  const TemporaryDirectory directory{std::filesystem::temp_directory_path()};
  const Problem problem{};
  const std::vector<PlanShape> shapes = {{.batch = 4, .longest_context = 8192}, {.batch = 1, .longest_context = 1024}};
  std::optional<Engine> engine;
};

TEST_F(EngineTuningOnGpu, PlansAreExactAfterwardsAndNoneIsFasterThanReading) {
  ASSERT_NE(engine->lookup(problem, shapes[0])->provenance, LEANATTN_EXACT);
  const auto tuned = engine->tune(problem, shapes, {.budget_s = 60});
  ASSERT_TRUE(tuned) << tuned.error().message << " " << tuned.error().hint;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const leanattn_tuned_shape& shape = (*tuned)[i];
    EXPECT_EQ(shape.status, LEANATTN_OK);
    EXPECT_EQ(shape.measured, 1);
    EXPECT_GT(shape.read_limit_us, 0);
    EXPECT_GT(shape.median_us, 0.9 * shape.read_limit_us);
    const auto plan = engine->plan(problem, shapes[i]);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->info().provenance, LEANATTN_EXACT);
    EXPECT_EQ(plan->info().tuned_us, shape.median_us);
    EXPECT_EQ(plan->info().stale, 0) << "the program and this process have the same driver, NVRTC and kernels";
  }
}

TEST_F(EngineTuningOnGpu, AStreamCaptureOfThisProcessIsNotDisturbed) {
  const auto graph = Graph::capture(runner->stream_object(), [&](CUstream_st* captured) -> Result<void> {
    const auto first_use = engine->autotune(AutotuneMode::wait, {.budget_s = 60});
    if (!first_use) return first_use;
    // The kernel is not loaded, and nothing is tuned for a stream that is being captured.
    const auto plan = engine->plan(problem, shapes[0], captured);
    EXPECT_FALSE(plan);
    if (!plan) {
      EXPECT_EQ(plan.error().code, ErrorCode::not_prepared);
    }
    // A tuning that is asked for by name may run meanwhile.
    const auto tuned =
        std::async(std::launch::async, [&] { return engine->tune(problem, {shapes[1]}, {.budget_s = 30}); }).get();
    EXPECT_TRUE(tuned) << tuned.error().message;
    return engine->autotune(AutotuneMode::off);
  });
  EXPECT_TRUE(graph) << graph.error().message;
  EXPECT_EQ(engine->lookup(problem, shapes[1])->provenance, LEANATTN_EXACT);
  EXPECT_NE(engine->lookup(problem, shapes[0])->provenance, LEANATTN_EXACT);
}

}  // namespace
}  // namespace leanattn
