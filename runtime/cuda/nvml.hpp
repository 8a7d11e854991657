// nvml.hpp -- what only NVML knows: driver release, power limit, throttle reasons, other processes. Without NVML every
// answer is empty. Thread-safe. NVML is opened once and never closed.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace leanattn {
inline namespace v1 {

/// The release of the driver, such as "580.159.04", or empty.
std::string driver_release();

/// How fast a GPU runs at this moment, and what slows it down.
struct GpuState {
  bool known = false;      ///< false: there is no NVML, or it does not know the GPU
  int power_limit_mw = 0;  ///< the limit in force
  int power_mw = 0;        ///< what the GPU draws
  int temperature_c = 0;
  int sm_clock_mhz = 0;
  int memory_clock_mhz = 0;
  std::uint64_t throttle_reasons = 0;  ///< the bits of NVML's clocks event reasons
};

/// The state of the GPU with this UUID ("GPU-...", as in DeviceFacts::uuid; that of a MIG slice where NVML allows it).
/// Takes 10 to 100 us, so it must not be called for every launch.
GpuState gpu_state(const std::string& uuid);

/// The other processes on a GPU.
struct GpuNeighbours {
  int processes = 0;       ///< with a compute context, without this process and its parent
  int busy_percent = 0;    ///< share of NVML's last period in which any kernel ran, also of this process
  std::int64_t bytes = 0;  ///< device memory that they hold, as far as NVML knows
};

/// The other processes on the GPU with this UUID. In a container NVML may use other process numbers than this process
/// sees; then one of those that it lists is taken to be this one. Takes some 100 us.
GpuNeighbours gpu_neighbours(const std::string& uuid);

/// How many of the process numbers that NVML lists belong to others (for gpu_neighbours() and its test).
int count_others(std::span<const unsigned> process_ids, unsigned self, unsigned parent);

/// The settings of a GPU by its administrator; 0 or -1 where NVML does not know.
struct GpuSettings {
  bool known = false;
  int compute_mode = 0;           ///< as nvmlComputeMode_t: 0 default, 2 prohibited, 3 one process at a time
  int persistence = -1;           ///< 1: the driver stays loaded while nobody uses the GPU
  int default_power_mw = 0;       ///< power limit from the factory
  int application_clock_mhz = 0;  ///< SM clock that was set
  int default_clock_mhz = 0;      ///< SM clock from the factory
};

/// The settings of the GPU with this UUID. Takes some 100 us.
GpuSettings gpu_settings(const std::string& uuid);

/// The GPUs that NVML sees, also where CUDA sees none.
struct GpuInventory {
  bool known = false;   ///< false: there is no NVML
  int gpus = 0;         ///< number of GPUs
  int in_mig_mode = 0;  ///< how many of them are cut into MIG slices
  int prohibited = 0;   ///< how many of them have a compute mode that admits no process
};
GpuInventory gpu_inventory();

/// Whether NVLink joins two GPUs, by their UUIDs; -1 where NVML does not know.
int joined_by_nvlink(const std::string& uuid, const std::string& other);

/// A text such as "shared with 2 other processes, 35 % busy"; empty where there are none.
std::string neighbours_text(const GpuNeighbours& neighbours);

/// Those of the throttle reasons that make measurements slower, in words such as "power cap, hardware thermal"; empty
/// when there are none. An idle GPU and clocks that were set are no such reasons.
std::string throttle_text(std::uint64_t throttle_reasons);

}  // namespace v1
}  // namespace leanattn
