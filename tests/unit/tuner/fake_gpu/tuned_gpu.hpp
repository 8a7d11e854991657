// tuned_gpu.hpp -- tuned_gpu(): a fictional Hopper GPU that has what tuning asks for. Test code.
#pragma once

#include <cstdint>

#include "runtime/cuda/loaded_kernel.hpp"
#include "tests/unit/runtime/fake_cuda.hpp"

namespace leanattn {

/// So many of them, without launches yet.
inline FakeGpu tuned_gpu(int devices = 1) {
  FakeGpu gpu;
  gpu.devices = devices;
  gpu.memory_bytes = std::int64_t{4} << 30;
  gpu.argument_bytes = sizeof(LeanDecodeArgs);
  gpu.attributes = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
                    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
                    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
                    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
                    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
                    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32}};
  return gpu;
}

}  // namespace leanattn
