// worker_options.hpp -- how a session runs its worker processes. Plain data; any thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {

/// How much work a call asks for, as far as its time limit is concerned.
struct WorkerCall {
  enum class Kind { start, compile, prepare, check, time };
  Kind kind = Kind::start;
  const DeviceFacts* device = nullptr;  ///< of all but start and compile
  const DecodeProblem* problem = nullptr;
  const Shape* shape = nullptr;
  std::vector<Config> configs = {};  ///< of check and time
};
using CallLimit = std::function<std::chrono::milliseconds(const WorkerCall&)>;

/// Generous: half a minute and a hundred times what the model predicts, so that nothing but a hang gets there; minutes
/// for what waits for a driver or for NVRTC.
std::chrono::milliseconds default_call_limit(const WorkerCall& call);

struct WorkerOptions {
  /// The program to start and its arguments: one that serves worker_protocol.hpp on descriptor kWorkerDescriptor.
  std::vector<std::string> command = {};
  std::string cache_directory = {};  ///< of cubin.db; empty: memory only
  /// For check and time, instead of the default.
  std::optional<std::chrono::milliseconds> candidate_limit = {};
  /// For all calls that candidate_limit is not for.
  CallLimit limit = default_call_limit;
};

/// What these options say of a call.
std::chrono::milliseconds limit_of(const WorkerOptions& options, const WorkerCall& call);

}  // namespace v1
}  // namespace leanattn
