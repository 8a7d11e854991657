// load_cubin.hpp -- cubin bytes -> library and functions of the current context. Any thread with that context current.
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
  largest_shared,  ///< as much shared memory as there is: no kernel of another split makes the SM drain and reconfigure
};

/// Loads a cubin; the caller unloads the library. The bytes may go away after the call.
/// Errors: no_driver, driver_too_old (made by a newer NVRTC), load_failed (another arch, damaged), out_of_memory,
/// context_lost.
Result<CUlib_st*> load_cubin(const std::vector<std::uint8_t>& cubin);

/// The kernel `name` of a library for the current context, loaded to the end (never lazily), so that even its first
/// launch may be captured; allowed `max_shared_bytes` of dynamic shared memory. Errors: not_found, those of load_cubin.
Result<CUfunc_st*> load_function(CUlib_st* library, const std::string& name, int max_shared_bytes, CarveOut carve_out);

}  // namespace v1
}  // namespace leanattn
