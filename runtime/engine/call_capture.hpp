// call_capture.hpp -- CallCapture: counts what an engine was asked to plan and how good the answers were, and appends
// the counts to the file that LEANATTN_CAPTURE names. It has nothing to do with the capture of a CUDA stream.
// Thread-safe. It never fails its caller, and writes on a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "runtime/lookup/key.hpp"
#include "runtime/lookup/winner_table.hpp"

namespace leanattn {
inline namespace v1 {

/// Calls are counted in memory by problem, shape and answer. The counts are appended once a minute, when the capture
/// ends and when the process exits, so a process that is killed loses at most a minute. Each append is one write() of
/// whole lines to a file that is opened for appending, so any number of processes may share the file on a local disk.
///
/// A line has the calls since the line before, and readers add them up (call_capture_file.hpp). A child of fork()
/// starts from zero, because its parent writes what came before.
class CallCapture {
 public:
  struct Options {
    std::string file;    ///< absolute; "%p" stands for the process id, "%%" for a percent sign
    std::string device;  ///< name of the GPU
    int sm_count = 0;    ///< SMs that the engine sees
    std::chrono::milliseconds period = std::chrono::minutes(1);
    /// When there are so many different counts, they are written before the period ends. While that fails, calls for
    /// which there is no count are added to the lost calls.
    std::size_t most_counts = 4096;
  };

  /// Null when LEANATTN_CAPTURE is unset or empty, in a set-user-id program, and when the file cannot be written. In
  /// the last case `warning` says so.
  static std::unique_ptr<CallCapture> from_environment(const DeviceFacts& device, std::string* warning);

  explicit CallCapture(Options options);
  CallCapture(const CallCapture&) = delete;
  CallCapture& operator=(const CallCapture&) = delete;
  ~CallCapture();  ///< writes what is left

  /// Counts one call of plan(). `key` is make_lookup_key(problem, shape). A null `choice` means that the call failed.
  void count(const DecodeProblem& problem, const Shape& shape, const LookupKey& key, const Choice* choice) noexcept;

  /// Writes at once what was counted since the last time. False when it could not be written; it is then kept for the
  /// next time.
  bool flush() noexcept;

 private:
  struct State;
  struct Process;  ///< all call captures of the process, for its exit and for fork()
  State& state() const { return *state_; }

  const Options options_;
  State* state_;  ///< owned; a child of fork() leaks it and makes a new one
};

}  // namespace v1
}  // namespace leanattn
