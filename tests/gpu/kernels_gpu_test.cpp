// kernels_gpu_test.cpp -- a small selection of the kernels that `leanattn verify` runs agrees with the oracle. The
// tests whose names begin with Small are short enough for compute-sanitizer: --gtest_filter='*Small*'.
#include "tests/gpu/gpu_fixture.hpp"

#include <cctype>

#include "tuner/verify/plan.hpp"
#include "tuner/verify/themes.hpp"

namespace leanattn {
namespace {

/// One of representative_kernels(). The list has the same length on every architecture, so that tests have names
/// without a device.
class RepresentativeKernel : public GpuTest, public testing::WithParamInterface<std::size_t> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    plan = representative_kernels(runner->device().arch).at(GetParam());
    kernel = load(plan);
    if (kernel == nullptr && !HasFailure())
      GTEST_SKIP() << "the compiler refuses " << kernel_name(plan.specs.front()) << ", so nobody can launch it";
  }

  void check(const CaseShape& shape, std::initializer_list<std::int64_t> grids, int launches = 1) {
    const auto decode_case = runner->cached_case(kernel->spec(), shape);
    ASSERT_TRUE(decode_case.has_value()) << decode_case.error().message;
    for (const std::int64_t grid : grids) {
      const auto ok = runner->check(group, **decode_case, *kernel, runner->usable_grid(*kernel, grid), launches);
      ASSERT_TRUE(ok.has_value()) << ok.error().message;
    }
  }

  VerifyKernel plan;
  std::unique_ptr<LoadedKernel> kernel;
  VerifyGroup group;
};

std::string test_name(const testing::TestParamInfo<std::size_t>& parameter) {
  const auto kernels = representative_kernels(Arch{9, 0, true});
  std::string name = kernel_name(kernels.at(parameter.param).specs.front());
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

const auto kAll = testing::Range<std::size_t>(0, representative_kernels(Arch{9, 0, true}).size());

using SmallKernel = RepresentativeKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, SmallKernel, kAll, test_name);

TEST_P(SmallKernel, CrossesRequestsAndWritesEmptyOnes) {
  check({.kv_heads = 2,
         .context_lengths = {83, 0, 200},
         .context_capacity = 0,
         .padded = true,
         .data = DataKind::uniform},
        {1, 7, 200});
  expect_clean(group);
}

TEST_P(SmallKernel, MergesManyContributors) {
  check({.kv_heads = 1, .context_lengths = {1700}, .context_capacity = 0, .padded = false, .data = DataKind::peaked},
        {64}, 2);
  expect_clean(group);
}

using Kernel = RepresentativeKernel;
INSTANTIATE_TEST_SUITE_P(Kernels, Kernel, kAll, test_name);

TEST_P(Kernel, AgreesAtEveryTailLength) {
  for (int context = 1; context <= 80; ++context) {
    check({.kv_heads = 1,
           .context_lengths = {context},
           .context_capacity = 96,
           .padded = false,
           .data = DataKind::uniform},
          {2});
  }
  expect_clean(group);
}

TEST_P(Kernel, TakesRaggedBatchesAndClampsLengths) {
  check({.kv_heads = 2,
         .context_lengths = {0, 1, 300, -5, 4096, 17, 0, 70000, 64},
         .context_capacity = 4100,
         .padded = true,
         .data = DataKind::uniform},
        {1, 7, 131, 132, 200, 9999}, 2);
  expect_clean(group);
}

TEST_P(Kernel, AgreesAtExtremeLogits) {
  check({.kv_heads = 1,
         .context_lengths = {1, 64, 777},
         .context_capacity = 0,
         .padded = false,
         .data = DataKind::extreme},
        {7, 132});
  expect_clean(group);
}

TEST_P(Kernel, LosesNoTokenOfALongContext) {
  check({.kv_heads = 1, .context_lengths = {65536}, .context_capacity = 0, .padded = false, .data = DataKind::coverage},
        {131, 2000});
  expect_clean(group);
}

TEST_P(Kernel, ReplaysOneGraphWhileLengthsChange) {
  const auto ok = verify_graph_replays(*runner, group, *kernel);
  ASSERT_TRUE(ok.has_value()) << ok.error().message;
  expect_clean(group);
}

TEST_P(Kernel, RunsBackToBackOnOneWorkspace) {
  const auto ok = verify_back_to_back(*runner, group, *kernel);
  ASSERT_TRUE(ok.has_value()) << ok.error().message;
  expect_clean(group);
}

TEST_P(Kernel, WaitsForInputsThatTheKernelInFrontProducesLate) {
  if (!kernel->spec().pdl) GTEST_SKIP() << "only kernels that start early can start too early";
  const auto ok = verify_dependent_chain(*runner, group, *kernel);
  ASSERT_TRUE(ok.has_value()) << ok.error().message;
  expect_clean(group);
}

TEST_P(Kernel, RefusesAWaitingGridThatIsNotResidentAtOnce) {
  if (kernel->spec().fixup != FixUp::wait) GTEST_SKIP() << "only kernels that wait have this limit";
  const auto decode_case = runner->cached_case(
      kernel->spec(),
      {.kv_heads = 1, .context_lengths = {64}, .context_capacity = 0, .padded = false, .data = DataKind::uniform});
  ASSERT_TRUE(decode_case.has_value());
  const std::int64_t too_many = std::int64_t{kernel->resident_ctas_per_sm()} * runner->device().sm_count + 1;
  const auto report = (*decode_case)->check(*kernel, too_many, stream);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::launch_failed);
}

}  // namespace
}  // namespace leanattn
