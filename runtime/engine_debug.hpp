// engine_debug.hpp -- LaunchChecks: what LEANATTN_DEBUG=1 looks at around every launch. Thread-safe; locks and asks the
// driver, so never on in production.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/array_check.hpp"
#include "runtime/gpu.hpp"
#include "runtime/plan.hpp"

namespace leanattn {
inline namespace v1 {

/// Create and destroy with the engine's context current.
class LaunchChecks {
 public:
  /// `cubins` (may be null) keeps the check of arrays, which the first launch compiles.
  LaunchChecks(Arch arch, std::shared_ptr<CubinCache> cubins) : arch_(arch), cubins_(std::move(cubins)) {}

  /// Errors: invalid_argument (a pointer that the device cannot reach, a workspace too small for its plan, a workspace
  /// whose last launch, on another stream, has not ended, lengths, query offsets or pages out of their domain), those
  /// of ArrayCheck. A stream that is being captured is not waited for, so there the last two are not looked at.
  Result<void> before(const LaunchLimits& limits, const LeanDecodeArgs& args, CUstream_st* stream);
  /// Remembers that the workspace is in use until the launch has ended.
  Result<void> after(const LeanDecodeArgs& args, CUstream_st* stream);

 private:
  struct Use {
    CUstream_st* stream = nullptr;
    Event end;
  };
  Result<void> check_use(const LeanDecodeArgs& args, CUstream_st* stream);
  Result<void> check_arrays(const DecodeProblem& problem, const LeanDecodeArgs& args, CUstream_st* stream);

  std::mutex mutex_;
  std::map<const void*, Use> uses_;  ///< by workspace

  Arch arch_;
  std::shared_ptr<CubinCache> cubins_;
  std::mutex arrays_mutex_;  ///< what follows; held while the device looks
  std::optional<ArrayCheck> arrays_;
};

}  // namespace v1
}  // namespace leanattn
