// driver.cpp -- fills DriverApi from libcuda.so.1 and turns CUresult into Error.
#include "runtime/cuda/driver.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cache/files.hpp"
#include "runtime/cuda/dynamic_library.hpp"
#include "runtime/cuda/process_mark.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

// Two levels, so that the argument is expanded first: cuda.h renames entry points to their versioned symbols with
// macros.
#define LEANATTN_STRING(name) #name
#define LEANATTN_SYMBOL(name) LEANATTN_STRING(name)

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

/// Finds a function, first under `symbol`, the versioned name to which cuda.h maps its prototype, as a linker would.
/// Only this guarantees that the signature is the header's. cuGetProcAddress comes second, for drivers that are older
/// than the header, because for a plain name it may return a newer signature than the header has (at 13.0, those of
/// cuCtxGetDevice and cuCtxSynchronize).
void* find(const DynamicLibrary& library, GetProcAddress get_proc_address, const char* symbol, const char* name) {
  if (void* address = library.symbol(symbol)) return address;
  if (get_proc_address == nullptr) return nullptr;
  void* address = nullptr;
  if (get_proc_address(name, &address, CUDA_VERSION, 0, nullptr) != CUDA_SUCCESS) return nullptr;
  return address;
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Result<const DriverApi*> start_failure(CUresult status, const DriverApi& api) {
  const char* name = nullptr;
  const char* words = nullptr;
  api.cuGetErrorName(status, &name);
  api.cuGetErrorString(status, &words);
  const auto message =
      fmt::format("the CUDA driver does not start: cuInit: {} ({}): {}", name != nullptr ? name : "unknown error",
                  static_cast<int>(status), words != nullptr ? words : "no description");
  switch (status) {
    case CUDA_ERROR_NO_DEVICE:
      return fail(ErrorCode::no_device, message,
                  "No GPU is visible: look at CUDA_VISIBLE_DEVICES and, in a container, at its --gpus option.");
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return fail(
          ErrorCode::no_driver, message,
          "libcuda and the kernel module are of different versions: reboot after a driver update, or take a CUDA "
          "compatibility package out of LD_LIBRARY_PATH.");
    case CUDA_ERROR_STUB_LIBRARY:
      return fail(ErrorCode::no_driver, message,
                  "This libcuda is the CUDA toolkit's stub for linking, not a driver: take its stubs directory out of "
                  "LD_LIBRARY_PATH.");
    default:
      return fail(ErrorCode::no_driver, message,
                  "Run nvidia-smi: when that fails too, install or repair the NVIDIA driver. In a container, pass the "
                  "GPU through.");
  }
}

Result<const DriverApi*> open_driver() {
  std::vector<std::string> candidates{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"};
  std::string failures;
  const auto library = DynamicLibrary::open_first(candidates, &failures);
  if (!library) {
    return tl::unexpected(
        detail::cannot_open({ErrorCode::no_driver, "the NVIDIA driver library libcuda.so.1 cannot be loaded",
                             "Install the NVIDIA driver, or run where a GPU is.", failures}));
  }
  using Init = CUresult (*)(unsigned);
  const auto init = reinterpret_cast<Init>(library.symbol("cuInit"));
  const auto get_proc_address = reinterpret_cast<GetProcAddress>(library.symbol("cuGetProcAddress_v2"));
  static DriverApi api;
  std::string missing;
  if (init == nullptr) missing += " cuInit";
#define LEANATTN_RESOLVE(name) \
  api.name = reinterpret_cast<decltype(api.name)>(find(library, get_proc_address, LEANATTN_SYMBOL(name), #name));
#define LEANATTN_REQUIRE(name) \
  LEANATTN_RESOLVE(name)       \
  if (api.name == nullptr) missing += " " #name;
  LEANATTN_DRIVER_FUNCTIONS(LEANATTN_REQUIRE)
  LEANATTN_OPTIONAL_DRIVER_FUNCTIONS(LEANATTN_RESOLVE)
#undef LEANATTN_REQUIRE
#undef LEANATTN_RESOLVE
  if (api.cuDriverGetVersion != nullptr) api.cuDriverGetVersion(&api.version);
  if (!missing.empty()) {
    return fail(ErrorCode::driver_too_old,
                fmt::format("the NVIDIA driver (CUDA {}) lacks entry points:{}", version_text(api.version), missing),
                "Install a driver for CUDA 12.0 or newer (525.60 or later).");
  }
  if (const CUresult status = init(0); status != CUDA_SUCCESS) return start_failure(status, api);
  return &api;
}

}  // namespace

Result<const DriverApi*> driver() {
  static const Result<const DriverApi*> opened = open_driver();
  static const ProcessMark mark;
  if (opened && !mark.here()) [[unlikely]]
    return tl::unexpected(ProcessMark::forked());
  return opened;
}

bool may_be_capturing(const DriverApi& api, CUstream_st* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool is_sticky(CUresult status) {
  switch (status) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return true;
    default: return false;
  }
}

Result<void> check(CUresult status, const char* call, ErrorCode code) {
  if (status == CUDA_SUCCESS) [[likely]]
    return {};
  const char* name = nullptr;
  const char* words = nullptr;
  if (const auto api = driver()) {
    (*api)->cuGetErrorName(status, &name);
    (*api)->cuGetErrorString(status, &words);
  }
  const auto message = fmt::format("{}: {} ({}): {}", call, name != nullptr ? name : "CUDA error",
                                   static_cast<int>(status), words != nullptr ? words : "no description");
  if (is_sticky(status)) {
    return fail(
        ErrorCode::context_lost, message,
        "The CUDA context is broken, by this or an earlier kernel: end the process or make a new context and engine.");
  }
  if (status == CUDA_ERROR_OUT_OF_MEMORY)
    return fail(ErrorCode::out_of_memory, message, "Free device memory, or ask for less.");
  return fail(code, message);
}

}  // namespace v1
}  // namespace leanattn
