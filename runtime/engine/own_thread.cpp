// own_thread.cpp -- starts a thread while signals are blocked, because a thread inherits the mask of its creator.
#include "runtime/engine/own_thread.hpp"

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

std::thread start_own_thread(std::function<void()> body) {
  const SignalsBlocked blocked;
  return std::thread(std::move(body));
}

bool ensure_own_thread(std::thread& thread, std::function<void()> body) {
  if (thread.joinable()) return true;
  try {
    thread = start_own_thread(std::move(body));
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

}  // namespace v1
}  // namespace leanattn
