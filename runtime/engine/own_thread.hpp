// own_thread.hpp -- threads that the library starts in the process of a program. Any thread.
#pragma once

#include <functional>
#include <thread>

namespace leanattn {
inline namespace v1 {

/// Starts a thread that runs `body` and receives no signals of the process, because the program's handlers may not be
/// written for threads that it does not know. Faults of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP,
/// SIGSYS, SIGABRT) do reach it, so that crash handlers see them. The signal mask of the caller does not change. Throws
/// what std::thread throws.
std::thread start_own_thread(std::function<void()> body);
/// Makes `thread` such a thread unless it is one already. False where the system has no thread to give; a later call
/// may succeed.
bool ensure_own_thread(std::thread& thread, std::function<void()> body);

}  // namespace v1
}  // namespace leanattn
