// process.hpp -- WorkerProcess: a child process that answers requests, each within a time limit. One thread at a time.
// The thread that starts it must outlive it: when that thread ends, the operating system kills the child.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tuner/worker/protocol.hpp"

namespace leanattn {
inline namespace v1 {

/// The descriptor on which a worker finds its socket to the session.
inline constexpr int kWorkerDescriptor = 3;

/// How a call without a reply ended. The process has ended by then.
struct WorkerLoss {
  enum class Kind { died, timed_out, cancelled };
  Kind kind = Kind::died;
  std::string reason;  ///< "killed by signal 11 (Segmentation fault) while checking ...; it said: ..."
};

class WorkerProcess {
 public:
  /// Starts command[0] with these arguments. The process has a process group of its own, so that Ctrl-C at a terminal
  /// reaches the session alone. The end of what it writes to its standard output and standard error is kept. Errors:
  /// internal (no such program, no descriptors or processes left).
  static Result<std::unique_ptr<WorkerProcess>> start(const std::vector<std::string>& command);
  /// Kills and reaps it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// Sends a request and waits for its reply, at most as long as `limit`, and at most as long as kCancelGrace once
  /// `cancel` (may be null) is set. Whatever is not a reply (silence, death, bytes that are no frame) ends the process.
  tl::expected<WorkerReply, WorkerLoss> call(const WorkerRequest& request, std::chrono::milliseconds limit,
                                             const std::atomic<bool>* cancel);

  /// False also when it has died since its last reply, for which the next request is not to blame.
  bool alive();
  pid_t pid() const { return pid_; }

  static constexpr std::chrono::milliseconds kCancelGrace{2000};

 private:
  WorkerProcess(pid_t pid, int socket, int words) : pid_(pid), socket_(socket), words_(words) {}

  enum class Wait { progress, closed, over, cancelled };
  Wait wait_for_traffic(short events, std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* cancel);
  void read_words();
  /// Ends and reaps the process, and says how it ended. by_us: it is killed.
  std::string end(bool by_us);
  WorkerLoss lost(WorkerLoss::Kind kind, const std::string& how, const WorkerRequest& request);

  pid_t pid_;
  int socket_, words_;  // -1 when closed
  FrameReader reader_;
  std::string last_words_;  // the end of what it wrote to its standard streams
};

}  // namespace v1
}  // namespace leanattn
