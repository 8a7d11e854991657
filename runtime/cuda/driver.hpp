// driver.hpp -- DriverApi: libcuda, opened at run time, as one table of the functions that we use. Thread-safe. It is
// opened once and never closed.
#pragma once

#include <cuda.h>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// All driver functions without which the library cannot work, as X(name).
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

/// Functions without which groups of GPUs do not work; null where the driver has none.
// clang-format off
#define LEANATTN_GROUP_DRIVER_FUNCTIONS(X) \
  X(cuDeviceCanAccessPeer) X(cuCtxEnablePeerAccess) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle)
// clang-format on

/// Functions that not every driver has; null where the driver has none.
#if CUDA_VERSION >= 12050
#define LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(X) \
  LEANATTN_GROUP_DRIVER_FUNCTIONS(X) X(cuCtxGetDevResource) X(cuGreenCtxGetDevResource) X(cuStreamGetCtx_v2)
#elif CUDA_VERSION >= 12040
#define LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(X) LEANATTN_GROUP_DRIVER_FUNCTIONS(X) X(cuCtxGetDevResource)
#else
#define LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(X) LEANATTN_GROUP_DRIVER_FUNCTIONS(X)
#endif

/// The table. Each function has the type that cuda.h declares for its name.
struct DriverApi {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_DRIVER_FUNCTIONS(LEANATTN_DECLARE)
  LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(LEANATTN_DECLARE)
#undef LEANATTN_DECLARE
  int version = 0;  ///< as from cuDriverGetVersion, such as 13000
};

/// The table, after cuInit. The first call opens the library and decides for the life of the process; later calls only
/// read the result. Errors: no_driver (no library, or cuInit fails), driver_too_old (a function is missing), no_device
/// (cuInit finds no GPU), context_lost (the process was forked from one that had started CUDA).
Result<const DriverApi*> driver();

/// Turns the status of a driver call into a result. Errors: context_lost for sticky errors, out_of_memory, and `code`
/// for all others, with the name of the call and the words of the driver.
Result<void> check(CUresult status, const char* call, ErrorCode code = ErrorCode::internal);

/// Whether CUDA captures the stream into a graph; true where it cannot say. Work of such a stream cannot be waited for.
bool may_be_capturing(const DriverApi& api, CUstream_st* stream);

/// Whether this status means that the CUDA context is broken, as by an illegal address, a launch timeout or a trap.
bool is_sticky(CUresult status);

}  // namespace v1
}  // namespace leanattn
