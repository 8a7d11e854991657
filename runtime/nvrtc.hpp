// nvrtc.hpp -- libnvrtc by dlopen: the entry points we use and which build it is. Thread-safe; opened once, never
// closed.
#pragma once

#include <nvrtc.h>

#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Every NVRTC entry point the library calls, X(name).
// clang-format off
#define LEANATTN_NVRTC_FUNCTIONS(X) \
  X(nvrtcGetErrorString) X(nvrtcVersion) X(nvrtcGetNumSupportedArchs) X(nvrtcGetSupportedArchs) \
  X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcCompileProgram) X(nvrtcGetCUBINSize) X(nvrtcGetCUBIN) \
  X(nvrtcGetProgramLogSize) X(nvrtcGetProgramLog)
// clang-format on

struct NvrtcApi {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_DECLARE)
#undef LEANATTN_DECLARE
  int major = 0, minor = 0;
  std::string path;                       ///< of the library file
  std::string build;                      ///< its GNU build ID, hex: what distinguishes 13.0.48 from 13.0.88
  std::vector<int> compute_capabilities;  ///< it can compile for: 80, 86, ..., ascending
};

/// The table. The first call decides for the life of the process. Search order: LEANATTN_NVRTC_LIB (a file; nothing
/// else is tried), LEANATTN_NVRTC_DIR (a library directory, or a site-packages directory that holds NVIDIA's wheels),
/// libnvrtc.so[.13|.12] as the loader finds them, $CUDA_HOME and $CUDA_PATH, /usr/local/cuda, and the directory that
/// the build was configured with. Errors: nvrtc_missing, naming what was tried.
Result<const NvrtcApi*> nvrtc();

/// The candidates of that search in order, from the environment as it is now. Exposed for `doctor` and tests.
std::vector<std::string> nvrtc_candidates();

/// ok, or unsupported when this NVRTC cannot make cubins for `arch`.
Result<void> check_arch(const NvrtcApi& api, Arch arch);

/// "13.0+<build id>": what goes into cache keys.
std::string full_version(const NvrtcApi& api);

}  // namespace v1
}  // namespace leanattn
