// nvrtc_behind.hpp -- for a libnvrtc of the tests: the NVRTC that the library would find without it. Any thread.
#pragma once

#include <nvrtc.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/cuda/dynamic_library.hpp"
#include "runtime/cuda/nvrtc.hpp"

/// The functions of the NVRTC behind this one; null where none is found.
struct NvrtcBehind {
#define LEANATTN_DECLARE(name) decltype(&::name) name = nullptr;
  LEANATTN_NVRTC_FUNCTIONS(LEANATTN_DECLARE)
  LEANATTN_DECLARE(nvrtcGetPTXSize)
  LEANATTN_DECLARE(nvrtcGetPTX)
#undef LEANATTN_DECLARE
};

/// Opened by the first call, and never closed: exit handlers may compile.
inline const NvrtcBehind& nvrtc_behind() {
  static const NvrtcBehind& opened = *new NvrtcBehind([] {
    namespace fs = std::filesystem;
    using leanattn::DynamicLibrary;
    const fs::path own = fs::path(DynamicLibrary::path_of(reinterpret_cast<const void*>(&nvrtcVersion))).parent_path();
    std::vector<std::string> candidates = leanattn::nvrtc_candidates({});
    std::erase_if(candidates, [&](const std::string& candidate) {
      std::error_code error;
      return fs::equivalent(fs::path(candidate).parent_path(), own, error);
    });
    NvrtcBehind behind;
    const DynamicLibrary library = DynamicLibrary::open_first(candidates, nullptr);
#define LEANATTN_RESOLVE(name) behind.name = reinterpret_cast<decltype(behind.name)>(library.symbol(#name));
    LEANATTN_NVRTC_FUNCTIONS(LEANATTN_RESOLVE)
    LEANATTN_RESOLVE(nvrtcGetPTXSize)
    LEANATTN_RESOLVE(nvrtcGetPTX)
#undef LEANATTN_RESOLVE
    if (int major = 0, minor = 0;
        behind.nvrtcVersion != nullptr && behind.nvrtcVersion(&major, &minor) == NVRTC_SUCCESS)
      leanattn::load_nvrtc_builtins(DynamicLibrary::path_of(reinterpret_cast<const void*>(behind.nvrtcVersion)), major,
                                    minor);
    return behind;
  }());
  return opened;
}
