// error.hpp -- what can go wrong, as a value: Error and Result<T>. Any thread; no state.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace leanattn {
inline namespace v1 {

/// Stable numeric codes; the C ABI's `leanattn_status` has the same values. New codes are only ever appended.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,    ///< a value is out of its domain; the message names it
  unsupported = 2,         ///< valid, but this build or this device cannot do it; the message names the limit
  no_driver = 3,           ///< libcuda is missing or refuses to start
  no_device = 4,           ///< no such CUDA device
  driver_too_old = 5,      ///< the driver cannot load what NVRTC made
  nvrtc_missing = 6,       ///< libnvrtc is missing or unusable
  compile_failed = 7,      ///< NVRTC rejected the source; Error::log holds its log
  kernel_rejected = 8,     ///< compiled, but spills registers or serialises wgmma
  load_failed = 9,         ///< the driver refused the cubin
  launch_failed = 10,      ///< the driver refused the launch
  out_of_memory = 11,      ///< device or host memory
  cache_unavailable = 12,  ///< the cache directory cannot be used; work goes on in memory
  database_corrupt = 13,   ///< not a database of ours, or damaged
  database_newer = 14,     ///< written by a newer leanattn; left untouched
  database_busy = 15,      ///< locked by another process for too long
  not_found = 16,          ///< nothing stored for this key
  not_prepared = 17,       ///< a plan that must compile was asked for during stream capture
  wrong_result = 18,       ///< a kernel disagreed with the oracle
  interrupted = 19,        ///< cancelled by the caller or a signal
  context_lost = 20,       ///< the CUDA context is broken (errors 700, 702, 719 ...); make a new engine
  internal = 21,           ///< our own mistake
};

/// `snake_case` name of a code, for messages and JSON. Static storage.
const char* error_code_name(ErrorCode code);

/// What was wrong (with the value), and the way out.
struct Error {
  ErrorCode code = ErrorCode::internal;  ///< what kind of failure, to branch on
  std::string message;                   ///< one sentence with the offending value
  std::string hint;                      ///< what to do about it; may be empty
  std::string log;                       ///< compiler log, when there is one
};

/// A value, or what was wrong.
template <class T>
using Result = tl::expected<T, Error>;

/// Shorthand for `return fail(code, message, hint)` in a function that returns any Result<T>.
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string hint = {}, std::string log = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(hint), std::move(log)});
}

}  // namespace v1
}  // namespace leanattn
