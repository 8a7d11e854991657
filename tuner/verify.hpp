// verify.hpp -- this GPU against the FP64 oracle, for every generated combination. One call at a time per process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/cubin_db.hpp"
#include "runtime/device.hpp"

namespace leanattn {
inline namespace v1 {

struct VerifyOptions {
  int device = 0;
  bool quick = false;             ///< a cross-section in seconds instead of every combination
  std::uint64_t seed = 20261121;  ///< of the random data; printed
  std::string filter;             ///< only kernels whose kernel_name contains this
};

/// One group of cases that share a kernel or a theme.
struct VerifyGroup {
  std::string name;          ///< e.g. "contexts 1..300", or a kernel_name
  std::int64_t kernels = 0;  ///< distinct kernels that ran
  std::int64_t refused = 0;  ///< kernels that the compile log rejected (spills), which therefore nobody can launch
  std::int64_t cases = 0, failed = 0;
  double worst_error_ratio = 0;       ///< error over that of a plain same-precision implementation; at most 2 passes
  std::vector<std::string> failures;  ///< at most 8, each enough to reproduce
};

struct VerifyReport {
  DeviceFacts device;
  std::uint64_t seed = 0;
  std::vector<VerifyGroup> groups;
  double seconds = 0;
  bool passed = false;
  bool interrupted = false;
};

using VerifySink = std::function<void(const VerifyGroup&)>;

/// Errors: no_driver, no_device, nvrtc_missing, context_lost. A wrong result is not an Error: see VerifyReport::passed.
Result<VerifyReport> verify(const VerifyOptions& options, CubinCache* cubins, const VerifySink& group_done,
                            const std::atomic<bool>* cancel);

/// The report as JSON with provenance (GPU, driver, NVRTC, generator revision, seed).
std::string to_json(const VerifyReport& report);

}  // namespace v1
}  // namespace leanattn
