// prediction.hpp -- how long the kernels that a look-up considers are expected to take: by the cost model, corrected by
// what was measured at tuned shapes nearby. Internal to this folder. Plain data and pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/lookup/cost_model.hpp"
#include "runtime/lookup/shape_features.hpp"

namespace leanattn {
inline namespace v1 {

/// How far a winner's measured time at its shape was from its modelled time, and of which kind its grid was.
struct SeenShape {
  ShapeFeatures shape_features;
  GridKind kind = GridKind::whole;
  double log_ratio = 0;  ///< log(measured / modelled)
  double away = 0;       ///< how far the measured problem and kernel are from those in question, in octaves

  bool operator==(const SeenShape&) const = default;
};

/// A kernel that a look-up considers, and what is known of its costs.
struct EstimatedKernel {
  KernelSpec spec;
  int resident = 1;  ///< CTAs that one SM holds
  ModelParameters parameters;
  std::vector<SeenShape> seen;
  /// log(measured / modelled) that is expected where none of these is near. It counts for the expected time and not for
  /// the comparison of kernels, whose families are off by different amounts.
  double log_ratio = 0;
  double doubt = 0;  ///< a surcharge on its predictions beside that of corrections; logarithm

  bool operator==(const EstimatedKernel&) const = default;
};

/// What the tuned shapes say about the error of the model at an untuned shape. Logarithms.
struct Correction {
  double log_ratio = 0;  ///< mean over the tuned shapes, weighted by closeness and kind of grid; 0 far from all of them
  double unseen = 1;     ///< how much of it is open: 1 far from all of them, less near them
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
/// How long a configuration of such a kernel is expected to take.
struct Prediction {
  double us = 0;
  double doubtful_us = 0;  ///< with the correction's doubt: configurations are compared by this
};
/// The configuration has the kernel's spec, but may be another kind of launch: one that starts sooner or later.
Prediction predict(const EstimatedKernel& kernel, const DecodeStep& step, const Config& config);

/// The configuration of least doubtful_us over the kernels, which are of the step's problem, and their useful grids,
/// and over those of the grids `also` that a kernel can have. Of a group those kernels count that have
/// order_of_group(). nullopt when there is none. Takes some 100 ns for each kernel and grid.
std::optional<PredictedConfig> best_predicted(std::span<const EstimatedKernel> kernels, const DecodeStep& step,
                                              std::span<const std::int64_t> also = {});

}  // namespace v1
}  // namespace leanattn
