// last_error.cpp -- leanattn_last_error_*, leanattn_status_name, leanattn_version.
#include "runtime/api/last_error.hpp"

#define LEANATTN_TEXT_(x) #x
#define LEANATTN_TEXT(x) LEANATTN_TEXT_(x)

namespace leanattn {
inline namespace v1 {
namespace {

static_assert(static_cast<int>(ErrorCode::ok) == LEANATTN_OK &&
                  static_cast<int>(ErrorCode::workspace_corrupt) == LEANATTN_WORKSPACE_CORRUPT,
              "the C ABI's statuses are the error codes");

thread_local Error last_error{ErrorCode::ok, {}, {}, {}};

}  // namespace

namespace detail {

leanattn_status set_last_error(Error&& error) noexcept {
  last_error = std::move(error);  // moving strings does not allocate
  return static_cast<leanattn_status>(last_error.code);
}

leanattn_status set_last_error_from_exception() noexcept {
  Error error{ErrorCode::internal, {}, {}, {}};
  try {
    throw;
  } catch (const std::bad_alloc&) {
    error.code = ErrorCode::out_of_memory;
    error.message = "no host memory";  // so short that it needs no allocation
  } catch (const std::exception& exception) {
    try {
      error.message = exception.what();
    } catch (...) {
      error.code = ErrorCode::out_of_memory;
    }
  } catch (...) {
    error.message = "unknown exception";
  }
  return set_last_error(std::move(error));
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn

extern "C" {

const char* leanattn_version(void) noexcept {
  return LEANATTN_TEXT(LEANATTN_VERSION_MAJOR) "." LEANATTN_TEXT(LEANATTN_VERSION_MINOR) "." LEANATTN_TEXT(
      LEANATTN_VERSION_PATCH);
}

const char* leanattn_status_name(leanattn_status status) noexcept {
  return leanattn::error_code_name(static_cast<leanattn::ErrorCode>(status));
}

leanattn_status leanattn_last_error_status(void) noexcept {
  return static_cast<leanattn_status>(leanattn::last_error.code);
}
const char* leanattn_last_error_message(void) noexcept { return leanattn::last_error.message.c_str(); }
const char* leanattn_last_error_hint(void) noexcept { return leanattn::last_error.hint.c_str(); }
const char* leanattn_last_error_log(void) noexcept { return leanattn::last_error.log.c_str(); }

}  // extern "C"
