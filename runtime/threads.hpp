// threads.hpp -- how the library starts threads: none receives the signals of the process, and where the system has no
// thread to give, that is an answer and no exception. Any thread.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The error of `what` cannot be done because threads or processes have run out. `reason` is what errno says.
Error out_of_threads(const std::string& what, int reason);

/// Starts a thread that runs `body` and receives no signals of the process, because the program's handlers may not be
/// written for threads that it does not know. Faults of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
/// SIGSYS, SIGABRT) do reach it, so that crash handlers see them. The signal mask of the caller does not change.
/// Errors: out_of_memory, naming the limit, where the system has no thread to give; a later call may succeed.
Result<std::thread> start_own_thread(std::function<void()> body);
/// Makes `thread` such a thread unless it is one already. False where the system has no thread to give.
bool ensure_own_thread(std::thread& thread, std::function<void()> body);

/// Threads that are joined together. One thread makes, uses and destroys it. Who asks for several goes on with those
/// that there are; with none, it works on its own thread.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  ~ThreadGroup() { join(); }

  /// Starts a thread that runs `body`. False where the system has none to give.
  bool start(std::function<void()> body);
  /// Starts up to `count` threads that all run `body`.
  void start(std::size_t count, const std::function<void()>& body);
  bool empty() const { return threads_.empty(); }
  /// Waits until all have ended.
  void join();

 private:
  std::vector<std::thread> threads_;
};

}  // namespace v1
}  // namespace leanattn
