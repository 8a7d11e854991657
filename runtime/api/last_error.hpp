// last_error.hpp -- the last error of each thread, and the guard that lets no exception through the C ABI. Internal to
// this folder. Any thread; each has a state of its own.
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
/// The same for the exception that is being handled, with out_of_memory or internal. Call it inside a catch block.
leanattn_status set_last_error_from_exception() noexcept;

/// Runs `body`, which returns Result<void>, and keeps its error or exception.
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
