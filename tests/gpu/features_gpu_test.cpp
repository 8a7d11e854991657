// features_gpu_test.cpp -- a cross-section of the kernels with features that `leanattn verify` runs agrees with the
// oracle.
#include <cctype>

#include "tests/gpu/gpu_fixture.hpp"
#include "tuner/verify/covering.hpp"
#include "tuner/verify/feature_plan.hpp"
#include "tuner/verify/planned_run.hpp"
#include "tuner/verify/random_plan.hpp"

namespace leanattn {
namespace {

class FeatureOnGpu : public GpuTest, public testing::WithParamInterface<std::size_t> {
 protected:
  Result<void> run(const std::vector<VerifyKernel>& kernels, const PlannedRun& planned, VerifyGroup& group) {
    for (const VerifyKernel& plan : kernels) {
      const auto kernel = runner->load(group, compile_choice(plan, nullptr));
      if (!kernel) return tl::unexpected(kernel.error());
      if (*kernel == nullptr) continue;
      for (const PlannedCase& planned_case : planned.cases((*kernel)->spec())) {
        const auto decode_case = runner->cached_case((*kernel)->spec(), planned_case.shape);
        if (!decode_case) return tl::unexpected(decode_case.error());
        for (const std::int64_t grid : planned_case.grids) {
          const auto ok =
              runner->check(group, **decode_case, **kernel, runner->usable_grid(**kernel, grid), planned_case.launches);
          if (!ok) return ok;
        }
      }
    }
    return {};
  }
};

std::string feature_test_name(const testing::TestParamInfo<std::size_t>& parameter) {
  std::string name = verify_features().at(parameter.param).name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Features, FeatureOnGpu, testing::Range<std::size_t>(0, verify_features().size()),
                         feature_test_name);

TEST_P(FeatureOnGpu, AgreesWithTheOracle) {
  auto kernels = feature_kernels(runner->device().arch);
  const std::string name = "feature: " + verify_features().at(GetParam()).name;
  std::erase_if(kernels, [&](const VerifyKernel& kernel) { return kernel.group != name; });
  const CrossSection section = cross_section(kernels);
  std::size_t number = 0;
  std::erase_if(kernels, [&](const VerifyKernel&) { return !section.chosen[number++]; });
  VerifyGroup group;
  const auto ok = run(kernels, {.name = {}, .cases = feature_cases}, group);
  ASSERT_TRUE(ok.has_value()) << ok.error().message;
  expect_clean(group);
}

using RandomFeatures = FeatureOnGpu;
INSTANTIATE_TEST_SUITE_P(Seeds, RandomFeatures, testing::Range<std::size_t>(1, 4));

TEST_P(RandomFeatures, AgreeWithTheOracle) {
  const std::uint64_t seed = GetParam();
  RecordProperty("seed", std::to_string(seed));
  VerifyGroup group;
  const auto ok = run(random_kernels(runner->device().arch, seed, 15),
                      {.name = {}, .cases = [&](const KernelSpec& spec) { return random_cases(spec, seed); }}, group);
  ASSERT_TRUE(ok.has_value()) << ok.error().message;
  expect_clean(group);
}

}  // namespace
}  // namespace leanattn
