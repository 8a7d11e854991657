// call_limit.hpp -- WorkerCall and CallLimit: how long a worker may take for what it is asked. Pure functions; any
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "runtime/lookup/decode_step.hpp"

namespace leanattn {
inline namespace v1 {

/// How much work a call asks for, as far as its time limit is concerned.
struct WorkerCall {
  enum class Kind { start, compile, prepare, check, time };
  Kind kind = Kind::start;
  const DecodeStep* step = nullptr;  ///< null for start and compile
  std::vector<Config> configs = {};  ///< what is compiled, checked or timed
};
using CallLimit = std::function<std::chrono::milliseconds(const WorkerCall&)>;

/// A generous limit, so that only a hang reaches it: half a minute and a hundred times what the model predicts, and
/// minutes for a call that waits for a driver or for NVRTC.
std::chrono::milliseconds default_call_limit(const WorkerCall& call);

}  // namespace v1
}  // namespace leanattn
