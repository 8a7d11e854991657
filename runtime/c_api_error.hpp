// c_api_error.hpp -- the thread's last error, and the wall that no exception passes. Each thread has its own state.
#pragma once

#include <exception>
#include <new>

#include "leanattn/error.hpp"
#include "leanattn/leanattn.h"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Keeps the error for leanattn_last_error_* on this thread, and returns its status.
leanattn_status set_last_error(Error&& error) noexcept;
/// For the exception in flight: out_of_memory or internal. Only inside a catch block.
leanattn_status set_last_error_from_exception() noexcept;

/// Runs `body`, which returns Result<void>.
template <class Body>
leanattn_status guarded(Body&& body) noexcept {
  try {
    Result<void> result = body();
    if (result) [[likely]]
      return LEANATTN_OK;
    return set_last_error(std::move(result.error()));
  } catch (...) {
    return set_last_error_from_exception();
  }
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
