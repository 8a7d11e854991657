// copy_limit.hpp -- CopyLimit: kernels that only read and write an array. Their time is the limit that kernels with a
// recurrent state are compared with. It is made and used with the owning context current, from one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// One way to copy. No way is the best for every size.
struct CopyVariant {
  std::string name;  ///< "128x4", or "2x512x8" with CTAs that stay on their SM
  int loads = 4;     ///< of 16 bytes that a thread has in flight: 4 or 8
  int threads = 128;
  int ctas_per_sm = 0;  ///< 0: a CTA for each run of chunks
};

class CopyLimit {
 public:
  /// Errors: nvrtc_missing, compile_failed, load_failed, out_of_memory, context_lost. cubins may be null.
  static Result<CopyLimit> load(const DeviceFacts& device, CubinCache* cubins);

  static std::vector<CopyVariant> variants();
  /// Enqueues one read of `bytes`, a positive multiple of 16, and writes of the same to `writes` arrays that follow
  /// each other, the first of which is `data`, a device pointer aligned to 16 bytes. Errors: launch_failed,
  /// context_lost.
  Result<void> launch(const CopyVariant& variant, void* data, std::int64_t bytes, int writes,
                      CUstream_st* stream) const;

 private:
  explicit CopyLimit(LoadedSource source) : source_(std::move(source)) {}
  LoadedSource source_;
  CUfunc_st *four_ = nullptr, *eight_ = nullptr;
  int sm_count_ = 1;
};

}  // namespace v1
}  // namespace leanattn
