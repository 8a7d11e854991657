// verify.hpp -- compares this GPU's results with the FP64 oracle, for every kernel that can be generated. One call at a
// time in a process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cubin/cubin_db.hpp"
#include "runtime/cuda/device.hpp"
#include "tuner/verify/covering.hpp"

namespace leanattn {
inline namespace v1 {

/// The parts of a verify run.
enum class VerifyPart : std::uint8_t {
  themes,        ///< shapes and orders of launches that break decode kernels, on representative kernels
  features,      ///< one feature after the other, on every load path that has it
  prefill,       ///< prefill beside decode: mixed steps and the lists of other libraries' tests
  random,        ///< random combinations of features, heads, tunables and shapes
  combinations,  ///< every combination without features, on a few shapes
  groups,        ///< groups whose ranks share contexts, with all ranks on this GPU
  recurrent,     ///< layers with a recurrent state, an operation of its own
};
std::string_view to_string(VerifyPart part);
/// Errors: invalid_argument, naming the parts.
Result<VerifyPart> parse_verify_part(std::string_view text);

struct VerifyOptions {
  int device = 0;
  bool quick = false;                   ///< whether a cross-section is checked (covering.hpp), in half a minute
  bool extended = false;                ///< whether ten times as many random combinations are checked
  std::optional<VerifyPart> only = {};  ///< nullopt: all parts
  std::uint64_t seed = 20261121;        ///< of random data and combinations
  std::string filter = {};              ///< only kernels whose kernel_name contains this are checked
};

/// Cases that share a theme, a feature or a kind of kernel.
struct VerifyGroup {
  std::string name;          ///< such as "feature: window"
  std::int64_t kernels = 0;  ///< how many different kernels ran
  std::int64_t refused = 0;  ///< kernels that spill, which therefore can never be launched
  std::int64_t cases = 0, failed = 0;
  double worst_error_ratio = 0;       ///< the error over that of a plain implementation; at most 2 passes
  double seconds = 0;                 ///< from the end of the group before, or the start, until all cases were checked
  std::vector<std::string> failures;  ///< at most 8, each with all that is needed to repeat it
};

struct VerifyReport {
  DeviceFacts device;
  std::uint64_t seed = 0;
  std::optional<Coverage> coverage = {};  ///< of a quick run: how much of a whole one it has, themes apart
  std::vector<VerifyGroup> groups;
  double seconds = 0;
  bool passed = false;
  bool interrupted = false;
};

/// How many random combinations of kernel and shape a run has, before a cross-section is taken: 2000; 20000 if
/// extended.
std::size_t random_combinations(const VerifyOptions& options);
/// How many random kernels of groups, likewise: 60; 600 if extended.
std::size_t random_rank_combinations(const VerifyOptions& options);

using VerifySink = std::function<void(const VerifyGroup&)>;

/// Runs the checks. `group_done` gets each group when it is complete. cubins, group_done and cancel may be null. A
/// wrong result is no Error, but sets VerifyReport::passed to false. Errors: no_driver, no_device, nvrtc_missing,
/// invalid_argument (no kernel has the filter in its name), out_of_memory, context_lost.
Result<VerifyReport> verify(const VerifyOptions& options, CubinCache* cubins, const VerifySink& group_done,
                            const std::atomic<bool>* cancel);

/// The report as JSON, with GPU, driver, NVRTC, generator revision and seed.
std::string to_json(const VerifyReport& report);

}  // namespace v1
}  // namespace leanattn
