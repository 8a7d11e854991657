// nvml.cpp -- some functions of NVML, which is opened at run time. The build does not need NVML's header, so the few
// prototypes and constants are declared here, after the NVML API reference.
#include "runtime/cuda/nvml.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/cuda/dynamic_library.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct NvmlDevice;
constexpr int kSuccess = 0;
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kClockSm = 1, kClockMemory = 2;
constexpr int kComputeProhibited = 2;
constexpr unsigned kMigEnabled = 1;
constexpr int kP2pOverNvlink = 2, kP2pOk = 0;  // nvmlGpuP2PCapsIndex_t and nvmlGpuP2PStatus_t

/// nvmlProcessInfo_t of the functions whose names end in _v2 and _v3, and nvmlUtilization_t.
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct NvmlUtilization {
  unsigned gpu, memory;
};
constexpr unsigned long long kBytesUnknown = ~0ull;

struct NvmlApi {
  int (*init)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_by_uuid)(const char*, NvmlDevice**) = nullptr;
  int (*power_limit)(NvmlDevice*, unsigned*) = nullptr;
  int (*power_usage)(NvmlDevice*, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*clock)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*throttle_reasons)(NvmlDevice*, unsigned long long*) = nullptr;
  int (*processes)(NvmlDevice*, unsigned*, NvmlProcess*) = nullptr;
  int (*utilization)(NvmlDevice*, NvmlUtilization*) = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, NvmlDevice**) = nullptr;
  int (*mig_mode)(NvmlDevice*, unsigned*, unsigned*) = nullptr;
  int (*compute_mode)(NvmlDevice*, int*) = nullptr;
  int (*persistence_mode)(NvmlDevice*, int*) = nullptr;
  int (*default_power_limit)(NvmlDevice*, unsigned*) = nullptr;
  int (*application_clock)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*default_application_clock)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*p2p_status)(NvmlDevice*, NvmlDevice*, int, int*) = nullptr;
  bool usable = false;
};

NvmlApi open_nvml() {
  NvmlApi api;
  const std::array<std::string, 2> candidates{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"};
  const auto library = DynamicLibrary::open_first(candidates, nullptr);
  if (!library) return api;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(library.symbol(name));
  };
  resolve(api.init, "nvmlInit_v2");
  resolve(api.driver_version, "nvmlSystemGetDriverVersion");
  resolve(api.device_by_uuid, "nvmlDeviceGetHandleByUUID");
  resolve(api.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  resolve(api.power_usage, "nvmlDeviceGetPowerUsage");
  resolve(api.temperature, "nvmlDeviceGetTemperature");
  resolve(api.clock, "nvmlDeviceGetClockInfo");
  // CUDA 12.2 renamed this function, and the old name still works.
  resolve(api.throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  if (api.throttle_reasons == nullptr) resolve(api.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  resolve(api.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (api.processes == nullptr) resolve(api.processes, "nvmlDeviceGetComputeRunningProcesses_v2");
  resolve(api.utilization, "nvmlDeviceGetUtilizationRates");
  resolve(api.device_count, "nvmlDeviceGetCount_v2");
  resolve(api.device_by_index, "nvmlDeviceGetHandleByIndex_v2");
  resolve(api.mig_mode, "nvmlDeviceGetMigMode");
  resolve(api.compute_mode, "nvmlDeviceGetComputeMode");
  resolve(api.persistence_mode, "nvmlDeviceGetPersistenceMode");
  resolve(api.default_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
  resolve(api.application_clock, "nvmlDeviceGetApplicationsClock");
  resolve(api.default_application_clock, "nvmlDeviceGetDefaultApplicationsClock");
  resolve(api.p2p_status, "nvmlDeviceGetP2PStatus");
  api.usable = api.init != nullptr && api.init() == kSuccess;
  return api;
}

const NvmlApi& nvml() {
  static const NvmlApi api = open_nvml();
  return api;
}

/// Null where NVML does not know a GPU of this UUID, or cannot be asked.
NvmlDevice* device_of(const NvmlApi& api, const std::string& uuid) {
  NvmlDevice* device = nullptr;
  const bool found =
      api.usable && api.device_by_uuid != nullptr && api.device_by_uuid(uuid.c_str(), &device) == kSuccess;
  return found ? device : nullptr;
}

struct ThrottleReason {
  std::uint64_t bit;
  const char* words;
};
// The bits of nvmlClocksEventReasons that mean that a GPU is slower than it is set to be. 0x1 (idle), 0x2 (application
// clocks) and 0x100 (display clocks) are settings, and 0x10 (sync boost) is about another GPU.
constexpr ThrottleReason kHarmful[] = {
    {0x4, "power cap"},         {0x8, "hardware slowdown"}, {0x20, "software thermal"},
    {0x40, "hardware thermal"}, {0x80, "power brake"},
};

}  // namespace

std::string driver_release() {
  const auto& api = nvml();
  std::array<char, 96> text{};
  if (!api.usable || api.driver_version == nullptr || api.driver_version(text.data(), text.size()) != kSuccess)
    return {};
  return text.data();
}

GpuState gpu_state(const std::string& uuid) {
  GpuState state;
  const auto& api = nvml();
  NvmlDevice* const device = device_of(api, uuid);
  if (device == nullptr) return state;
  state.known = true;
  unsigned value = 0;
  if (api.power_limit != nullptr && api.power_limit(device, &value) == kSuccess)
    state.power_limit_mw = static_cast<int>(value);
  if (api.power_usage != nullptr && api.power_usage(device, &value) == kSuccess)
    state.power_mw = static_cast<int>(value);
  if (api.temperature != nullptr && api.temperature(device, kTemperatureGpu, &value) == kSuccess) {
    state.temperature_c = static_cast<int>(value);
  }
  if (api.clock != nullptr && api.clock(device, kClockSm, &value) == kSuccess)
    state.sm_clock_mhz = static_cast<int>(value);
  if (api.clock != nullptr && api.clock(device, kClockMemory, &value) == kSuccess)
    state.memory_clock_mhz = static_cast<int>(value);
  unsigned long long reasons = 0;
  if (api.throttle_reasons != nullptr && api.throttle_reasons(device, &reasons) == kSuccess)
    state.throttle_reasons = reasons;
  return state;
}

int count_others(std::span<const unsigned> process_ids, unsigned self, unsigned parent) {
  const auto ours = [&](unsigned id) { return id == self || id == parent; };
  const auto others = std::count_if(process_ids.begin(), process_ids.end(), [&](unsigned id) { return !ours(id); });
  const bool numbered_otherwise = static_cast<std::size_t>(others) == process_ids.size();
  return static_cast<int>(numbered_otherwise ? std::max<std::ptrdiff_t>(others - 1, 0) : others);
}

GpuNeighbours gpu_neighbours(const std::string& uuid) {
  GpuNeighbours neighbours;
  const auto& api = nvml();
  NvmlDevice* const device = device_of(api, uuid);
  if (device == nullptr) return neighbours;
  NvmlUtilization utilization{};
  if (api.utilization != nullptr && api.utilization(device, &utilization) == kSuccess)
    neighbours.busy_percent = static_cast<int>(utilization.gpu);
  std::array<NvmlProcess, 256> listed{};
  unsigned count = static_cast<unsigned>(listed.size());
  if (api.processes == nullptr || api.processes(device, &count, listed.data()) != kSuccess) return neighbours;
  const auto self = static_cast<unsigned>(::getpid()), parent = static_cast<unsigned>(::getppid());
  std::vector<unsigned> ids;
  for (const NvmlProcess& process : std::span(listed).first(count)) {
    ids.push_back(process.pid);
    if (process.pid != self && process.pid != parent && process.used_bytes != kBytesUnknown)
      neighbours.bytes += static_cast<std::int64_t>(process.used_bytes);
  }
  neighbours.processes = count_others(ids, self, parent);
  if (neighbours.processes == 0) neighbours.bytes = 0;
  return neighbours;
}

GpuSettings gpu_settings(const std::string& uuid) {
  GpuSettings settings;
  const auto& api = nvml();
  NvmlDevice* const device = device_of(api, uuid);
  if (device == nullptr) return settings;
  settings.known = true;
  int mode = 0;
  unsigned value = 0;
  if (api.compute_mode != nullptr && api.compute_mode(device, &mode) == kSuccess) settings.compute_mode = mode;
  if (api.persistence_mode != nullptr && api.persistence_mode(device, &mode) == kSuccess) settings.persistence = mode;
  if (api.default_power_limit != nullptr && api.default_power_limit(device, &value) == kSuccess)
    settings.default_power_mw = static_cast<int>(value);
  if (api.application_clock != nullptr && api.application_clock(device, kClockSm, &value) == kSuccess)
    settings.application_clock_mhz = static_cast<int>(value);
  if (api.default_application_clock != nullptr && api.default_application_clock(device, kClockSm, &value) == kSuccess)
    settings.default_clock_mhz = static_cast<int>(value);
  return settings;
}

GpuInventory gpu_inventory() {
  GpuInventory inventory;
  const auto& api = nvml();
  unsigned count = 0;
  if (!api.usable || api.device_count == nullptr || api.device_count(&count) != kSuccess) return inventory;
  inventory.known = true;
  inventory.gpus = static_cast<int>(count);
  for (unsigned index = 0; index < count && api.device_by_index != nullptr; ++index) {
    NvmlDevice* device = nullptr;
    if (api.device_by_index(index, &device) != kSuccess) continue;
    unsigned mig = 0, pending = 0;
    int mode = 0;
    if (api.mig_mode != nullptr && api.mig_mode(device, &mig, &pending) == kSuccess && mig == kMigEnabled)
      ++inventory.in_mig_mode;
    if (api.compute_mode != nullptr && api.compute_mode(device, &mode) == kSuccess && mode == kComputeProhibited)
      ++inventory.prohibited;
  }
  return inventory;
}

int joined_by_nvlink(const std::string& uuid, const std::string& other) {
  const auto& api = nvml();
  NvmlDevice* const device = device_of(api, uuid);
  NvmlDevice* const peer = device_of(api, other);
  int status = 0;
  if (device == nullptr || peer == nullptr || api.p2p_status == nullptr ||
      api.p2p_status(device, peer, kP2pOverNvlink, &status) != kSuccess)
    return -1;
  return status == kP2pOk ? 1 : 0;
}

std::string neighbours_text(const GpuNeighbours& neighbours) {
  if (neighbours.processes == 0) return {};
  return "shared with " + std::to_string(neighbours.processes) +
         (neighbours.processes == 1 ? " other process" : " other processes") +
         (neighbours.busy_percent > 0 ? ", " + std::to_string(neighbours.busy_percent) + " % busy" : "");
}

std::string throttle_text(std::uint64_t throttle_reasons) {
  std::string text;
  for (const auto& reason : kHarmful) {
    if ((throttle_reasons & reason.bit) == 0) continue;
    if (!text.empty()) text += ", ";
    text += reason.words;
  }
  return text;
}

}  // namespace v1
}  // namespace leanattn
