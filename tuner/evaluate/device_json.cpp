// device_json.cpp -- the facts of a device and of its present environment, as one object.
#include "tuner/evaluate/device_json.hpp"

#include <nlohmann/json.hpp>

#include "runtime/lookup/device_identity.hpp"

namespace leanattn {
inline namespace v1 {

nlohmann::ordered_json device_json(const DeviceFacts& device) {
  const Environment environment = current_environment(device);
  return {{"name", device.name},
          {"arch", to_string(device.arch)},
          {"sm_count", device.sm_count},
          {"l2_bytes", device.l2_bytes},
          {"memory_bytes", device.memory_bytes},
          {"ecc", device.ecc},
          {"clock_khz", environment.clock_khz},
          {"memory_clock_khz", environment.memory_clock_khz},
          {"power_limit_mw", environment.power_limit_mw},
          {"driver_version", environment.driver_version},
          {"driver_release", environment.driver_release},
          {"nvrtc_version", environment.nvrtc_version}};
}

}  // namespace v1
}  // namespace leanattn
