#include "cli/console/stop.hpp"

#include <unistd.h>

#include <csignal>

#include "cli/console/console.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

void on_signal(int) {
  if (stop_requested.exchange(true)) _exit(kExitInterrupted);
}

}  // namespace

const std::atomic<bool>* stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  // System calls are restarted, so that neither SQLite nor the driver sees EINTR. Long work polls the flag.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return &stop_requested;
}

}  // namespace v1
}  // namespace leanattn
