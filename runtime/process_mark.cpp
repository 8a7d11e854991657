#include "runtime/process_mark.hpp"

#include <pthread.h>

#include <atomic>

namespace leanattn {
inline namespace v1 {
namespace {
std::atomic<std::uint64_t> forks{0};  ///< that lie between the first process with a mark and this one
}

ProcessMark::ProcessMark() {
  // glibc drops the handler when the library that registered it is unloaded.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);  // fails only without memory; then forks go unnoticed
  forks_ = forks_so_far();
}

Error ProcessMark::forked() {
  return {ErrorCode::context_lost,
          "this process was forked from one that had started CUDA, which does not come along",
          "Fork before the first use of CUDA, or start the process anew (exec; in Python the start method 'spawn').",
          {}};
}

std::uint64_t ProcessMark::forks_so_far() noexcept { return forks.load(std::memory_order_relaxed); }

}  // namespace v1
}  // namespace leanattn
