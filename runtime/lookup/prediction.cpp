// prediction.cpp -- predictions from the model and the tuned shapes nearby.
#include "runtime/lookup/prediction.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "generator/families/family.hpp"
#include "generator/generator.hpp"
#include "generator/kernel_layout.hpp"
#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/grids.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// How much a time with one kind of grid says about another kind, as a share of what it says about its own.
double affinity(GridKind a, GridKind b) {
  if (a == b) return 1;
  return leaves_idle(a) == leaves_idle(b) ? 0.1 : 0.05;
}

/// correction_at() for every kind of grid at once, because they share the distances, which take most of the time.
std::array<Correction, std::size(kGridKinds)> corrections_at(std::span<const SeenShape> seen,
                                                             const ShapeFeatures& here) {
  constexpr double kReach = 1.0;        // octaves
  constexpr double kModelWeight = 0.3;  // of the uncorrected model: so many tuned shapes at this very point
  constexpr double kDoubt = 0.04;       // where nothing but the model speaks
  constexpr double kDiscord = 0.75;     // the share of the tuned shapes' standard deviation that is doubt
  struct Sums {
    double weights = kModelWeight, ratios = 0, squares = 0;
  };
  std::array<Sums, std::size(kGridKinds)> sums;
  for (const SeenShape& at : seen) {
    const double octaves = (distance(at.shape_features, here) + at.away) / kReach;
    const double nearness = std::exp(-octaves * octaves / 2);
    for (const GridKind kind : kGridKinds) {
      const double weight = affinity(at.kind, kind) * nearness;
      Sums& of_kind = sums[static_cast<std::size_t>(kind)];
      of_kind.weights += weight;
      of_kind.ratios += weight * at.log_ratio;
      of_kind.squares += weight * at.log_ratio * at.log_ratio;
    }
  }
  std::array<Correction, std::size(kGridKinds)> corrections;
  std::transform(sums.begin(), sums.end(), corrections.begin(), [](const Sums& of_kind) {
    const double mean = of_kind.ratios / of_kind.weights;
    const double deviation = std::sqrt(std::max(of_kind.squares / of_kind.weights - mean * mean, 0.0));
    const double unseen = kModelWeight / of_kind.weights;
    return Correction{.log_ratio = mean, .unseen = unseen, .doubt = kDoubt * unseen + kDiscord * deviation};
  });
  return corrections;
}

/// What the model says of a kernel, corrected for one shape by what was measured nearby.
class Corrected {
 public:
  Corrected(const EstimatedKernel& kernel, const ShapeFeatures& here) {
    const auto corrections = corrections_at(kernel.seen, here);
    std::transform(corrections.begin(), corrections.end(), of_kind_.begin(), [&](const Correction& correction) {
      return Factors{.ratio = std::exp(correction.log_ratio),
                     .of_device = std::exp(correction.unseen * kernel.log_ratio),
                     .doubt = std::exp(correction.doubt + kernel.doubt)};
    });
  }

  Prediction predict(const ModelledTime& modelled) const {
    const auto& [ratio, of_device, doubt] = of_kind_[static_cast<std::size_t>(modelled.kind)];
    const double us = ratio * modelled.us();
    return {.us = of_device * us, .doubtful_us = doubt * us};
  }

 private:
  struct Factors {
    double ratio = 1, of_device = 1, doubt = 1;
  };
  std::array<Factors, std::size(kGridKinds)> of_kind_;
};

}  // namespace

Correction correction_at(std::span<const SeenShape> seen, const ShapeFeatures& here, GridKind kind) {
  return corrections_at(seen, here)[static_cast<std::size_t>(kind)];
}

Prediction predict(const EstimatedKernel& kernel, const DecodeStep& step, const Config& config) {
  return Corrected(kernel, shape_features_of(step))
      .predict(modelled_time(kernel.parameters, step, config, kernel.resident));
}

std::optional<PredictedConfig> best_predicted(std::span<const EstimatedKernel> kernels, const DecodeStep& step,
                                              std::span<const std::int64_t> also) {
  const ShapeFeatures here = shape_features_of(step);
  const std::optional<int> order = order_of_group(step.device, step.problem);
  std::optional<PredictedConfig> best;
  double least = std::numeric_limits<double>::infinity();  // of doubtful_us
  for (const EstimatedKernel& kernel : kernels) {
    const KernelSpec& spec = kernel.spec;
    if (order && family_of(spec).exchange_order != *order) continue;
    // A ragged batch gets segment costs and all the CTAs that are resident at once, and these wait for nobody.
    if (step.ragged() && spec.fixup == FixUp::wait && !layout_of(spec).has_large_partials) continue;
    const int resident = waits(spec) ? std::min(kernel.resident, spec.ctas_per_sm) : kernel.resident;
    const Corrected corrected(kernel, here);
    const LaunchModel launch(kernel.parameters, step, spec, kernel.resident);
    const auto consider = [&](std::int64_t grid) {
      const Prediction predicted = corrected.predict(launch.with_grid(grid));
      // A model that predicts an infinite time, or none, is of no use for this shape.
      if (!std::isfinite(predicted.us) || predicted.us <= 0) return;
      if (predicted.doubtful_us >= least) return;
      least = predicted.doubtful_us;
      const Config config{.spec = spec,
                          .grid = grid,
                          .segment_cost = segment_cost(step, spec),
                          .l2_promotion = l2_promotion(step, spec)};
      best = PredictedConfig{config, predicted.us, predicted.doubtful_us};
    };
    if (step.ragged() && !launch.has_alike_outputs()) {
      consider(ragged_grid(step, spec));
      continue;
    }
    const std::vector<std::int64_t> grids = useful_grids(step, spec, resident);
    for (const std::int64_t grid : grids) consider(grid);
    for (const std::int64_t grid : also) {
      if (grid <= grids.back()) consider(grid);
    }
  }
  return best;
}

}  // namespace v1
}  // namespace leanattn
