#include "tuner/worker/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

extern char** environ;

namespace leanattn {
inline namespace v1 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostWords = 2048;     // bytes of its standard streams that are kept
constexpr milliseconds kLookAround{100};     // how often `cancel` is looked at while waiting
constexpr milliseconds kReapWithin{60'000};  // the GPU's driver may hold a killed process for a while
constexpr milliseconds kReapAgain{2};
constexpr int kFirstDescriptor = 10;  // ours are not among those that the child is given

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

/// Moves a descriptor to a number above kWorkerDescriptor. It is closed on exec.
int moved(int descriptor) {
  const int high = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstDescriptor);
  ::close(descriptor);
  return high;
}

struct Channels {
  int ours = -1, theirs = -1;   // of the socket
  int words = -1, speaks = -1;  // of the pipe: read and write end
  ~Channels() {
    for (int* descriptor : {&ours, &theirs, &words, &speaks}) close_if_open(*descriptor);
  }
  bool open() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
    ours = moved(pair[0]), theirs = moved(pair[1]);
    if (::pipe2(pair, O_CLOEXEC) != 0) return false;
    words = moved(pair[0]), speaks = moved(pair[1]);
    return ours >= 0 && theirs >= 0 && words >= 0 && speaks >= 0 && ::fcntl(ours, F_SETFL, O_NONBLOCK) == 0 &&
           ::fcntl(words, F_SETFL, O_NONBLOCK) == 0;
  }
};

struct SpawnPlan {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

std::string signal_text(int signal) {
  const char* words = ::strsignal(signal);
  return fmt::format("signal {} ({})", signal, words != nullptr ? words : "unknown");
}

}  // namespace

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::vector<std::string>& command) {
  Channels channels;
  if (command.empty() || !channels.open())
    return fail(ErrorCode::internal, fmt::format("no channel to a worker process: {}", std::strerror(errno)));
  // posix_spawn instead of fork: the caller has threads and may have a CUDA context, and neither survives a fork.
  SpawnPlan plan;
  ::posix_spawn_file_actions_addopen(&plan.actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&plan.actions, channels.speaks, 1);
  ::posix_spawn_file_actions_adddup2(&plan.actions, channels.speaks, 2);
  ::posix_spawn_file_actions_adddup2(&plan.actions, channels.theirs, kWorkerDescriptor);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT}) sigaddset(&defaults, signal);
  ::posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&plan.attributes, 0);
  ::posix_spawnattr_setsigmask(&plan.attributes, &none);
  ::posix_spawnattr_setsigdefault(&plan.attributes, &defaults);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int status =
      ::posix_spawn(&pid, command.front().c_str(), &plan.actions, &plan.attributes, arguments.data(), environ);
  if (status != 0)
    return fail(ErrorCode::internal, fmt::format("cannot start {}: {}", command.front(), std::strerror(status)));
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(pid, channels.ours, channels.words));
  channels.ours = channels.words = -1;
  return process;
}

WorkerProcess::~WorkerProcess() { end(true); }

bool WorkerProcess::alive() {
  char byte;
  if (pid_ > 0 && ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) end(true);
  return pid_ > 0;
}

std::string WorkerProcess::end(bool by_us) {
  if (pid_ <= 0) return "it is gone";
  if (by_us) ::kill(pid_, SIGKILL);
  int status = 0;
  pid_t reaped = 0;
  const auto give_up = Clock::now() + kReapWithin;
  const auto insist = Clock::now() + milliseconds(1000);
  while ((reaped = ::waitpid(pid_, &status, WNOHANG)) == 0 || (reaped < 0 && errno == EINTR)) {
    const auto now = Clock::now();
    if (now > give_up) break;
    // It has closed its socket but goes on, and nothing more is expected of it.
    if (!by_us && now > insist) ::kill(pid_, SIGKILL);
    ::poll(nullptr, 0, static_cast<int>(kReapAgain.count()));
  }
  read_words();
  close_if_open(socket_);
  close_if_open(words_);
  pid_ = -1;
  if (reaped == 0) return "cannot be killed: the driver does not let it go";
  if (reaped < 0) return "is gone";
  if (WIFSIGNALED(status)) return "killed by " + signal_text(WTERMSIG(status));
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

void WorkerProcess::read_words() {
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(words_, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) close_if_open(words_);
    if (got <= 0) break;
    last_words_.append(buffer, static_cast<std::size_t>(got));
    if (last_words_.size() > kMostWords) last_words_.erase(0, last_words_.size() - kMostWords);
  }
}

WorkerLoss WorkerProcess::lost(WorkerLoss::Kind kind, const std::string& how, const WorkerRequest& request) {
  WorkerLoss loss{kind, fmt::format("the worker {} while {}", how, describe(request))};
  // The words become one line, because reasons stand in tables.
  std::string words;
  for (const char c : last_words_) {
    const bool gap = static_cast<unsigned char>(c) <= ' ';
    if (!gap) words += c;
    if (gap && !words.empty() && words.back() != ' ') words += ' ';
  }
  while (!words.empty() && words.back() == ' ') words.pop_back();
  if (!words.empty()) loss.reason += "; it said: " + words;
  return loss;
}

WorkerProcess::Wait WorkerProcess::wait_for_traffic(short events, Clock::time_point deadline,
                                                    const std::atomic<bool>* cancel) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return cancel != nullptr && cancel->load() ? Wait::cancelled : Wait::over;
    pollfd watched[] = {{socket_, events, 0}, {words_, POLLIN, 0}};
    const int ready = ::poll(watched, 2, static_cast<int>(std::min(left, kLookAround).count()));
    if (ready < 0 && errno != EINTR) return Wait::closed;
    if (ready > 0 && watched[1].revents != 0) read_words();
    if (ready > 0 && watched[0].revents != 0) return Wait::progress;
    if (cancel != nullptr && cancel->load()) deadline = std::min(deadline, Clock::now() + kCancelGrace);
  }
}

tl::expected<WorkerReply, WorkerLoss> WorkerProcess::call(const WorkerRequest& request, milliseconds limit,
                                                          const std::atomic<bool>* cancel) {
  using Kind = WorkerLoss::Kind;
  if (pid_ <= 0) return tl::unexpected(WorkerLoss{Kind::died, "the worker is gone"});
  const auto deadline = Clock::now() + limit;
  const auto give_up = [&](Wait why) {
    if (why == Wait::over) {
      end(true);
      return tl::unexpected(lost(Kind::timed_out, fmt::format("did not answer within {} ms", limit.count()), request));
    }
    if (why == Wait::cancelled) {
      end(true);
      return tl::unexpected(lost(Kind::cancelled, "was interrupted", request));
    }
    const char* where = reader_.torn() ? " in the middle of an answer" : "";
    return tl::unexpected(lost(Kind::died, end(false) + where, request));
  };
  const auto nonsense = [&](const std::string& what) {
    end(true);
    return tl::unexpected(lost(Kind::died, "answered with " + what, request));
  };

  const std::string bytes = encode(to_frame(request));
  for (std::size_t sent = 0; sent < bytes.size();) {
    // MSG_NOSIGNAL keeps a dead worker from ending the session by SIGPIPE.
    const ssize_t wrote = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (wrote > 0) {
      sent += static_cast<std::size_t>(wrote);
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) return give_up(Wait::closed);
    if (const Wait waited = wait_for_traffic(POLLOUT, deadline, cancel); waited != Wait::progress)
      return give_up(waited);
  }
  for (;;) {
    Result<std::optional<Frame>> frame = reader_.next();
    if (!frame) return nonsense(frame.error().message);
    if (*frame) {
      Result<WorkerReply> reply = reply_from(**frame);
      if (!reply) return nonsense(reply.error().message);
      return std::move(*reply);
    }
    if (const Wait waited = wait_for_traffic(POLLIN, deadline, cancel); waited != Wait::progress)
      return give_up(waited);
    char buffer[65536];
    const ssize_t got = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (got > 0) reader_.append({buffer, static_cast<std::size_t>(got)});
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return give_up(Wait::closed);
  }
}

}  // namespace v1
}  // namespace leanattn
