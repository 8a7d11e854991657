// dependent_chain.hpp -- DependentChain: a kernel right before a launch under test that produces, late, what a
// dependent launch may take from its predecessor: q, and K and V of each request's query tokens, the last ones of the
// cache or, with append, those beside it. sm_90 and newer. Made and used with the owning context current, by one
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/gpu.hpp"
#include "tuner/decode_case.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// The source of its kernel, for compile_source(): flat, include-free, compiles for every arch.
std::string dependent_chain_source();

class DependentChain {
 public:
  /// Errors: nvrtc_missing, compile_failed, load_failed, context_lost. cubins may be null.
  static Result<DependentChain> load(Arch arch, CubinCache* cubins);

  /// Remembers those rows of a case (of its KV copy 0), as they are for the lengths that the device then holds.
  /// Stream-ordered, but not to be captured. Errors: out_of_memory, launch_failed, context_lost.
  Result<void> take(const DecodeCase& decode_case, CUstream_st* stream);

  /// Enqueues two kernels for the case that was taken; may be captured. The first overwrites the rows with NaN when all
  /// before it has ended. The second lets its successor start at once, works for `delay_ns`, and only then puts the
  /// rows back: a kernel behind it that does not wait where it must reads NaN.
  Result<void> produce(CUstream_st* stream, unsigned delay_ns = kDelayNs) const;

  /// Longer than a whole short launch, so that everything a kernel may do early is done while the rows are NaN.
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
