// threads.cpp -- starts threads while signals are blocked, because a thread inherits the mask of its creator.
#include "runtime/threads.hpp"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace leanattn {
inline namespace v1 {
namespace {

/// Blocks signals on the calling thread for its lifetime. A thread that is started meanwhile has them blocked, too.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Error out_of_threads(const std::string& what, int reason) {
  return {ErrorCode::out_of_memory,
          what + " (" + std::generic_category().message(reason) + ")",
          "Raise the limit of processes and threads: that of the user (ulimit -u), or of the container (pids).",
          {}};
}

Result<std::thread> start_own_thread(std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return tl::unexpected(out_of_threads("there is no thread left", error.code().value()));
  }
}

bool ensure_own_thread(std::thread& thread, std::function<void()> body) {
  if (thread.joinable()) return true;
  auto started = start_own_thread(std::move(body));
  if (!started) return false;
  thread = *std::move(started);
  return true;
}

bool ThreadGroup::start(std::function<void()> body) {
  threads_.reserve(threads_.size() + 1);
  auto started = start_own_thread(std::move(body));
  if (!started) return false;
  threads_.push_back(*std::move(started));
  return true;
}

void ThreadGroup::start(std::size_t count, const std::function<void()>& body) {
  for (std::size_t i = 0; i < count && start(body); ++i) continue;
}

void ThreadGroup::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace v1
}  // namespace leanattn
