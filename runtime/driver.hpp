// driver.hpp -- libcuda by dlopen: one table of the entry points we use. Thread-safe; opened once, never closed.
#pragma once

#include <cuda.h>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Every driver entry point the library cannot do without, X(name).
// clang-format off
#define LEANATTN_DRIVER_FUNCTIONS(X) \
  X(cuGetErrorName) X(cuGetErrorString) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) \
  X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceGetAttribute) X(cuDeviceTotalMem) X(cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
  X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuMemAlloc) X(cuMemFree) X(cuMemGetInfo) X(cuMemAllocHost) \
  X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async) \
  X(cuMemsetD16Async) X(cuMemsetD32Async) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) \
  X(cuStreamIsCapturing) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiate) X(cuGraphLaunch) \
  X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) \
  X(cuEventSynchronize) X(cuEventQuery) X(cuEventElapsedTime) X(cuLibraryLoadData) X(cuLibraryUnload) \
  X(cuLibraryGetKernel) X(cuKernelGetFunction) X(cuFuncSetAttribute) X(cuFuncGetAttribute) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuLaunchKernelEx) X(cuTensorMapEncodeTiled) X(cuPointerGetAttribute) \
  X(cuThreadExchangeStreamCaptureMode)
// clang-format on

/// Those that newer drivers have: null where this one does not.
#if CUDA_VERSION >= 12040
#define LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(X) X(cuCtxGetDevResource)
#else
#define LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(X)
#endif

/// The table. Each entry has the type that cuda.h declares for its name.
struct DriverApi {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_DRIVER_FUNCTIONS(LEANATTN_DECLARE)
  LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(LEANATTN_DECLARE)
#undef LEANATTN_DECLARE
  int version = 0;  ///< as cuDriverGetVersion: 13000
};

/// The table, after cuInit. The first call decides for the life of the process; later ones are a load.
/// Errors: no_driver (missing library, cuInit failure), driver_too_old (an entry point is missing), no_device (cuInit
/// found no GPU), context_lost (the process was forked from one that had started CUDA). Each names what was wrong and a
/// way out.
Result<const DriverApi*> driver();

/// CUDA_SUCCESS -> ok; else `code`, or context_lost for the sticky errors, or out_of_memory, with the call's name and
/// the driver's own words.
Result<void> check(CUresult status, const char* call, ErrorCode code = ErrorCode::internal);

/// Whether this status means that the CUDA context can do nothing more (illegal address, launch timeout, trap ...).
bool is_sticky(CUresult status);

}  // namespace v1
}  // namespace leanattn
