// nvml.hpp -- what only NVML tells: driver release, power limit, throttle reasons, other processes. Optional: without
// NVML every answer is empty. Thread-safe; opened once, never closed.
#pragma once

#include <cstdint>
#include <span>
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

/// Who else is on a GPU.
struct GpuNeighbours {
  int processes = 0;       ///< with a compute context on it, beside this one and its parent
  int busy_percent = 0;    ///< of the last sample period in which any kernel ran, ours included
  std::int64_t bytes = 0;  ///< of device memory that they hold, as far as NVML says
};

/// Compute processes on the device with this UUID, without this process and its parent. Where processes are numbered in
/// another way than here (containers), one of them is taken for this one. Some 100 us.
GpuNeighbours gpu_neighbours(const std::string& uuid);

/// Of the ids that NVML lists, how many are somebody else's. Exposed for tests.
int count_others(std::span<const unsigned> process_ids, unsigned self, unsigned parent);

/// How an administrator set a GPU up. 0 or -1 where NVML does not say.
struct GpuSettings {
  bool known = false;
  int compute_mode = 0;           ///< as nvmlComputeMode_t: 0 default, 2 prohibited, 3 one process at a time
  int persistence = -1;           ///< 1: the driver stays loaded while nobody uses the GPU
  int default_power_mw = 0;       ///< power limit it came with
  int application_clock_mhz = 0;  ///< SM clock that somebody asked for
  int default_clock_mhz = 0;      ///< and the one it came with
};

/// Of the device with this UUID. Some 100 us.
GpuSettings gpu_settings(const std::string& uuid);

/// What NVML sees where CUDA may see nothing.
struct GpuInventory {
  bool known = false;  ///< false: no NVML
  int gpus = 0;
  int in_mig_mode = 0;  ///< of them, those that are cut into MIG slices
  int prohibited = 0;   ///< of them, those whose compute mode lets nobody in
};
GpuInventory gpu_inventory();

/// "shared with 2 other processes, 35 % busy", or empty for none.
std::string neighbours_text(const GpuNeighbours& neighbours);

/// The harmful part of throttle_reasons in words, e.g. "power cap, hardware thermal"; empty when nothing slows the
/// clocks. Idle and clocks that somebody set are not harmful.
std::string throttle_text(std::uint64_t throttle_reasons);

}  // namespace v1
}  // namespace leanattn
