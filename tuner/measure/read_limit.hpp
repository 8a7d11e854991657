// read_limit.hpp -- ReadLimit: kernels that only read. Their time is the limit that decode kernels are compared with.
// It is made and used with the owning context current, from one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda/device.hpp"
#include "runtime/cuda/gpu.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// One way to read. No way is the best for every size: 16-byte loads are for small reads, bulk copies for large ones.
struct ReadVariant {
  std::string name;    ///< "plain_4", "bulk 3x8x8k" ...
  std::string kernel;  ///< its entry point
  int ctas_per_sm = 2;
  int threads = 512;
  int stage_bytes = 0;  ///< bytes of a bulk copy; 0: plain loads
  int stages = 0;       ///< bulk copies that a CTA has in flight
};

/// The variants that this arch has.
std::vector<ReadVariant> read_variants(Arch arch);

/// The source of all variants, without includes, for compile_source().
std::string read_limit_source();

class ReadLimit {
 public:
  /// Errors: nvrtc_missing, compile_failed, load_failed, out_of_memory, context_lost. cubins may be null.
  static Result<ReadLimit> load(const DeviceFacts& device, CubinCache* cubins);

  const std::vector<ReadVariant>& variants() const { return variants_; }
  /// Enqueues one read of two arrays of `bytes_each` bytes each, a positive multiple of 16. `a` and `b` are device
  /// pointers, 16-byte aligned.
  /// Errors: invalid_argument, launch_failed, context_lost.
  Result<void> launch(std::size_t variant, const void* a, const void* b, std::int64_t bytes_each,
                      CUstream_st* stream) const;

 private:
  ReadLimit(LoadedSource source, DeviceBuffer sink) : source_(std::move(source)), sink_(std::move(sink)) {}
  LoadedSource source_;
  DeviceBuffer sink_;
  std::vector<ReadVariant> variants_;
  std::vector<CUfunc_st*> functions_;
  int sm_count_ = 1;
};

}  // namespace v1
}  // namespace leanattn
