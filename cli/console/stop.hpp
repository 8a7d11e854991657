// stop.hpp -- turns Ctrl-C into a flag that long work polls. Called once, from the main thread.
#pragma once

#include <atomic>

namespace leanattn {
inline namespace v1 {

/// From this call on, the first SIGINT or SIGTERM sets the returned flag. A second one ends the process at once with
/// code 130, unless it comes within 0.3 seconds: `timeout` sends its signal to the process and to its group.
const std::atomic<bool>* stop_on_signals();

}  // namespace v1
}  // namespace leanattn
