// process_mark.cpp -- counts forks, by a handler that runs in every child.
#include "runtime/cuda/process_mark.hpp"

#include <pthread.h>

#include <atomic>

namespace leanattn {
inline namespace v1 {
namespace {
std::atomic<std::uint64_t> forks{0};  ///< from the first process with a mark to this one
}

ProcessMark::ProcessMark() {
  // glibc removes the handler when this library is unloaded.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);  // fails only without memory, and then forks are not noticed
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
