// portfolio.hpp -- Portfolio: the kernels that are worth considering for a problem on a GPU, with the costs that were
// fitted to their trials. Answers look-ups of shapes that nobody tuned. Made by tuner/portfolio_fit.hpp, kept as JSON
// in tuning.db. Plain data and pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cost_model.hpp"
#include "runtime/place.hpp"

namespace leanattn {
inline namespace v1 {

/// How far a kernel's time at a tuned shape was from its model: log(measured / modelled) of the best grids of one
/// kind there.
struct SeenShape {
  detail::Place place;
  GridKind kind = GridKind::whole;
  double log_ratio = 0;

  bool operator==(const SeenShape&) const = default;
};

struct PortfolioKernel {
  KernelSpec spec;
  int resident = 1;  ///< CTAs that one SM holds
  ModelParameters parameters;
  std::vector<SeenShape> seen;

  bool operator==(const PortfolioKernel&) const = default;
};

struct Portfolio {
  std::vector<PortfolioKernel> kernels;
  int samples = 0, shapes = 0;  ///< that it was fitted to
  /// Of shapes that were left out of the fit for this purpose: median relative error of the predicted time, and what
  /// the model's choice took over the best that was measured (minus 1). 0 with too few shapes to tell.
  double held_out_error = 0, held_out_median_regret = 0, held_out_largest_regret = 0;

  bool operator==(const Portfolio&) const = default;
};

/// Fewer tuned shapes than this say little about others: look-ups then carry the nearest winner's grid over.
inline constexpr int kFewestPortfolioShapes = 3;

/// One line. from_json ignores unknown keys. Errors: invalid_argument (a key missing or ill-typed, a number that is
/// none, a spec that has no kernel, more CTAs than an SM holds).
std::string to_json(const Portfolio& portfolio);
Result<Portfolio> portfolio_from_json(std::string_view json);

/// What seen shapes say of a place that nobody measured, as logarithms.
struct Correction {
  double log_ratio = 0;  ///< of near places, weighted by distance and kind of grid; 0 far from all
  /// To be added before predictions are compared: the more, the farther all seen places are and the less they agree
  /// (a share of their standard deviation). The least of many predictions is sooner one that is too low than one that
  /// is right.
  double doubt = 0;
};
Correction correction_at(std::span<const SeenShape> seen, const detail::Place& place, GridKind kind);

/// A configuration and the microseconds that it is expected to take.
struct PredictedConfig {
  Config config;
  double us = 0;
};
/// What a configuration of one of the portfolio's kernels is expected to take, and what it is compared by.
struct Prediction {
  double us = 0;
  double doubtful_us = 0;  ///< with the correction's doubt
};
Prediction predict(const PortfolioKernel& kernel, const DeviceFacts& device, const DecodeProblem& problem,
                   const Shape& shape, const Config& config);

/// The best predicted configuration, doubts counted, over the portfolio's kernels, made to fit `problem` (which may
/// have other KV heads or features), and their useful grids. nullopt when no kernel fits. Some 100 ns a kernel and
/// grid.
std::optional<PredictedConfig> best_predicted(const Portfolio& portfolio, const DeviceFacts& device,
                                              const DecodeProblem& problem, const Shape& shape);

}  // namespace v1
}  // namespace leanattn
