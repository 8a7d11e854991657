#include "tuner/worker/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cache/files.hpp"
#include "runtime/tuning/child_process.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostWords = 2048;  // bytes of its standard streams that are kept
constexpr milliseconds kLookAround{100};  // how often `cancel` is looked at while waiting
constexpr milliseconds kInsistAfter{1000};

void close_if_open(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

}  // namespace

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::start(const std::vector<std::string>& command) {
  int pair[2];
  const auto no_channel = [] {
    return tl::unexpected(detail::cannot_open(
        {ErrorCode::internal, fmt::format("no channel to a worker process: {}", std::strerror(errno)), {}, {}}, errno));
  };
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return no_channel();
  FileDescriptor ours(pair[0]), theirs(pair[1]);
  if (!move_up(ours) || !move_up(theirs) || ::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return no_channel();
  Result<Pipe> words = open_pipe();
  if (!words) return tl::unexpected(words.error());
  const ChildDescriptor descriptors[] = {
      {words->write.get(), STDOUT_FILENO}, {words->write.get(), STDERR_FILENO}, {theirs.get(), kWorkerDescriptor}};
  const Result<pid_t> pid = spawn_child(command, descriptors);
  if (!pid) return tl::unexpected(pid.error());
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(*pid, ours.release(), words->read.release()));
}

WorkerProcess::~WorkerProcess() { end(true); }

bool WorkerProcess::alive() {
  char byte;
  if (pid_ > 0 && ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) end(true);
  return pid_ > 0;
}

std::string WorkerProcess::end(bool by_us) {
  if (pid_ <= 0) return "it is gone";
  // One that has closed its socket by itself ends soon. If it goes on, nothing more is expected of it.
  std::string ending = reap_child(pid_, by_us ? milliseconds(0) : kInsistAfter);
  read_words();
  close_if_open(socket_);
  close_if_open(words_);
  pid_ = -1;
  return ending;
}

void WorkerProcess::read_words() {
  if (!read_available(words_, last_words_)) close_if_open(words_);
  if (last_words_.size() > kMostWords) last_words_.erase(0, last_words_.size() - kMostWords);
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
