// verify.hpp -- this GPU against the FP64 oracle, for every generated combination. One call at a time per process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cubin_db.hpp"
#include "runtime/device.hpp"

namespace leanattn {
inline namespace v1 {

/// The parts of a verify run.
enum class VerifyPart : std::uint8_t {
  themes,        ///< shapes that break decode kernels, on representative plain ones
  features,      ///< each feature alone, on every load path that knows it
  random,        ///< random combinations of features, heads, tunables and shapes
  combinations,  ///< every plain combination on a few shapes
};
std::string_view to_string(VerifyPart part);
/// Errors: invalid_argument, naming the choices.
Result<VerifyPart> parse_verify_part(std::string_view text);

struct VerifyOptions {
  int device = 0;
  bool quick = false;                   ///< a cross-section in seconds instead of every combination
  bool extended = false;                ///< ten times as many random combinations
  std::optional<VerifyPart> only = {};  ///< one part instead of all
  std::uint64_t seed = 20261121;        ///< of the random data; printed
  std::string filter = {};              ///< only kernels whose kernel_name contains this
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

/// Random combinations (kernel and shape) of a run: 2000; quick 200, extended 20000.
std::size_t random_combinations(const VerifyOptions& options);

using VerifySink = std::function<void(const VerifyGroup&)>;

/// Errors: no_driver, no_device, nvrtc_missing, context_lost. A wrong result is not an Error: see VerifyReport::passed.
Result<VerifyReport> verify(const VerifyOptions& options, CubinCache* cubins, const VerifySink& group_done,
                            const std::atomic<bool>* cancel);

/// The report as JSON with provenance (GPU, driver, NVRTC, generator revision, seed).
std::string to_json(const VerifyReport& report);

}  // namespace v1
}  // namespace leanattn
