// portfolio_fit_test.cpp -- what portfolios learn from trials: whose times speak for a kernel, and at which shapes.
#include "tuner/model/portfolio_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/lookup/grids.hpp"
#include "runtime/lookup/specs.hpp"
#include "tuner/model/search_space.hpp"

namespace leanattn {
namespace {

class PortfolioFit : public ::testing::Test {
 protected:
  PortfolioFit() {
    own = base_spec(device.arch, problem);
    own.load = LoadPath::bulk, own.warps = 4, own.warp_tokens = 16, own.tile = 64, own.stages = 2, own.ctas_per_sm = 1;
    relative = own;
    relative.tile = 128;
    stranger = own;
    stranger.warps = 2;
  }

  /// Adds samples of all useful grids at one shape, or of those of one kind. Their times are the model's, times
  /// `factor`.
  void measure(const KernelSpec& spec, const Shape& shape, double factor, std::optional<GridKind> only = {}) {
    const ModelParameters parameters = default_parameters(device);
    for (const std::int64_t grid : useful_grids(device, problem, shape, spec, 2)) {
      const Config config{spec, grid};
      const ModelFeatures features = model_features(parameters, device, problem, shape, config, 2);
      if (only && kind_of(features) != *only) continue;
      samples.push_back({problem, shape, config, 2, factor * predict_us(parameters, features)});
    }
  }

  /// The kernel in a portfolio that is fitted to the samples; nullptr: it was not chosen.
  const PortfolioKernel* fitted(const KernelSpec& spec) {
    portfolio = fit_portfolio(device, samples, {});
    const auto found = std::find_if(portfolio.kernels.begin(), portfolio.kernels.end(),
                                    [&](const PortfolioKernel& kernel) { return kernel.spec == spec; });
    return found == portfolio.kernels.end() ? nullptr : &*found;
  }

  /// The kernel's correction at this shape and kind of grid; nullptr: there is none.
  const SeenShape* seen_at(const PortfolioKernel& kernel, const Shape& shape, GridKind kind) const {
    const ShapeFeatures here = shape_features_of(problem, shape, base_spec(device.arch, problem));
    const auto found = std::find_if(kernel.seen.begin(), kernel.seen.end(), [&](const SeenShape& at) {
      return at.kind == kind && distance(at.shape_features, here) < 0.01;
    });
    return found == kernel.seen.end() ? nullptr : &*found;
  }

  const DeviceFacts device = *facts_for_arch({9, 0, true}, 132);
  const DecodeProblem problem;
  const Shape first{.batch = 1, .longest_context = 8192}, second{.batch = 4, .longest_context = 8192};
  KernelSpec own, relative, stranger;
  std::vector<ModelSample> samples;
  Portfolio portfolio;
};

TEST_F(PortfolioFit, KernelsThatStreamAlikeSpeakWhereOneWasNotMeasured) {
  measure(own, first, 0.9);
  measure(own, second, 0.9, GridKind::crossing);
  measure(relative, first, 1.2);
  measure(relative, second, 1.2);
  measure(stranger, first, 1.5);
  measure(stranger, second, 1.5);
  const PortfolioKernel* kernel = fitted(own);
  ASSERT_NE(kernel, nullptr);
  const SeenShape* measured = seen_at(*kernel, second, GridKind::crossing);
  const SeenShape* borrowed = seen_at(*kernel, second, GridKind::even);
  ASSERT_NE(measured, nullptr);
  ASSERT_NE(borrowed, nullptr) << "the relative's";
  EXPECT_GT(borrowed->log_ratio, measured->log_ratio + 0.1) << "the relative is slower";
  EXPECT_LT(borrowed->log_ratio, measured->log_ratio + 0.45) << "and the stranger slower still";
}

TEST_F(PortfolioFit, StrangersDoNotSpeakForAKernel) {
  measure(own, first, 0.9);
  measure(stranger, first, 1.5);
  measure(stranger, second, 1.5);
  const PortfolioKernel* kernel = fitted(own);
  ASSERT_NE(kernel, nullptr);
  for (const GridKind kind : kGridKinds) EXPECT_EQ(seen_at(*kernel, second, kind), nullptr) << to_string(kind);
}

}  // namespace
}  // namespace leanattn
