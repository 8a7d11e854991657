// load_cubin.cpp -- calls of cuLibrary*, and what their errors mean.
#include "runtime/cuda/load_cubin.hpp"

#include <fmt/format.h>

#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

/// Whether the driver refuses the bytes of a cubin. This has two causes, with different ways out.
bool refuses_image(CUresult status) {
  return status == CUDA_ERROR_INVALID_IMAGE || status == CUDA_ERROR_NO_BINARY_FOR_GPU ||
         status == CUDA_ERROR_INVALID_SOURCE || status == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

Result<void> check_load(const DriverApi& api, CUresult status, const char* call) {
  if (!refuses_image(status)) return check(status, call, ErrorCode::load_failed);
  auto error = check(status, call, ErrorCode::load_failed).error();
  // A driver loads cubins of its own major version of CUDA and of older ones (CUDA compatibility guide, "minor version
  // compatibility").
  const auto compiler = nvrtc();
  if (compiler && (*compiler)->major > api.version / 1000) {
    return fail(ErrorCode::driver_too_old,
                fmt::format("{}; the driver is for CUDA {}.{}, the kernel was compiled by NVRTC {}.{}", error.message,
                            api.version / 1000, api.version % 1000 / 10, (*compiler)->major, (*compiler)->minor),
                fmt::format("Update the NVIDIA driver, or let LEANATTN_NVRTC_LIB name an NVRTC of CUDA {}.",
                            api.version / 1000));
  }
  error.hint = "The cubin is damaged or for another GPU architecture than the current device's.";
  return tl::unexpected(std::move(error));
}

}  // namespace

Result<CUlib_st*> load_cubin(const std::vector<std::uint8_t>& cubin) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  if (cubin.empty()) return fail(ErrorCode::load_failed, "the cubin is empty");
  CUlibrary library = nullptr;
  const CUresult status = (*api)->cuLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (const auto ok = check_load(**api, status, "cuLibraryLoadData"); !ok) return tl::unexpected(ok.error());
  return library;
}

Result<CUfunc_st*> load_function(CUlib_st* library, const std::string& name, int max_shared_bytes, CarveOut carve_out,
                                 bool large_clusters) {
  const auto opened = driver();
  if (!opened) return tl::unexpected(opened.error());
  const DriverApi& api = **opened;
  CUkernel kernel = nullptr;
  CUresult status = api.cuLibraryGetKernel(&kernel, library, name.c_str());
  if (status == CUDA_ERROR_NOT_FOUND) {
    return fail(ErrorCode::not_found, fmt::format("the cubin holds no kernel '{}'", name),
                "Kernels are looked up by their extern \"C\" name.");
  }
  if (const auto ok = check_load(api, status, "cuLibraryGetKernel"); !ok) return tl::unexpected(ok.error());
  CUfunction function = nullptr;
  status = api.cuKernelGetFunction(&function, kernel);
  if (const auto ok = check_load(api, status, "cuKernelGetFunction"); !ok) return tl::unexpected(ok.error());
  const auto set = [&](CUfunction_attribute attribute, int value) {
    return check(api.cuFuncSetAttribute(function, attribute, value), "cuFuncSetAttribute", ErrorCode::load_failed);
  };
  if (max_shared_bytes > 0) {
    if (const auto ok = set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, max_shared_bytes); !ok)
      return tl::unexpected(ok.error());
  }
  if (carve_out == CarveOut::largest_shared) {
    const auto ok = set(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    if (!ok) return tl::unexpected(ok.error());
  }
  if (large_clusters) {
    if (const auto ok = set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1); !ok)
      return tl::unexpected(ok.error());
  }
  // With CUDA_MODULE_LOADING=LAZY, it is this query of an attribute that loads the code onto the GPU.
  int registers = 0;
  status = api.cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
  if (const auto ok = check_load(api, status, "cuFuncGetAttribute"); !ok) return tl::unexpected(ok.error());
  return function;
}

}  // namespace v1
}  // namespace leanattn
