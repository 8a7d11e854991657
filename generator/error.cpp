#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::no_driver: return "no_driver";
    case ErrorCode::no_device: return "no_device";
    case ErrorCode::driver_too_old: return "driver_too_old";
    case ErrorCode::nvrtc_missing: return "nvrtc_missing";
    case ErrorCode::compile_failed: return "compile_failed";
    case ErrorCode::kernel_rejected: return "kernel_rejected";
    case ErrorCode::load_failed: return "load_failed";
    case ErrorCode::launch_failed: return "launch_failed";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::cache_unavailable: return "cache_unavailable";
    case ErrorCode::database_corrupt: return "database_corrupt";
    case ErrorCode::database_newer: return "database_newer";
    case ErrorCode::database_busy: return "database_busy";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::not_prepared: return "not_prepared";
    case ErrorCode::wrong_result: return "wrong_result";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::context_lost: return "context_lost";
    case ErrorCode::internal: return "internal";
    case ErrorCode::workspace_corrupt: return "workspace_corrupt";
    case ErrorCode::group_broken: return "group_broken";
  }
  return "unknown";
}

}  // namespace v1
}  // namespace leanattn
