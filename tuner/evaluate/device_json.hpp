// device_json.hpp -- what the JSON documents of benchmarks say of the machine that they were measured on. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/cuda/device.hpp"

namespace leanattn {
inline namespace v1 {

/// One JSON object: the GPU (name, arch, SMs, L2 and memory in bytes, ECC), its clocks in kHz and power limit in mW as
/// they are at the time of the call, and the versions of driver and NVRTC. What cannot be found out is 0 or empty.
nlohmann::ordered_json device_json(const DeviceFacts& device);

}  // namespace v1
}  // namespace leanattn
