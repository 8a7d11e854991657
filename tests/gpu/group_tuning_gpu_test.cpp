// group_tuning_gpu_test.cpp -- groups are tuned on the GPU, with one standing in for both ranks and, where there are
// two of a kind, on both; engines then launch what won.
#include <vector>

#include "leanattn/leanattn.hpp"
#include "runtime/lookup/default_config.hpp"
#include "tests/gpu/gpu_fixture.hpp"
#include "tests/temporary_directory.hpp"
#include "tuner/backend/group_backend.hpp"
#include "tuner/search/tune.hpp"

namespace leanattn {
namespace {

class GroupTuningOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    request.problem.features.context_parallel = 2;
    request.shapes = {{.batch = 2, .longest_context = 8192}};
    request.budget = std::chrono::seconds(40);
  }
  void TearDown() override {
    if (const auto& context = GpuUnderTest::instance().context) {
      ASSERT_TRUE(context->make_current());
    }
  }
  static bool two_of_a_kind() {
    const auto first = device_facts(0), second = device_facts(1);
    return first && second && first->name == second->name;
  }
  std::unique_ptr<TuningDb> opened() {
    return std::move(*TuningDb::open(directory.path(), OpenMode::read_write, nullptr));
  }
  void expect_answer(const TunedShape& tuned) {
    EXPECT_TRUE(in_group(tuned.winner.spec.features));
    EXPECT_GT(tuned.read_limit_us, 0);
    EXPECT_GT(tuned.median_us, 0.9 * tuned.read_limit_us) << "no rank is faster than reading its part";
    EXPECT_EQ(tuned.incorrect, 0) << "what is right for the part is right in a group";
  }
  /// Engines on these GPUs plan the winner.
  void expect_plans(int first, int second, const Config& winner) {
    Problem problem;
    problem.context_parallel = 2;
    const PlanShape shape{.batch = 2, .max_batch = 0, .longest_context = 8192};
    std::vector<Engine> engines;
    for (const int device : {first, second}) {
      auto engine = Engine::create({.device = device, .cache_dir = directory.path().string()});
      ASSERT_TRUE(engine) << engine.error().message;
      engines.push_back(std::move(*engine));
    }
    auto groups = Group::of_engines({&engines[0], &engines[1]}, Group::bytes(problem, 2).value());
    ASSERT_TRUE(groups) << groups.error().message;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto plan = engines[rank].plan(problem, shape, (*groups)[rank]);
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_EQ(plan->info().provenance, LEANATTN_EXACT);
      EXPECT_EQ(plan->info().kernel_name, kernel_name(winner.spec));
      EXPECT_EQ(plan->info().grid, winner.grid);
    }
  }

  const TemporaryDirectory directory{std::filesystem::temp_directory_path()};
  TuneRequest request;
};

TEST_F(GroupTuningOnGpu, OneGpuStandsInForBothRanks) {
  request.rank_devices = {0, 0};
  const auto database = opened();
  const auto tuned = tune(request, *database, nullptr, {}, nullptr);
  ASSERT_TRUE(tuned) << tuned.error().message;
  expect_answer(tuned->shapes.front());
  expect_plans(0, 0, tuned->shapes.front().winner);
}

TEST_F(GroupTuningOnGpu, TwoGpusAreTunedTogetherInAWorker) {
  if (!two_of_a_kind()) GTEST_SKIP() << "no two GPUs of one model";
  request.rank_devices = {0, 1};
  const WorkerOptions workers{.command = {LEANATTN_PROGRAM, "worker"}};
  const auto connect = [this] { return TuningDb::open(directory.path(), OpenMode::read_write, nullptr); };
  const std::vector<int> ordinals{0, 1};
  const auto models = tune_in_workers(request, ordinals, workers, connect, {}, nullptr);
  ASSERT_TRUE(models) << models.error().message;
  ASSERT_EQ(models->size(), 1u);
  expect_answer(models->front().summary.shapes.front());
  expect_plans(0, 1, models->front().summary.shapes.front().winner);
}

TEST_F(GroupTuningOnGpu, EveryLayoutAndWayOfDealingIsRightAndTimed) {
  const auto device = device_facts(0).value();
  std::vector<int> ranks{0, two_of_a_kind() ? 1 : 0};
  for (const int page_size : {0, 16}) {
    for (const int interleave : {0, 16}) {
      for (const KvLayout layout : {KvLayout::contiguous, KvLayout::strided}) {
        DecodeProblem problem = request.problem;
        problem.layout = layout;
        problem.features.page_size = page_size, problem.features.context_interleave = interleave;
        const auto backend = GroupBackend::create(device, problem, L2Policy::cold, nullptr, ranks);
        ASSERT_TRUE(backend) << backend.error().message;
        const Shape shape{.batch = 3, .longest_context = 1500, .total_context = 2100};
        const auto begun = (*backend)->begin_shape(shape);
        ASSERT_TRUE(begun) << begun.error().message;
        Config config = default_config({device, problem, shape});
        ASSERT_TRUE((*backend)->compile(config.spec));
        config.grid = std::min<std::int64_t>(config.grid, device.sm_count / 2);
        const std::string what = kernel_name(config.spec);
        const auto outcome = (*backend)->check(config);
        ASSERT_TRUE(outcome) << what << ": " << outcome.error().message;
        EXPECT_EQ(outcome->verdict, Verdict::passed) << what << ": " << outcome->reason;
        for (int round = 0; round < 2; ++round) {
          const auto times = (*backend)->time(std::vector<Config>{config, config});
          ASSERT_TRUE(times) << what << ": " << times.error().message;
          for (const double us : times->us) EXPECT_GT(us, 0.5 * *begun) << what;
        }
        const auto again = (*backend)->check(config);
        ASSERT_TRUE(again) << what << ": " << again.error().message;
        EXPECT_EQ(again->verdict, Verdict::passed) << what << ", after it was timed: " << again->reason;
      }
    }
  }
}

}  // namespace
}  // namespace leanattn
