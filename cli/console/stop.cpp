#include "cli/console/stop.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>

#include "cli/console/console.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

std::atomic<bool> stop_requested{false};
std::atomic<std::int64_t> first_ns{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

/// `timeout` and terminals may send a signal twice, to the process and to its group. Nobody means the second one.
constexpr std::int64_t kSameMomentNs = 300'000'000;

std::int64_t now_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // which a signal handler may call
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int) {
  const std::int64_t now = now_ns();
  std::int64_t first = 0;
  if (first_ns.compare_exchange_strong(first, now)) {
    stop_requested = true;
  } else if (now - first >= kSameMomentNs) {
    _exit(kExitInterrupted);
  }
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
