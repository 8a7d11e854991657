// nvml.cpp -- a dozen NVML entry points by dlopen. NVML's header is not part of what we need to build, so the few
// prototypes and constants are declared here, after the NVML API reference.
#include "runtime/nvml.hpp"

#include <array>

#include "runtime/dynamic_library.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

struct NvmlDevice;
constexpr int kSuccess = 0;
constexpr unsigned kTemperatureGpu = 0;
constexpr unsigned kClockSm = 1, kClockMemory = 2;

struct NvmlApi {
  int (*init)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_by_uuid)(const char*, NvmlDevice**) = nullptr;
  int (*power_limit)(NvmlDevice*, unsigned*) = nullptr;
  int (*power_usage)(NvmlDevice*, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*clock)(NvmlDevice*, unsigned, unsigned*) = nullptr;
  int (*throttle_reasons)(NvmlDevice*, unsigned long long*) = nullptr;
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
  // Renamed in CUDA 12.2; the old name still answers.
  resolve(api.throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  if (api.throttle_reasons == nullptr) resolve(api.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  api.usable = api.init != nullptr && api.init() == kSuccess;
  return api;
}

const NvmlApi& nvml() {
  static const NvmlApi api = open_nvml();
  return api;
}

struct ThrottleReason {
  std::uint64_t bit;
  const char* words;
};
// Bits of nvmlClocksEventReasons that mean "slower than asked for". 0x1 (idle), 0x2 (application clocks) and 0x100
// (display clocks) are settings, 0x10 (sync boost) is another GPU's state.
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
  NvmlDevice* device = nullptr;
  if (!api.usable || api.device_by_uuid == nullptr || api.device_by_uuid(uuid.c_str(), &device) != kSuccess)
    return state;
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
