// portfolio.hpp -- Portfolio: the kernels that are worth considering for a problem on a GPU, with the costs that were
// fitted to their trials. Look-ups of untuned shapes choose among them. The tuner makes portfolios
// (tuner/model/portfolio_fit.hpp), and tuning.db keeps them as JSON. Plain data and pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/shape_features.hpp"

namespace leanattn {
inline namespace v1 {

/// How far a kernel's measured time at a tuned shape was from its modelled time, for the best grids of one kind.
struct SeenShape {
  ShapeFeatures shape_features;
  GridKind kind = GridKind::whole;
  double log_ratio = 0;  ///< log(measured / modelled)
  double away = 0;       ///< how far the measured problem and kernel are from those in question, in octaves; not stored

  bool operator==(const SeenShape&) const = default;
};

struct PortfolioKernel {
  KernelSpec spec;
  int resident = 1;  ///< CTAs that one SM holds
  ModelParameters parameters;
  std::vector<SeenShape> seen;
  double doubt = 0;  ///< a surcharge on its predictions beside that of corrections; logarithm; not stored

  bool operator==(const PortfolioKernel&) const = default;
};

struct Portfolio {
  std::vector<PortfolioKernel> kernels;
  int samples = 0, shapes = 0;  ///< how many of each it was fitted to
  /// Of shapes that were left out of the fit for this purpose: the median relative error of the predicted time, and the
  /// regret, which is the time of the model's choice over the best measured time, minus 1. 0 with too few shapes to
  /// tell.
  double held_out_error = 0, held_out_median_regret = 0, held_out_largest_regret = 0;

  bool operator==(const Portfolio&) const = default;
};

/// A portfolio of fewer tuned shapes says too little about others. Look-ups then carry over the nearest winner's grid.
inline constexpr int kFewestPortfolioShapes = 3;

/// JSON on one line. The reader ignores unknown keys. Errors: invalid_argument (a key that is missing or ill-typed, a
/// number that is not finite, a spec without a kernel, more CTAs than an SM holds).
std::string to_json(const Portfolio& portfolio);
Result<Portfolio> portfolio_from_json(std::string_view json);

/// What the tuned shapes say about the error of the model at an untuned shape. Logarithms.
struct Correction {
  double log_ratio = 0;  ///< mean over the tuned shapes, weighted by closeness and kind of grid; 0 far from all of them
  /// A surcharge for comparing predictions, because the least of many predictions is more often too low than right. It
  /// grows with the distance of the tuned shapes and with their disagreement (a share of their standard deviation).
  double doubt = 0;
};
Correction correction_at(std::span<const SeenShape> seen, const ShapeFeatures& here, GridKind kind);

/// A configuration and the microseconds that it is expected to take.
struct PredictedConfig {
  Config config;
  double us = 0;
  double doubtful_us = 0;  ///< with doubt: configurations are compared by this
};
/// How long a configuration of one of the portfolio's kernels is expected to take.
struct Prediction {
  double us = 0;
  double doubtful_us = 0;  ///< with the correction's doubt: configurations are compared by this
};
/// The configuration has the kernel's spec, but may be another kind of launch: one that starts sooner or later.
Prediction predict(const PortfolioKernel& kernel, const DeviceFacts& device, const DecodeProblem& problem,
                   const Shape& shape, const Config& config);

/// The configuration of least doubtful_us over the kernels and their useful grids, and over those of the grids
/// `also` that a kernel can have. The kernels are made to fit `problem`, which may have other heads or features than
/// the problem in which they were measured, or another kind of launch; of a group those count that have
/// order_of_group(). nullopt when no kernel fits. Takes some 100 ns for each kernel and grid.
std::optional<PredictedConfig> best_predicted(std::span<const PortfolioKernel> kernels, const DeviceFacts& device,
                                              const DecodeProblem& problem, const Shape& shape,
                                              std::span<const std::int64_t> also = {});

}  // namespace v1
}  // namespace leanattn
