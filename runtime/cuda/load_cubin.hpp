// load_cubin.hpp -- loads a cubin into the current context and finds its kernels. Any thread with that context current.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "leanattn/error.hpp"

struct CUfunc_st;
struct CUlib_st;

namespace leanattn {
inline namespace v1 {

/// How an SM's on-chip memory is split between shared memory and L1 while a kernel runs.
enum class CarveOut {
  automatic,       ///< the driver's choice
  largest_shared,  ///< the most shared memory, so that an SM never has to drain to change its split between kernels
};

/// Loads a cubin. The caller unloads the library, and may free the bytes after the call. Errors: no_driver,
/// driver_too_old (a newer NVRTC made the cubin), load_failed (the cubin is damaged, or for another arch),
/// out_of_memory, context_lost.
Result<CUlib_st*> load_cubin(const std::vector<std::uint8_t>& cubin);

/// The kernel `name` of a library, for the current context. It may be launched with up to `max_shared_bytes` of dynamic
/// shared memory. It is loaded completely, so that even its first launch may be captured. Errors: not_found, those of
/// load_cubin.
Result<CUfunc_st*> load_function(CUlib_st* library, const std::string& name, int max_shared_bytes, CarveOut carve_out,
                                 bool large_clusters = false);

}  // namespace v1
}  // namespace leanattn
