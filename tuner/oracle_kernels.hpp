// oracle_kernels.hpp -- OracleKernels: the helper kernels of a check (fill, FP64 oracle, plain implementation),
// compiled once per context. Made and used with the owning context current; enqueueing is thread-compatible (one stream
// at a time).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/gpu.hpp"
#include "runtime/kernel.hpp"
#include "tuner/random_data.hpp"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// The one source of all helper kernels: flat and include-free, for compile_source().
std::string oracle_source();

class OracleKernels {
 public:
  /// Errors: nvrtc_missing, compile_failed, load_failed, context_lost. cubins may be null.
  static Result<std::shared_ptr<const OracleKernels>> load(Arch arch, CubinCache* cubins);

  /// Writes q, and k and v for tokens below each (clamped) context length; touches nothing else.
  Result<void> fill_q(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim, DataKind kind,
                      std::uint64_t seed, CUstream_st* stream) const;
  Result<void> fill_kv(const LeanDecodeArgs& args, DType dtype, int head_dim, DataKind kind, std::uint64_t seed,
                       CUstream_st* stream) const;

  /// FP64: max, then exp and sum, then O, one CTA per (request, query head) row from first_row to first_row + rows.
  /// weights: double [rows, longest], scratch. o: double [batch, q_heads, head_dim]; lse: double [batch, q_heads].
  Result<void> oracle(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim, std::int64_t first_row,
                      std::int64_t rows, std::int64_t longest, double* weights, double* o, double* lse,
                      CUstream_st* stream) const;

  /// The yardstick: fp32 scores and softmax, weights rounded to the dtype, fp32 sums, output rounded. One CTA per row.
  /// weights: float [rows, longest], scratch. o: bits [batch, q_heads, head_dim], dense.
  Result<void> plain(const LeanDecodeArgs& args, DType dtype, int q_heads, int head_dim, std::int64_t first_row,
                     std::int64_t rows, std::int64_t longest, float* weights, std::uint16_t* o,
                     CUstream_st* stream) const;

 private:
  explicit OracleKernels(LoadedSource source) : source_(std::move(source)) {}
  LoadedSource source_;
  CUfunc_st* fill_q_ = nullptr;
  CUfunc_st* fill_kv_ = nullptr;
  CUfunc_st* oracle_ = nullptr;
  CUfunc_st* plain_ = nullptr;
};

}  // namespace v1
}  // namespace leanattn
