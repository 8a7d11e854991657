// stream_identity.hpp -- StreamIdentity: which stream a handle means on the calling thread. Any thread.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>

#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {

/// A stream of a context. CU_STREAM_PER_THREAD is one handle for as many streams as there are threads.
struct StreamIdentity {
  CUstream_st* handle = nullptr;
  std::uint64_t thread = 0;  ///< whose stream it is; 0: the handle means the same stream in all threads
  friend auto operator<=>(const StreamIdentity&, const StreamIdentity&) = default;
};

/// The stream that `handle` means on this thread. The number of a thread that has ended is never used again.
inline StreamIdentity stream_identity(CUstream_st* handle) {
  if (handle != CU_STREAM_PER_THREAD) [[likely]]
    return {handle, 0};
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t thread = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return {handle, thread};
}

}  // namespace v1
}  // namespace leanattn
