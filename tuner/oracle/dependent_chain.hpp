// dependent_chain.hpp -- DependentChain: a kernel right in front of a dependent launch that produces the launch's
// inputs, and does so late. The inputs are q and the K and V of the query tokens, in the cache or, with append, beside
// it. sm_90 and later. One thread, with the owning context current.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/cuda/gpu.hpp"
#include "tuner/oracle/decode_case.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// The source of its kernel, for compile_source(). It has no includes and compiles for every architecture.
std::string dependent_chain_source();

class DependentChain {
 public:
  /// Errors: nvrtc_missing, compile_failed, load_failed, context_lost. cubins may be null.
  static Result<DependentChain> load(Arch arch, CubinCache* cubins);

  /// Copies those rows from KV copy 0 of a case, for the context lengths that the device holds at that point of the
  /// stream. Stream-ordered, but not for stream capture. Errors: out_of_memory, launch_failed, context_lost.
  Result<void> take(const DecodeCase& decode_case, CUstream_st* stream);

  /// Enqueues two kernels for the case that was taken. Stream capture is allowed. The first kernel overwrites the rows
  /// with NaN when all work before it has ended. The second one lets its successor start at once, waits `delay_ns`, and
  /// then writes the rows back. A successor that does not wait where it must reads NaN.
  Result<void> produce(CUstream_st* stream, unsigned delay_ns = kDelayNs) const;

  /// Longer than a whole short launch, so that a successor does all its early work while the rows are NaN.
  static constexpr unsigned kDelayNs = 20'000;

 private:
  explicit DependentChain(LoadedSource source) : source_(std::move(source)) {}
  std::int64_t rows() const;
  Result<void> launch(int step, unsigned delay_ns, CUstream_st* stream) const;

  LoadedSource source_;
  CUfunc_st* kernel_ = nullptr;
  DeviceBuffer rows_;  ///< [q rows, K rows, V rows][the larger of head_dim and v_head_dim]
  LeanDecodeArgs args_{};
  CheckFeatures check_{};
};

}  // namespace v1
}  // namespace leanattn
