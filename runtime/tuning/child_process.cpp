// child_process.cpp -- posix_spawn, waitpid and pipes.
#include "runtime/tuning/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cache/files.hpp"
#include "runtime/threads.hpp"
extern char** environ;

namespace leanattn {
inline namespace v1 {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kFirstOfOurs = 10;             // descriptors below are those that children are given
constexpr milliseconds kReapWithin{60'000};  // the GPU's driver may hold a killed process for a while
constexpr milliseconds kReapAgain{2};
constexpr int kMostReads = 64;  // at a time, so that a child that never stops writing does not keep its reader

struct SpawnPlan {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::vector<char*> pointers_to(std::span<const std::string> texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::string ending_of(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("exited with code {}", WEXITSTATUS(status));
  const char* words = ::strsignal(WTERMSIG(status));
  return fmt::format("killed by signal {} ({})", WTERMSIG(status), words != nullptr ? words : "unknown");
}

}  // namespace

bool move_up(FileDescriptor& descriptor) {
  FileDescriptor high(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kFirstOfOurs));
  if (!high) return false;
  descriptor = std::move(high);
  return true;
}

Result<Pipe> open_pipe() {
  int ends[2];
  const auto no_pipe = [] {
    return tl::unexpected(
        detail::cannot_open({ErrorCode::internal, fmt::format("no pipe: {}", std::strerror(errno)), {}, {}}, errno));
  };
  if (::pipe2(ends, O_CLOEXEC) != 0) return no_pipe();
  Pipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  if (!move_up(pipe.read) || !move_up(pipe.write) || ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK) != 0)
    return no_pipe();
  return pipe;
}

Result<pid_t> spawn_child(std::span<const std::string> command, std::span<const ChildDescriptor> descriptors,
                          std::span<const std::string> environment) {
  if (command.empty()) return fail(ErrorCode::internal, "no program to start");
  SpawnPlan plan;
  ::posix_spawn_file_actions_addopen(&plan.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const ChildDescriptor& given : descriptors)
    ::posix_spawn_file_actions_adddup2(&plan.actions, given.ours, given.theirs);
#if defined(__GLIBC_PREREQ) && __GLIBC_PREREQ(2, 34)
  // Descriptors that the program has left open across exec are none of the child's business.
  int first_unused = STDERR_FILENO + 1;
  for (const ChildDescriptor& given : descriptors) first_unused = std::max(first_unused, given.theirs + 1);
  ::posix_spawn_file_actions_addclosefrom_np(&plan.actions, first_unused);
#endif
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT}) sigaddset(&defaults, signal);
  ::posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&plan.attributes, 0);
  ::posix_spawnattr_setsigmask(&plan.attributes, &none);
  ::posix_spawnattr_setsigdefault(&plan.attributes, &defaults);
  const std::vector<char*> arguments = pointers_to(command), variables = pointers_to(environment);
  pid_t pid = -1;
  const int status = ::posix_spawn(&pid, command.front().c_str(), &plan.actions, &plan.attributes, arguments.data(),
                                   environment.empty() ? environ : variables.data());
  if (status == EAGAIN) return tl::unexpected(out_of_threads("cannot start " + command.front(), status));
  if (status != 0)
    return fail(ErrorCode::internal, fmt::format("cannot start {}: {}", command.front(), std::strerror(status)));
  return pid;
}

std::string reap_child(pid_t pid, milliseconds patience) {
  const auto insist = steady_clock::now() + patience;
  const auto give_up = insist + kReapWithin;
  // Until it is reaped, no other process gets its number, so that its group can be killed safely.
  for (;;) {
    siginfo_t ended{};
    const int waited = ::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 && errno != EINTR) return "is gone";  // the process ignores SIGCHLD, or has waited for all children
    if (waited == 0 && ended.si_pid == pid) break;
    const auto now = steady_clock::now();
    if (now >= give_up) return "cannot be killed: the driver does not let it go";
    if (now >= insist) ::kill(-pid, SIGKILL);
    ::poll(nullptr, 0, static_cast<int>(kReapAgain.count()));
  }
  ::kill(-pid, SIGKILL);
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(pid, &status, 0)) < 0 && errno == EINTR) continue;
  return reaped == pid ? ending_of(status) : "is gone";
}

bool read_available(int descriptor, std::string& text) {
  char buffer[4096];
  for (int read = 0; read < kMostReads; ++read) {
    const ssize_t got = ::read(descriptor, buffer, sizeof(buffer));
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
  }
  return true;
}

}  // namespace v1
}  // namespace leanattn
