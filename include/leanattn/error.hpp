// error.hpp -- Error and Result<T>: what can go wrong, as a value. Plain data; any thread.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace leanattn {
inline namespace v1 {

/// Stable numeric codes; the C ABI's `leanattn_status` has the same values. New codes are only ever appended.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,    ///< a value is out of its range; the message names it
  unsupported = 2,         ///< valid, but this build or GPU cannot do it; the message names the limit
  no_driver = 3,           ///< libcuda is missing or refuses to start
  no_device = 4,           ///< no such CUDA device
  driver_too_old = 5,      ///< the driver cannot load what NVRTC made
  nvrtc_missing = 6,       ///< libnvrtc is missing or unusable
  compile_failed = 7,      ///< NVRTC rejected the source; Error::log holds its log
  kernel_rejected = 8,     ///< the kernel compiled, but spills registers or serialises wgmma
  load_failed = 9,         ///< the driver refused the cubin
  launch_failed = 10,      ///< the driver refused the launch
  out_of_memory = 11,      ///< no more device or host memory, or no thread or process left
  cache_unavailable = 12,  ///< the cache directory cannot be used; work goes on in memory
  database_corrupt = 13,   ///< the file is damaged, or is no database of this library
  database_newer = 14,     ///< a newer library wrote the database, which is left alone
  database_busy = 15,      ///< another process has locked the database for too long
  not_found = 16,          ///< nothing is stored under this name
  not_prepared = 17,       ///< the kernel must be compiled or loaded, and the stream is being captured
  wrong_result = 18,       ///< a kernel disagreed with the oracle
  interrupted = 19,        ///< cancelled by the caller or a signal
  context_lost = 20,       ///< the CUDA context is broken (errors 700, 702, 719 ...); make a new engine
  internal = 21,           ///< a mistake of the library
  workspace_corrupt = 22,  ///< a workspace was not all zero between launches, or was used by two at a time: results of
                           ///< launches on it are wrong, and it must be zeroed
  group_broken = 23,       ///< a rank of a group did not come in time, or launched something else than the others:
                           ///< results since then are wrong, and all ranks must reset the group
};

/// The `snake_case` name of a code, for messages and JSON. Static storage.
const char* error_code_name(ErrorCode code);

/// What was wrong and what to do about it.
struct Error {
  ErrorCode code = ErrorCode::internal;  ///< for programs that treat errors differently
  std::string message;                   ///< what was wrong, in one sentence that contains the value
  std::string hint;                      ///< what to do about it; may be empty
  std::string log;                       ///< the compiler's log; may be empty
};

/// A value or an error.
template <class T>
using Result = tl::expected<T, Error>;

/// An error that converts to any Result<T>, for `return fail(code, message, hint);`.
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string hint = {}, std::string log = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(hint), std::move(log)});
}

}  // namespace v1
}  // namespace leanattn
