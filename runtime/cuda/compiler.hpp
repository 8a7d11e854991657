// compiler.hpp -- compiles CUDA source to a cubin with NVRTC, and reads the log. Thread-safe. Needs libnvrtc, but
// neither GPU nor driver.
#pragma once

#include <cstdint>
#include <optional>
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

/// The version of the NVRTC that compiles for `arch`, or of nvrtc(), such as "13.0". Errors: those of nvrtc().
Result<std::string> nvrtc_version(std::optional<Arch> arch = std::nullopt);

struct NvrtcApi;  // runtime/cuda/nvrtc.hpp

/// The options with which this library calls an NVRTC. They are part of the keys of cubin.db.
std::vector<std::string> compile_options(const NvrtcApi& api, Arch arch);

/// Whether an error is about one kernel alone, so that another kernel may succeed.
bool is_about_the_kernel(ErrorCode code);

/// Compiles a kernel without a cache, with the first NVRTC that can. Errors: nvrtc_missing, unsupported (no NVRTC knows
/// the arch), compile_failed, kernel_rejected (the kernel spills more than 256 bytes a thread, serialises wgmma or
/// lacks registers that setmaxnreg hands over, or the log says nothing about registers); the last two have the log.
Result<CompiledKernel> compile(const EmittedKernel& kernel);

class CubinCache;  // cache/cubin/cubin_db.hpp; a null pointer means that there is no cache

/// Compiles and caches any CUDA source without includes, such as the tuner's kernels that check and probe. Spills are
/// reported but not rejected. Errors: nvrtc_missing, unsupported, compile_failed.
Result<CompiledKernel> compile_source(std::string_view source, Arch arch, CubinCache* cache);

/// Compiles a kernel, or takes it from the cache (may be null). A damaged entry is deleted and compiled again. A kernel
/// that is rejected is stored, too, so that rejecting it again takes no compilation. Errors: as without a cache.
Result<CompiledKernel> compile(const EmittedKernel& kernel, CubinCache* cache);

/// The same for a kernel of any operation: a source with one kernel of this name.
Result<CompiledKernel> compile_kernel(std::string_view source, const std::string& entry, Arch arch, CubinCache* cache);

/// The key under which cubin.db keeps a source: a hash of source, options, the exact build of NVRTC and the arch.
/// Errors: nvrtc_missing.
Result<std::string> compile_key(std::string_view source, Arch arch);

}  // namespace v1
}  // namespace leanattn
