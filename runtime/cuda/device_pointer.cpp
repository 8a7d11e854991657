// device_pointer.cpp -- asks the driver about pointers.
#include "runtime/cuda/device_pointer.hpp"

#include <fmt/format.h>

namespace leanattn {
inline namespace v1 {

Result<void> check_cuda_pointer(const DriverApi& api, const char* name, const void* pointer) {
  unsigned type = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  const CUresult status = api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (is_sticky(status)) return check(status, "cuPointerGetAttribute");
  if (status == CUDA_SUCCESS) return {};
  return fail(ErrorCode::invalid_argument, fmt::format("{} is {}, which CUDA did not allocate", name, pointer),
              "Give device memory (memory that only the operating system knows is refused here).");
}

std::int64_t bytes_from(const DriverApi& api, const void* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr start = 0;
  std::size_t size = 0;
  if (api.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) != CUDA_SUCCESS ||
      api.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) != CUDA_SUCCESS) {
    return 0;
  }
  return static_cast<std::int64_t>(size - (address - start));
}

std::int64_t bytes_before(const DriverApi& api, const void* pointer) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr start = 0;
  if (api.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) != CUDA_SUCCESS) return 0;
  return static_cast<std::int64_t>(address - start);
}

}  // namespace v1
}  // namespace leanattn
