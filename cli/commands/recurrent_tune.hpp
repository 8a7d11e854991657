// recurrent_tune.hpp -- what `leanattn recurrent tune` does and prints. Main thread. Internal to this folder.
#pragma once

#include "cli/console/console.hpp"
#include "tuner/search/recurrent_tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Tunes on the GPU of the request, which `device` describes, into the database, and prints the winners. With `missing`
/// only batches that have no winner measured with this driver, NVRTC and kernel. Returns the exit code.
int tune_recurrent_steps(const Console& console, RecurrentTuneRequest request, const DeviceFacts& device, bool missing);

}  // namespace v1
}  // namespace leanattn
