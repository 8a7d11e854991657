// engine_debug.hpp -- LaunchChecks: what LEANATTN_DEBUG=1 looks at around every launch. Thread-safe; locks and asks the
// driver, so never on in production.
#pragma once

#include <map>
#include <mutex>

#include "runtime/gpu.hpp"
#include "runtime/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// Create and destroy with the engine's context current.
class LaunchChecks {
 public:
  /// Errors: invalid_argument (a pointer that the device cannot reach, a workspace too small for its plan, a workspace
  /// whose last launch, on another stream, has not ended).
  Result<void> before(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream);
  /// Remembers that the workspace is in use until the launch has ended.
  Result<void> after(const LeanDecodeArgs& args, CUstream_st* stream);

 private:
  struct Use {
    CUstream_st* stream = nullptr;
    Event end;
  };
  std::mutex mutex_;
  std::map<const void*, Use> uses_;  ///< by workspace
};

}  // namespace v1
}  // namespace leanattn
