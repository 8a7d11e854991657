// device_flags.hpp -- DeviceFlags: which GPU a command is about, one of this machine or one that is described by
// architecture and number of SMs. Main thread.
#pragma once

#include <string>
#include <vector>

#include "cache/tuning/tuning_db.hpp"
#include "cli/console/console.hpp"
#include "cli/flags/caches.hpp"
#include "runtime/cuda/device.hpp"
#include "tuner/search/tune.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

struct DeviceFlags {
  int device = 0;       ///< the CUDA ordinal, of commands that take one GPU
  std::string devices;  ///< ordinals or "all", of commands that take several; empty: `device`
  std::string arch;     ///< an architecture or the name of a GPU, such as h100; empty: a GPU of this machine
  std::string sms;      ///< empty: those of the GPU that is named, or usual_sm_count(arch)
};

/// Registers --device, --arch and --sms. `flags` must live until the program has run.
void add_device_flags(CLI::App& command, DeviceFlags& flags);

/// The same for a command that can use several GPUs: --device (or --devices) takes a list or `all` and fills
/// `flags.devices`.
void add_device_list_flags(CLI::App& command, DeviceFlags& flags);
/// The ordinals that --device names, in the order given. Errors: invalid_argument (not numbers), no_driver, no_device.
Result<std::vector<int>> chosen_devices(const DeviceFlags& flags);

/// The GPU of each of a group's ranks, by CUDA ordinal: those that --device names, where one may stand in for several
/// (0,0,1,1), or the one that stands in for all ranks. Errors: invalid_argument (another number of GPUs than ranks),
/// those of chosen_devices().
Result<std::vector<int>> devices_of_ranks(const DeviceFlags& flags, int ranks);

/// The number of SMs of the architecture's most common product (A100, H100, B200 ...), which is the default of --sms.
int usual_sm_count(Arch arch);

/// What --arch says: an architecture, or a GPU by its name.
struct NamedGpu {
  Arch arch;
  int sm_count = 0;   ///< of the GPU that was named, or the architecture's usual one
  std::string model;  ///< "h100"; empty: an architecture was given
};
/// Reads "sm_90a", "h100", "RTX 4090". Case, blanks, hyphens and underscores of a GPU's name do not matter. Errors:
/// invalid_argument, with what may have been meant; unsupported (an architecture before sm_80).
Result<NamedGpu> parse_gpu(std::string_view text);
/// The GPU that --arch means, in words: "h100", or of an architecture its most common product, "H100 SXM, H200".
std::string usual_product(const DeviceFlags& flags);
/// Architectures and GPUs that parse_gpu() reads, for completions.
std::vector<std::string> gpu_names();

/// The facts of a GPU that follow from --arch and --sms. Errors: invalid_argument, unsupported.
Result<DeviceFacts> offline_facts(const DeviceFlags& flags);

/// A GPU, and the device model under which the database keeps its winners.
struct Target {
  DeviceFacts facts;
  DeviceModel model;
};

/// The same flags, where they name a GPU or this machine has one; else those of sm_90a, which a note says. For commands
/// that print a kernel.
DeviceFlags or_hopper(const Console& console, DeviceFlags flags);

/// Without --arch, a GPU of this machine. With --arch, the first GPU of that architecture and number of SMs that the
/// user's, the site's or the shipped database knows, or else typical facts. Errors: no_driver, no_device (the hint
/// names --arch), invalid_argument, unsupported.
Result<Target> resolve_target(const DeviceFlags& flags, const Caches& caches);

}  // namespace v1
}  // namespace leanattn
