// device.hpp -- DeviceFacts: what the generator, tuner and cache need to know of a GPU. Plain data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

struct DeviceFacts {
  int ordinal = -1;  ///< CUDA ordinal; -1 for facts made up from an arch
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-..." or empty
  Arch arch;         ///< what to generate for
  int sm_count = 0;  ///< SMs visible to the caller: fewer in a MIG slice, an MPS partition, a green context
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int shared_bytes_per_sm = 0;
  int shared_bytes_per_cta = 0;  ///< opt-in maximum
  int registers_per_sm = 65536;
  int threads_per_sm = 2048;
  int ctas_per_sm_limit = 32;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  bool ecc = false;
  int driver_version = 0;      ///< as cuDriverGetVersion: 13000
  std::string driver_release;  ///< "580.159.04" when NVML tells, else empty
};

/// All CUDA devices. Errors: no_driver, no_device (none).
Result<std::vector<DeviceFacts>> list_devices();
/// One device. Errors: no_driver, no_device (names the ordinal and how many there are).
Result<DeviceFacts> device_facts(int ordinal);
/// Facts for offline work, from the compute-capability tables; sm_count as given. Errors: unsupported.
Result<DeviceFacts> facts_for_arch(Arch arch, int sm_count);

/// CTAs of this kernel one SM holds, from registers, shared memory and threads (the occupancy calculator's rules).
int resident_ctas_per_sm(const DeviceFacts& device, int registers_per_thread, int threads, int shared_bytes);

/// Bytes per microsecond that one SM's share of memory delivers, guessed from the generation and the memory's size: HBM
/// parts have about three times that of GDDR parts.
double memory_rate_per_sm(const DeviceFacts& device);

}  // namespace v1
}  // namespace leanattn
