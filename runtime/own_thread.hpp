// own_thread.hpp -- threads that the library starts inside somebody else's process. Any thread.
#pragma once

#include <functional>
#include <thread>

namespace leanattn {
inline namespace v1 {

/// A thread that runs `body` and to which the process's signals are not delivered: their handlers were written for
/// threads that the process knows. Faults of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS,
/// SIGABRT) are, so that crash handlers see them. The caller's own mask is as before. Throws what std::thread throws.
std::thread start_own_thread(std::function<void()> body);

}  // namespace v1
}  // namespace leanattn
