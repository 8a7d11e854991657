// compiler.hpp -- compiles CUDA source to a cubin with NVRTC, and reads the log. Thread-safe. Needs libnvrtc, but
// neither GPU nor driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/generator.hpp"
#include "runtime/cuda/ptxas_log.hpp"

namespace leanattn {
inline namespace v1 {

/// A cubin, and what its compilation said.
struct CompiledKernel {
  std::vector<std::uint8_t> cubin;
  KernelResources resources;
  double compile_ms = 0;  ///< milliseconds; 0 when it came from cubin.db
  bool from_cache = false;
  std::string log;
};

/// The version of NVRTC, such as "13.0". Errors: nvrtc_missing.
Result<std::string> nvrtc_version();

/// The options with which this library calls the NVRTC that is loaded. They are part of the keys of cubin.db.
std::vector<std::string> compile_options(Arch arch);

/// Compiles a kernel without a cache. Errors: nvrtc_missing, unsupported (this NVRTC does not know the arch),
/// compile_failed, kernel_rejected (the kernel spills or serialises wgmma, or the log says nothing about spills); the
/// last two have the log.
Result<CompiledKernel> compile(const EmittedKernel& kernel);

class CubinCache;  // cache/cubin/cubin_db.hpp; a null pointer means that there is no cache

/// Compiles and caches any CUDA source without includes, such as the tuner's kernels that check and probe. Spills are
/// reported but not rejected. Errors: nvrtc_missing, unsupported, compile_failed.
Result<CompiledKernel> compile_source(std::string_view source, Arch arch, CubinCache* cache);

/// Compiles a kernel, or takes it from the cache (may be null). A damaged entry is deleted and compiled again. A kernel
/// that is rejected is stored, too, so that rejecting it again takes no compilation. Errors: as without a cache.
Result<CompiledKernel> compile(const EmittedKernel& kernel, CubinCache* cache);

/// The key under which cubin.db keeps a source: a hash of source, options, the exact build of NVRTC and the arch.
/// Errors: nvrtc_missing.
Result<std::string> compile_key(std::string_view source, Arch arch);

}  // namespace v1
}  // namespace leanattn
