// recurrent_choice.hpp -- which tunables a step of operation `recurrent` is launched with. Pure functions; any thread.
#pragma once

#include <vector>

#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

/// The search space, what is expected to be fastest for steps of about `batch` requests first: CTAs are small enough to
/// fill the SMs of the GPU evenly, and beyond that tunables are near the usual ones. `problem` is valid.
std::vector<RecurrentTunables> ranked_tunables(const DeviceFacts& device, const RecurrentProblem& problem, int batch);

/// The spec with the first of these.
RecurrentSpec default_spec(const DeviceFacts& device, const RecurrentProblem& problem, int batch);

}  // namespace v1
}  // namespace leanattn
