#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <string_view>

#include "cli/commands/commands.hpp"

namespace {

/// Puts something that can be neither read nor written in the place of each standard stream that the caller has closed.
/// Otherwise a file that is opened later would be that stream, and get the messages.
void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is this one, because those below it are open.
    if (::fcntl(stream, F_GETFD) == -1) [[maybe_unused]]
      const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Without this, a write beyond the limit of a file's size (ulimit -f) ends the process by a signal; with it, the
  // write fails like one to a full disk, and the command says so.
  std::signal(SIGXFSZ, SIG_IGN);
  occupy_closed_streams();
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
