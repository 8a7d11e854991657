// nvrtc.hpp -- NvrtcApi: libnvrtc, opened at run time, as one table of the functions that we use. Thread-safe. It is
// opened once and never closed.
#pragma once

#include <nvrtc.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cache/paths.hpp"
#include "generator/kernel_spec.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// All NVRTC functions that the library calls, as X(name).
// clang-format off
#define LEANATTN_NVRTC_FUNCTIONS(X) \
  X(nvrtcGetErrorString) X(nvrtcVersion) X(nvrtcGetNumSupportedArchs) X(nvrtcGetSupportedArchs) \
  X(nvrtcCreateProgram) X(nvrtcDestroyProgram) X(nvrtcCompileProgram) X(nvrtcGetCUBINSize) X(nvrtcGetCUBIN) \
  X(nvrtcGetProgramLogSize) X(nvrtcGetProgramLog)
// clang-format on

/// The table, and which build of NVRTC it is.
struct NvrtcApi {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_DECLARE)
#undef LEANATTN_DECLARE
  int major = 0, minor = 0;
  std::string path;                       ///< of the library file
  std::string build;                      ///< its GNU build ID, in hex, which tells 13.0.48 from 13.0.88
  std::vector<int> compute_capabilities;  ///< for which it can compile, in ascending order: 80, 86, ...
};

/// The first library of the search that compiles for `arch`; without an arch the one that was last asked for with one,
/// else the first. The search looks for LEANATTN_NVRTC_LIB (a file, after which nothing else is tried), in
/// LEANATTN_NVRTC_DIR (a directory of libraries, or the site-packages that have NVIDIA's wheels), in the site-packages
/// in which the library itself lies as part of a wheel, in the directories of look_for_nvrtc_in(), for
/// libnvrtc.so[.13|.12] as the loader finds them, in $CUDA_HOME, $CUDA_PATH and /usr/local/cuda, and in the directory
/// with which the build was configured. A library older than NVRTC 12.3 is passed over. The first call decides where to
/// look for the life of the process, and libraries are opened as far as they are needed. A set-user-id program ignores
/// the environment. Errors: nvrtc_missing, which names what was tried; unsupported, where none compiles for `arch`.
Result<const NvrtcApi*> nvrtc(std::optional<Arch> arch = std::nullopt);

/// The next library of the search that compiles for `arch`, where `broken` turned out not to compile anything, as one
/// without its built-in functions does; or null. Where there is one, `broken` is not used again.
const NvrtcApi* nvrtc_instead_of(const NvrtcApi& broken, Arch arch);

/// Directories of libraries in which that search looks, too, in place of those that an earlier call named. Without
/// effect once nvrtc() has been called.
void look_for_nvrtc_in(std::vector<std::filesystem::path> directories);

/// The directory of Python packages that has the wheel of which this code is a part: as the module
/// leanattn/_leanattn*.so or as the program leanattn/bin/leanattn. Some other directory where it is part of none.
std::filesystem::path site_packages_of(const std::filesystem::path& own_directory);

/// The candidates of that search, in order, with the environment as it is now. `site_packages` is the directory in
/// which NVIDIA's wheels lie beside ours, where we are part of a wheel.
std::vector<std::string> nvrtc_candidates(
    const std::filesystem::path& site_packages = site_packages_of(own_directory()));

/// Loads the built-in functions beside the NVRTC of this file. NVRTC 13.0 looks for them only where the loader does,
/// and not beside itself as all other versions do. What was loaded from there before is found by its name.
void load_nvrtc_builtins(const std::filesystem::path& library, int major, int minor);

/// Checks that this NVRTC can make cubins for `arch`. Errors: unsupported, naming its file.
Result<void> check_arch(const NvrtcApi& api, Arch arch);

/// "13.0+<build id>", which is part of the keys of cubin.db.
std::string full_version(const NvrtcApi& api);

}  // namespace v1
}  // namespace leanattn
