// dependent_launch.hpp -- what answers for a dependent launch, given what answers for an ordinary one. Internal to this
// folder. Pure functions; any thread.
#pragma once

#include <span>

#include "runtime/lookup/prediction.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// `best`, a dependent launch with a prediction, or the configuration `ordinary`, which answers for ordinary launches
/// of the same shape. As a dependent launch, `ordinary` is preferred to one that is hardly faster by the model: of two
/// configurations that the model takes for equally fast, the one that is good without dependent launch is so more
/// often. As an ordinary launch, it is preferred where it is expected to be clearly faster; the spec's pdl is then
/// false. `kernels` are those of estimated_kernels() (estimate.hpp) for dependent launches of the step's
/// problem.
PredictedConfig or_ordinary(const PredictedConfig& best, const Config& ordinary, const DecodeStep& step,
                            std::span<const EstimatedKernel> kernels);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
