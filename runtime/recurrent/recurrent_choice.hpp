// recurrent_choice.hpp -- which tunables a step of operation `recurrent` is launched with. Pure functions; any thread.
#pragma once

#include "generator/recurrent/recurrent_spec.hpp"
#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

/// The spec for steps of about `batch` requests on a GPU, from the number of its SMs: CTAs are small enough to fill
/// them evenly, and beyond that tunables are the usual ones. `problem` is valid.
RecurrentSpec default_spec(const DeviceFacts& device, const RecurrentProblem& problem, int batch);

}  // namespace v1
}  // namespace leanattn
