// recurrent_tune.hpp -- what `leanattn recurrent tune` does and prints. Main thread. Internal to this folder.
#pragma once

#include "cli/console/console.hpp"
#include "tuner/search/recurrent_tune.hpp"

namespace leanattn {
inline namespace v1 {

/// Tunes into the database, and prints the winners. Returns the exit code.
int tune_recurrent_steps(const Console& console, const RecurrentTuneRequest& request);

}  // namespace v1
}  // namespace leanattn
