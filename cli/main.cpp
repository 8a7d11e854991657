#include <unistd.h>

#include <csignal>
#include <new>
#include <string_view>

#include "cli/commands/commands.hpp"

int main(int argc, char** argv) {
  // Without this, a write beyond the limit of a file's size (ulimit -f) ends the process by a signal; with it, the
  // write fails like one to a full disk, and the command says so.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return leanattn::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    // Nothing here may need memory.
    constexpr std::string_view kMessage =
        "leanattn: error: there is not enough memory\n"
        "  Raise the limit (ulimit -v, or the container's), or end other programs.\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
    return leanattn::kExitFailure;
  }
}
