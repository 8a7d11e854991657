// compiler.hpp -- source -> cubin through NVRTC, with the log read. Thread-safe; needs libnvrtc, no GPU and no driver.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/generator.hpp"

namespace leanattn {
inline namespace v1 {

/// What ptxas said about the kernel. Of a source with several kernels: the largest of each, the sum of spills.
struct KernelResources {
  int registers = 0;          ///< per thread
  int spill_store_bytes = 0;  ///< per thread
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;    ///< per CTA, besides the dynamic part
  bool wgmma_serialized = false;  ///< C7510 to C7514, one for each cause: "wgmma.mma_async instructions are serialized"

  bool operator==(const KernelResources&) const = default;
};

struct CompiledKernel {
  std::vector<std::uint8_t> cubin;
  KernelResources resources;
  double compile_ms = 0;  ///< 0 when it came from cubin.db
  bool from_cache = false;
  std::string log;
};

/// e.g. "13.0". Errors: nvrtc_missing.
Result<std::string> nvrtc_version();

/// Reads a ptxas -v log. Exposed for tests.
KernelResources parse_ptxas_log(std::string_view log);

/// The options this library compiles with under the NVRTC at hand, for keys and for reproducing by hand.
std::vector<std::string> compile_options(Arch arch);

/// Compiles. Errors: nvrtc_missing, unsupported (this NVRTC does not know the arch), compile_failed (log attached),
/// kernel_rejected (spills, serialised wgmma, or a log that cannot rule spills out; log attached).
Result<CompiledKernel> compile(const EmittedKernel& kernel);

class CubinCache;  // cache/cubin_db.hpp; a null pointer means "no cache"

/// Any include-free CUDA source (probe and check kernels of the tuner): compiled and cached like an emitted kernel, but
/// spills are reported, not rejected. Errors: nvrtc_missing, unsupported, compile_failed.
Result<CompiledKernel> compile_source(std::string_view source, Arch arch, CubinCache* cache);

/// Through the cache: a hit is verified; a damaged entry is deleted and compiled again. cache may be null. A rejected
/// kernel is stored like any other, so that rejecting it again costs no compile.
Result<CompiledKernel> compile(const EmittedKernel& kernel, CubinCache* cache);

/// The key under which a source is kept in cubin.db: over source, options, the exact NVRTC build and the arch. Errors:
/// nvrtc_missing.
Result<std::string> compile_key(std::string_view source, Arch arch);

}  // namespace v1
}  // namespace leanattn
