// nvml.hpp -- what only NVML tells: driver release, power limit, throttle reasons. Optional: without NVML every answer
// is empty. Thread-safe; opened once, never closed.
#pragma once

#include <cstdint>
#include <string>

namespace leanattn {
inline namespace v1 {

/// "580.159.04", or empty.
std::string driver_release();

/// What slows a GPU down right now, and how fast it runs.
struct GpuState {
  bool known = false;      ///< false: no NVML, or it does not know the device
  int power_limit_mw = 0;  ///< enforced limit
  int power_mw = 0;        ///< drawn now
  int temperature_c = 0;
  int sm_clock_mhz = 0;                ///< now
  int memory_clock_mhz = 0;            ///< now
  std::uint64_t throttle_reasons = 0;  ///< NVML's clocks event reasons, as it gives them
};

/// State of the device with this UUID ("GPU-..." as DeviceFacts::uuid; a MIG slice's works where NVML allows it). Some
/// 10-100 us: never on a launch path.
GpuState gpu_state(const std::string& uuid);

/// The harmful part of throttle_reasons in words, e.g. "power cap, hardware thermal"; empty when nothing slows the
/// clocks. Idle and clocks that somebody set are not harmful.
std::string throttle_text(std::uint64_t throttle_reasons);

}  // namespace v1
}  // namespace leanattn
