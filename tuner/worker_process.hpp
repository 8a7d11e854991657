// worker_process.hpp -- WorkerProcess: one child process that answers requests, with a limit on how long each may take.
// One thread at a time. The thread that starts it must outlive it: when that thread ends, the kernel kills the child.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tuner/worker_protocol.hpp"

namespace leanattn {
inline namespace v1 {

/// The descriptor on which a worker finds its socket to the session.
inline constexpr int kWorkerDescriptor = 3;

/// How a call ended that got no reply. The process is gone by then.
struct WorkerLoss {
  enum class Kind { died, timed_out, cancelled };
  Kind kind = Kind::died;
  std::string reason;  ///< "killed by signal 11 (Segmentation fault) while checking ...; it said: ..."
};

class WorkerProcess {
 public:
  /// Starts command[0] with these arguments, in a process group of its own so that Ctrl-C at a terminal reaches the
  /// session alone. Its standard output and standard error go into a short memory of its last words. Errors: internal
  /// (no such program, no descriptors or processes left).
  static Result<std::unique_ptr<WorkerProcess>> start(const std::vector<std::string>& command);
  /// Kills and reaps it.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// Sends a request and waits for its reply, `limit` at most; once `cancel` (may be null) is set, kCancelGrace at
  /// most. Whatever is no reply (silence, death, bytes that are no frame) ends the process.
  tl::expected<Reply, WorkerLoss> call(const Request& request, std::chrono::milliseconds limit,
                                       const std::atomic<bool>* cancel);

  /// False also when it has died since its last reply: that is nobody's fault who asks now.
  bool alive();
  pid_t pid() const { return pid_; }

  static constexpr std::chrono::milliseconds kCancelGrace{2000};

 private:
  WorkerProcess(pid_t pid, int socket, int words) : pid_(pid), socket_(socket), words_(words) {}

  enum class Wait { progress, closed, over, cancelled };
  Wait wait_for_traffic(short events, std::chrono::steady_clock::time_point deadline, const std::atomic<bool>* cancel);
  void read_words();
  /// Kills, reaps and says how it ended.
  std::string end(bool by_us);
  WorkerLoss lost(WorkerLoss::Kind kind, const std::string& how, const Request& request);

  pid_t pid_;
  int socket_, words_;  // -1 when closed
  FrameReader reader_;
  std::string last_words_;  // the end of what it wrote to its standard streams
};

}  // namespace v1
}  // namespace leanattn
