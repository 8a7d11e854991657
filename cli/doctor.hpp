// doctor.hpp -- what `leanattn doctor` looks at: a section of findings each about the GPUs, NVRTC, the caches and the
// environment. Gathering facts is apart from judging them. Main
// thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/session.hpp"
#include "runtime/device.hpp"
#include "runtime/nvml.hpp"

namespace leanattn {
inline namespace v1 {

/// One thing that was looked at.
struct Finding {
  enum class Level { ok, warning, failure };
  std::string subject;
  Level level = Level::ok;
  std::string text;
  std::string hint = {};    ///< how to mend it
  std::string detail = {};  ///< what the loader or compiler said, line by line
  int exit = kExitOk;       ///< what the program ends with when this is the first failure
};
using Findings = std::vector<Finding>;

Finding good(std::string subject, std::string text, std::string hint = {});
Finding doubtful(std::string subject, std::string text, std::string hint);
Finding bad(std::string subject, const Error& error);

/// Driver, GPUs and NVRTC; every GPU is proven by loading a kernel that was compiled for it. `devices` receives the
/// GPUs that there are.
Findings look_at_gpus(std::vector<DeviceFacts>& devices);
/// Cache directory, both databases, SQLite, site and shipped layers, and what they hold for `devices`.
Findings look_at_caches(const Session& session, const std::vector<DeviceFacts>& devices);
/// Every LEANATTN_* variable and CUDA_VISIBLE_DEVICES, of this process.
Findings look_at_environment();

/// A GPU by what CUDA and NVML say of it.
Findings judge_device(const DeviceFacts& device, const GpuState& state, const GpuSettings& settings,
                      const GpuNeighbours& neighbours);
/// Why CUDA shows no GPU, by what NVML says; nullopt when that explains nothing.
std::optional<Finding> judge_absence(const GpuInventory& inventory);
/// `names` are all variables that are set; `value_of` answers for one of them.
Findings judge_environment(const std::vector<std::string>& names,
                           const std::function<std::string(std::string_view)>& value_of);

}  // namespace v1
}  // namespace leanattn
