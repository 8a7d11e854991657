// capture.hpp -- Capture: what an engine was asked to plan, how often, and how good the answers were, appended to the
// file that LEANATTN_CAPTURE names. Thread-safe. Never fails its caller, and writes on a thread of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "runtime/lookup.hpp"
#include "runtime/lookup_key.hpp"

namespace leanattn {
inline namespace v1 {

/// Calls are counted in memory by problem, shape and answer. What was counted is appended once a minute, when the
/// capture ends, and when the process exits: so a kill loses at most a minute. One append is one write(), whole lines
/// in a file opened for appending, so that any number of processes may share it on a local disk.
///
/// Each line counts what happened since the one before; readers add them up (capture_file.hpp). A child of fork()
/// starts from zero, for the parent writes what came before.
class Capture {
 public:
  struct Options {
    std::string file;    ///< absolute; "%p" stands for the process id, "%%" for a percent sign
    std::string device;  ///< its name
    int sm_count = 0;
    std::chrono::milliseconds period = std::chrono::minutes(1);
    /// Above this many different pairs between two writes they are written early; while that fails, further ones are
    /// only counted as lost.
    std::size_t most_pairs = 4096;
  };

  /// Null when LEANATTN_CAPTURE is unset or empty (or in a set-user-id program), or when its file cannot be written:
  /// then `warning` says so.
  static std::unique_ptr<Capture> from_environment(const DeviceFacts& device, std::string* warning);

  explicit Capture(Options options);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture();  ///< writes what is left

  /// One plan() call. `key` is make_lookup_key(problem, shape); a null choice says that the call failed.
  void count(const DecodeProblem& problem, const Shape& shape, const LookupKey& key, const Choice* choice) noexcept;

  /// Writes what was counted since the last time, now. False when it could not be written: it is kept for the next
  /// time.
  bool flush() noexcept;

 private:
  struct State;
  struct Process;  ///< every capture of the process, for its exit and for fork()
  State& state() const { return *state_; }

  const Options options_;
  State* state_;  ///< owned; replaced, and the old one leaked, in a child of fork()
};

}  // namespace v1
}  // namespace leanattn
