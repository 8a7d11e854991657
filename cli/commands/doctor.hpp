// doctor.hpp -- Finding: what `leanattn doctor` says of one thing that it looked at. The look_at functions gather
// facts, and the judge functions make findings of them. Main thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console/console.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/nvml.hpp"

namespace leanattn {
inline namespace v1 {

/// One thing that was looked at.
struct Finding {
  enum class Level { ok, warning, failure };
  std::string subject;
  Level level = Level::ok;
  std::string text;
  std::string hint = {};    ///< how to mend it; empty: there is nothing to mend
  std::string detail = {};  ///< the loader's or compiler's own lines
  int exit = kExitOk;       ///< the program's exit code if this is the first failure
};
using Findings = std::vector<Finding>;

Finding good(std::string subject, std::string text, std::string hint = {});
Finding doubtful(std::string subject, std::string text, std::string hint);
Finding bad(std::string subject, const Error& error);

/// Looks at driver, GPUs, NVRTC and NCCL. Each GPU has to load a kernel that NVRTC compiles for it. `devices` receives
/// the GPUs that CUDA shows.
Findings look_at_gpus(std::vector<DeviceFacts>& devices);
/// Looks at the cache directory, both databases, SQLite, the site's and the shipped layer, and the winners that they
/// have for `devices`.
Findings look_at_caches(const Console& console, const std::vector<DeviceFacts>& devices);
/// Looks at every LEANATTN_* variable of this process and at CUDA_VISIBLE_DEVICES.
Findings look_at_environment();
/// The variables that should be numbers and are none. The library takes its defaults instead and is silent.
Findings look_at_numbers();

/// What CUDA and NVML say of one GPU.
Findings judge_device(const DeviceFacts& device, const GpuState& state, const GpuSettings& settings,
                      const GpuNeighbours& neighbours);
/// Why CUDA shows no GPU, as far as NVML can tell; nullopt when it cannot.
std::optional<Finding> judge_absence(const GpuInventory& inventory);
/// What the variables are worth. `names` are those that are set, and `value_of` gives the value of one of them.
Findings judge_environment(const std::vector<std::string>& names,
                           const std::function<std::string(std::string_view)>& value_of);

}  // namespace v1
}  // namespace leanattn
