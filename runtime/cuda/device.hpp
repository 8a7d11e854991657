// device.hpp -- DeviceFacts: what the generator, the tuner and the cache need to know of a GPU. Plain data; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"

struct CUstream_st;

namespace leanattn {
inline namespace v1 {

struct DeviceFacts {
  int ordinal = -1;  ///< CUDA ordinal; -1 for a GPU that this machine does not have
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-..." or empty
  Arch arch;         ///< for which kernels are generated
  int sm_count = 0;  ///< SMs that the caller may use: fewer in a MIG slice, an MPS partition or a green context
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  int shared_bytes_per_sm = 0;
  int shared_bytes_per_cta = 0;  ///< the most that a kernel can opt in to
  int registers_per_sm = 65536;
  int threads_per_sm = 2048;
  int ctas_per_sm_limit = 32;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  bool ecc = false;
  int driver_version = 0;      ///< as cuDriverGetVersion: 13000
  std::string driver_release;  ///< such as "580.159.04"; empty without NVML
};

/// "GPU-...", or for a MIG slice "MIG-...": the driver's UUID as DeviceFacts and NVML have it.
std::string uuid_text(std::span<const char, 16> uuid, bool mig);

/// All visible GPUs. Errors: no_driver, no_device (there are none).
Result<std::vector<DeviceFacts>> list_devices();
/// One GPU. Errors: no_driver, no_device (names the ordinal and how many there are).
Result<DeviceFacts> device_facts(int ordinal);
/// The SMs that launches in the current context may use: fewer than the device has in a green context or an MPS
/// partition. Errors: context_lost, internal (no context is current).
Result<int> current_sm_count();
/// The SMs that launches on `stream` may use, of the `sm_count` of its context: fewer for a stream of a green context.
/// What the driver does not know is `sm_count`.
int stream_sm_count(CUstream_st* stream, int sm_count);
/// The facts of a GPU that is not here, from the tables of compute capabilities and the given number of SMs. Errors:
/// invalid_argument, unsupported.
Result<DeviceFacts> facts_for_arch(Arch arch, int sm_count);

/// The number of CTAs of a kernel that one SM holds, from registers, shared memory and threads, by the rules of CUDA's
/// occupancy calculator.
int resident_ctas_per_sm(const DeviceFacts& device, int registers_per_thread, int threads, int shared_bytes);

/// The memory's rate over the number of SMs, in bytes a microsecond: a guess from the generation and the size of the
/// memory. GPUs with HBM have about three times as much as those with GDDR.
double memory_rate_per_sm(const DeviceFacts& device);

}  // namespace v1
}  // namespace leanattn
