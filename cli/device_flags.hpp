// device_flags.hpp -- the flags that say which GPU: one that is here, or one described by arch and SM count. Main
// thread.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning_db.hpp"
#include "cli/caches.hpp"
#include "runtime/device.hpp"
#include "tuner/tune.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

struct DeviceFlags {
  int device = 0;
  std::string devices;  ///< of commands that take several: ordinals or "all"; empty: `device`
  std::string arch;     ///< empty: the GPU that is here
  std::string sms;      ///< empty: as the arch's largest common product has
};

/// --device, --arch, --sms. `flags` must live until the program has run.
void add_device_flags(CLI::App& command, DeviceFlags& flags);

/// The same for a command that can use several GPUs: --device takes a list or `all`, into `flags.devices`.
void add_device_list_flags(CLI::App& command, DeviceFlags& flags);
/// The ordinals that --device names, in the order given. Errors: invalid_argument (not numbers), no_driver, no_device.
Result<std::vector<int>> chosen_devices(const DeviceFlags& flags);

/// --l2. Errors: invalid_argument.
Result<L2Policy> parse_l2(const std::string& text);

/// SMs of the arch's common product (A100, H100/H200, B200 ...): what --sms defaults to.
int usual_sm_count(Arch arch);

/// Facts from --arch and --sms. Errors: invalid_argument, unsupported.
Result<DeviceFacts> offline_facts(const DeviceFlags& flags);

/// A GPU and the row under which the database keeps its tuning.
struct Target {
  DeviceFacts facts;
  DeviceModel model;
};

/// The GPU that is here; with --arch, the one of that arch and SM count in the database, else made-up facts.
/// Errors: no_driver, no_device (the hint names --arch), invalid_argument, unsupported.
Result<Target> resolve_target(const DeviceFlags& flags, const Caches& caches);

}  // namespace v1
}  // namespace leanattn
