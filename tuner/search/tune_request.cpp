#include "tuner/search/tune_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/lookup/default_config.hpp"
#include "runtime/lookup/specs.hpp"

namespace leanattn {
inline namespace v1 {

Result<void> validate(const TuneRequest& request) {
  if (auto ok = validate(request.problem); !ok) return ok;
  const int ranks = request.problem.features.context_parallel;
  if (in_group(request.problem.features) && request.rank_devices.size() != static_cast<std::size_t>(ranks))
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} GPUs for a group of {} ranks", request.rank_devices.size(), ranks),
                "Name a GPU for each rank, such as --device 0,1, or one that stands in for all of them.");
  if (request.shapes.empty())
    return fail(ErrorCode::invalid_argument, "no shapes to tune for",
                "Give at least one batch size and context length.");
  for (const Shape& shape : request.shapes) {
    if (auto ok = validate(request.problem, shape); !ok) return ok;
  }
  if (!request.requests.context_lengths.empty() &&
      (request.shapes.size() != 1 || in_group(request.problem.features) ||
       request.requests.context_lengths.size() != static_cast<std::size_t>(request.shapes.front().batch)))
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} context lengths for {} shapes{}", request.requests.context_lengths.size(),
                            request.shapes.size(), in_group(request.problem.features) ? " of a group" : ""),
                "Give one for each request of one shape. In a group, give a batch and a context of one rank.");
  if (!request.weights.empty() && request.weights.size() != request.shapes.size()) {
    return fail(ErrorCode::invalid_argument,
                fmt::format("{} weights for {} shapes", request.weights.size(), request.shapes.size()),
                "Give one a shape, or none.");
  }
  for (const double weight : request.weights) {
    if (!std::isfinite(weight) || weight <= 0) {
      return fail(ErrorCode::invalid_argument, fmt::format("a weight of {}", weight), "Give positive numbers.");
    }
  }
  if (request.budget && request.budget->count() <= 0) {
    return fail(ErrorCode::invalid_argument, fmt::format("a budget of {} ms", request.budget->count()),
                "Give a positive time, or none at all.");
  }
  return {};
}

std::vector<DecodeStep> steps_of(const TuneRequest& request, const DeviceFacts& device) {
  std::vector<DecodeStep> steps;
  for (const Shape& shape : request.shapes) steps.emplace_back(device, request.problem, shape);
  return steps;
}

int ranks_on_a_gpu(const TuneRequest& request) {
  std::ptrdiff_t most = 1;
  for (const int device : request.rank_devices)
    most = std::max(most, std::count(request.rank_devices.begin(), request.rank_devices.end(), device));
  return static_cast<int>(most);
}

Result<void> require_launches(const DeviceFacts& device, const DecodeProblem& problem) {
  if (problem.pdl && !has_dependent_launch(device.arch))
    return fail(ErrorCode::unsupported,
                fmt::format("programmatic dependent launch needs sm_90 or newer, this is {}", to_string(device.arch)),
                "Leave --pdl out: here a problem with it launches as one without.");
  return validate_on(device, problem);
}

}  // namespace v1
}  // namespace leanattn
