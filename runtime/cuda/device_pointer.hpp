// device_pointer.hpp -- what the driver says of pointers that callers give. Any thread; the context must be current.
#pragma once

#include <cstdint>

#include "leanattn/error.hpp"
#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {

/// Whether CUDA knows the pointer, which also holds for pinned host memory. Errors: invalid_argument, with its name and
/// value; context_lost.
Result<void> check_cuda_pointer(const DriverApi& api, const char* name, const void* pointer);

/// Bytes from `pointer` to the end of its allocation; 0 when the driver does not know.
std::int64_t bytes_from(const DriverApi& api, const void* pointer);

/// Bytes from the start of its allocation to `pointer`; 0 when the driver does not know.
std::int64_t bytes_before(const DriverApi& api, const void* pointer);

}  // namespace v1
}  // namespace leanattn
