// device.cpp -- facts from the driver or from the compute-capability tables, and the occupancy calculator.
#include "runtime/cuda/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/integers.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvml.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Limits of one SM (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"), and the L2 size of
/// the arch's largest product, which stands for a GPU that is not here.
struct ArchLimits {
  int major, minor;
  int threads_per_sm;
  int ctas_per_sm;
  int l2_mib;
};
constexpr ArchLimits kArchLimits[] = {
    {8, 0, 2048, 32, 40},  {8, 6, 1536, 16, 6},   {8, 7, 1536, 16, 4},    {8, 8, 1536, 16, 6},
    {8, 9, 1536, 24, 72},  {9, 0, 2048, 32, 50},  {10, 0, 2048, 32, 126}, {10, 3, 2048, 32, 126},
    {11, 0, 1536, 24, 32}, {12, 0, 1536, 24, 96}, {12, 1, 1536, 24, 24},
};

constexpr int kWarpSize = 32;
constexpr int kThreadsPerCtaLimit = 1024;
constexpr int kRegistersPerThreadLimit = 255;
constexpr int kRegisterGranularity = 256;  // per warp
constexpr int kSubPartitions = 4;          // of an SM, each with its own quarter of the registers
constexpr int kSharedGranularity = 128;    // bytes
constexpr int kSharedReserved = 1024;      // bytes of every CTA, taken by the driver (compute capability 8.0 and later)

/// The number of SMs that the calling thread may use. The device's own count already allows for MIG slices and for MPS.
/// A context may have fewer (a green context, MPS partitions); the current one counts, if it is on this device.
int sms_of_context(const DriverApi& api, CUdevice device, int device_sm_count) {
#if CUDA_VERSION >= 12040
  CUcontext context = nullptr;
  CUdevice of_context = 0;
  if (api.cuCtxGetDevResource == nullptr || api.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr ||
      api.cuCtxGetDevice(&of_context) != CUDA_SUCCESS || of_context != device) {
    return device_sm_count;
  }
  CUdevResource resource{};
  if (api.cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return device_sm_count;
  const auto sms = static_cast<int>(std::min(resource.sm.smCount, static_cast<unsigned>(device_sm_count)));
  return sms > 0 ? sms : device_sm_count;
#else
  static_cast<void>(api), static_cast<void>(device);
  return device_sm_count;
#endif
}

Result<DeviceFacts> read_facts(const DriverApi& api, int ordinal) {
  CUdevice device = 0;
  if (const auto ok = check(api.cuDeviceGet(&device, ordinal), "cuDeviceGet", ErrorCode::no_device); !ok)
    return tl::unexpected(ok.error());
  Result<void> ok;
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    if (auto read = check(api.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute"); !read && ok)
      ok = std::move(read);
    return value;
  };
  DeviceFacts facts;
  facts.ordinal = ordinal;
  facts.arch = arch_for_compute_capability(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                                           attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  facts.sm_count = sms_of_context(api, device, attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  facts.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  facts.shared_bytes_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  facts.shared_bytes_per_cta = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  facts.registers_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  facts.threads_per_sm = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  facts.ctas_per_sm_limit = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  facts.clock_khz = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  facts.memory_clock_khz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  facts.ecc = attribute(CU_DEVICE_ATTRIBUTE_ECC_ENABLED) != 0;
  if (!ok) return tl::unexpected(ok.error());

  std::array<char, 256> name{};
  if (const auto read = check(api.cuDeviceGetName(name.data(), name.size() - 1, device), "cuDeviceGetName"); !read) {
    return tl::unexpected(read.error());
  }
  facts.name = name.data();
  std::size_t memory = 0;
  if (const auto read = check(api.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem"); !read)
    return tl::unexpected(read.error());
  facts.memory_bytes = static_cast<std::int64_t>(memory);
  CUuuid uuid{};
  // A MIG slice has its profile in its name, as in "NVIDIA H200 MIG 1g.18gb", and another prefix in its UUID.
  if (api.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
    facts.uuid = uuid_text(uuid.bytes, facts.name.find(" MIG ") != std::string::npos);
  facts.driver_version = api.version;
  facts.driver_release = driver_release();
  return facts;
}

Result<int> device_count(const DriverApi& api) {
  int count = 0;
  if (const auto ok = check(api.cuDeviceGetCount(&count), "cuDeviceGetCount", ErrorCode::no_device); !ok)
    return tl::unexpected(ok.error());
  return count;
}

}  // namespace

std::string uuid_text(std::span<const char, 16> uuid, bool mig) {
  std::string text = mig ? "MIG" : "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid[static_cast<std::size_t>(i)]));
  }
  return text;
}

Result<int> current_sm_count() {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  CUdevice device = 0;
  if (const auto ok = check((*api)->cuCtxGetDevice(&device), "cuCtxGetDevice"); !ok) return tl::unexpected(ok.error());
  int count = 0;
  const auto ok = check((*api)->cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
                        "cuDeviceGetAttribute");
  if (!ok) return tl::unexpected(ok.error());
  return sms_of_context(**api, device, count);
}

int stream_sm_count(CUstream_st* stream, int sm_count) {
#if CUDA_VERSION >= 12050
  const auto api = driver();
  // Without both functions the driver has no green contexts with streams of their own.
  if (!api || stream == nullptr || (*api)->cuStreamGetCtx_v2 == nullptr || (*api)->cuGreenCtxGetDevResource == nullptr)
    return sm_count;
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  CUdevResource resource{};
  if ((*api)->cuStreamGetCtx_v2(stream, &context, &green) != CUDA_SUCCESS || green == nullptr ||
      (*api)->cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
    return sm_count;
  }
  const auto sms = static_cast<int>(std::min(resource.sm.smCount, static_cast<unsigned>(sm_count)));
  return sms > 0 ? sms : sm_count;
#else
  static_cast<void>(stream);
  return sm_count;
#endif
}

Result<std::vector<DeviceFacts>> list_devices() {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const auto count = device_count(**api);
  if (!count) return tl::unexpected(count.error());
  if (*count == 0) {
    return fail(ErrorCode::no_device, "the driver sees no CUDA device",
                "Look at CUDA_VISIBLE_DEVICES and, in a container, at its --gpus option.");
  }
  std::vector<DeviceFacts> devices;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    auto facts = read_facts(**api, ordinal);
    if (!facts) return tl::unexpected(facts.error());
    devices.push_back(std::move(*facts));
  }
  return devices;
}

Result<DeviceFacts> device_facts(int ordinal) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const auto count = device_count(**api);
  if (!count) return tl::unexpected(count.error());
  if (ordinal < 0 || ordinal >= *count) {
    return fail(ErrorCode::no_device, fmt::format("there is no CUDA device {}: {} visible", ordinal, *count),
                "Devices count from 0; CUDA_VISIBLE_DEVICES decides which there are.");
  }
  return read_facts(**api, ordinal);
}

Result<DeviceFacts> facts_for_arch(Arch arch, int sm_count) {
  if (sm_count < 1 || sm_count > 4096) {
    return fail(ErrorCode::invalid_argument, fmt::format("a device with {} SMs was asked for", sm_count),
                "Give the SM count of the GPU, e.g. 132.");
  }
  const auto* limits = std::find_if(std::begin(kArchLimits), std::end(kArchLimits), [&](const ArchLimits& row) {
    return row.major == arch.major && row.minor == arch.minor;
  });
  if (limits == std::end(kArchLimits)) {
    return fail(ErrorCode::unsupported, fmt::format("nothing is known of {}", to_string(arch)),
                "Known: sm_80, 86, 87, 88, 89, 90, 100, 103, 110, 120 and 121, with or without a trailing a.");
  }
  DeviceFacts facts;
  facts.name = to_string(arch);
  facts.arch = arch;
  facts.sm_count = sm_count;
  facts.l2_bytes = std::int64_t{limits->l2_mib} << 20;
  facts.shared_bytes_per_sm = shared_bytes_per_sm(arch);
  facts.shared_bytes_per_cta = max_shared_bytes_per_cta(arch);
  facts.threads_per_sm = limits->threads_per_sm;
  facts.ctas_per_sm_limit = limits->ctas_per_sm;
  return facts;
}

int resident_ctas_per_sm(const DeviceFacts& device, int registers_per_thread, int threads, int shared_bytes) {
  if (threads < 1 || threads > kThreadsPerCtaLimit || registers_per_thread > kRegistersPerThreadLimit) return 0;
  if (shared_bytes > device.shared_bytes_per_cta) return 0;
  const int warps = divide_up(threads, kWarpSize);
  int resident = std::min(device.ctas_per_sm_limit, device.threads_per_sm / kWarpSize / warps);
  if (registers_per_thread > 0) {
    const int registers_per_warp = round_up(registers_per_thread * kWarpSize, kRegisterGranularity);
    // A warp lives in one sub-partition, so what is left over in each of them is lost.
    const int warps_per_partition = device.registers_per_sm / kSubPartitions / registers_per_warp;
    resident = std::min(resident, warps_per_partition * kSubPartitions / warps);
  }
  const int shared_per_cta = round_up(std::max(shared_bytes, 0) + kSharedReserved, kSharedGranularity);
  return std::min(resident, device.shared_bytes_per_sm / shared_per_cta);
}

double memory_rate_per_sm(const DeviceFacts& device) {
  if (device.arch.major == 8 && device.arch.minor == 0) return 16e3;
  if (device.arch.major == 9) return device.memory_bytes > (100ll << 30) ? 34.8e3 : 23e3;
  if (device.arch.major == 10) return 48e3;
  if (device.arch.major == 12) return 9e3;
  return 8e3;
}

}  // namespace v1
}  // namespace leanattn
