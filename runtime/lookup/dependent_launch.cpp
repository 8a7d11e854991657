// dependent_launch.cpp -- compares a dependent launch with the ordinary answer's configuration, launched in either way.
#include "runtime/lookup/dependent_launch.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/lookup/residency.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

// So much longer a dependent launch of the ordinary answer's configuration may take by the model, and so much shorter
// an ordinary launch has to be. Chosen by what dependent and ordinary launches of 118 shapes took on an H200.
constexpr double kHardly = 0.02, kClearly = 0.01;

/// What is known of the kernel with this spec, if only the model.
EstimatedKernel kernel_for(const KernelSpec& spec, const DeviceFacts& device,
                           std::span<const EstimatedKernel> kernels) {
  const auto same =
      std::find_if(kernels.begin(), kernels.end(), [&](const EstimatedKernel& kernel) { return kernel.spec == spec; });
  if (same != kernels.end()) return *same;
  return {.spec = spec,
          .resident = guess_resident(device, spec),
          .parameters = default_parameters(device),
          .seen = {},
          .log_ratio = kernels.empty() ? 0 : kernels.front().log_ratio,  // the device's
          .doubt = 0};
}

}  // namespace

PredictedConfig or_ordinary(const PredictedConfig& best, const Config& ordinary, const DecodeStep& step,
                            std::span<const EstimatedKernel> kernels) {
  const auto spec = with_tunables_of(step.base, ordinary.spec);
  if (!spec) return best;
  // Both kinds of launches have its costs and corrections, so that they differ in nothing else.
  const EstimatedKernel kernel = kernel_for(*spec, step.device, kernels);
  PredictedConfig chosen = best;
  const auto consider = [&](const Config& config, double most_us) {
    const Prediction predicted = predict(kernel, step, config);
    // A model may predict an infinite time, or none.
    if (std::isfinite(predicted.us) && predicted.us > 0 && predicted.us <= most_us)
      chosen = {.config = config, .us = predicted.us, .doubtful_us = predicted.doubtful_us};
  };
  Config dependent = ordinary;
  dependent.spec = *spec;
  consider(dependent, (1 + kHardly) * best.us);
  consider(ordinary, (1 - kClearly) * std::min(best.us, chosen.us));
  return chosen;
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
