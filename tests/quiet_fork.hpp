// quiet_fork.hpp -- fork() for tests of processes with threads.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace leanattn {

/// How many threads of this process are running, the caller included (Linux: /proc/self/task/*/stat).
inline int running_threads() {
  int running = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    // The state follows the name, which is in brackets and may contain any character.
    const auto name_end = text.rfind(')');
    if (name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'R') ++running;
  }
  return running;
}

/// fork() once all other threads sleep, or after 2 s. An allocator of the address sanitizer whose lock another thread
/// holds at that moment is locked for ever in the child, because clang 14's does not prepare itself for a fork.
inline pid_t quiet_fork() {
  for (int tries = 0; tries < 2000 && running_threads() > 1; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ::fork();
}

}  // namespace leanattn
