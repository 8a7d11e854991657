// oracle_kernels.hpp -- OracleKernels: the helper kernels of a check (fill, FP64 oracle, plain implementation),
// compiled once per context and score expression. Made and used with the owning context current; enqueueing is
// thread-compatible (one stream at a time).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/gpu.hpp"
#include "runtime/kernel.hpp"
#include "runtime/problem.hpp"
#include "tuner/random_data.hpp"

// Its kernels' second by-value argument, at global scope so that host and device agree.
#include "templates/check_features.cuh"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// The one source of all helper kernels: flat and include-free, for compile_source(). score: the expression of the
/// problem, or empty.
std::string oracle_source(std::string_view score = {});

/// Appends one of the embedded templates, by its file name, to a source that is being put together.
void append_template(std::string& source, std::string_view name);

/// What the kernels are told of a problem and its data. `scale` is the softmax scale.
CheckFeatures check_features(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale);

/// What new_rows does with the K and V of query tokens, of a problem with append: as the steps of check_kernels.cuh.
enum class NewRowsStep : int {
  plant,        ///< writes k_new and v_new
  spoil,        ///< overwrites their rows in the cache
  count_wrong,  ///< adds to *wrong the elements of those rows that are not what append must have left there
};

class OracleKernels {
 public:
  /// cubins may be null; otherwise it outlives the kernels. Errors: nvrtc_missing, compile_failed, load_failed,
  /// context_lost.
  static Result<std::shared_ptr<const OracleKernels>> load(Arch arch, CubinCache* cubins, std::string_view score = {});

  /// Those of a problem with this score expression: compiled at the first call for it. Not to be called from two
  /// threads at once. Errors: load's.
  Result<std::shared_ptr<const OracleKernels>> for_score(const std::string& score) const;
  const std::string& score() const { return score_; }

  /// Writes q. Where a page table is used: args.page_table from `pages`, int [batch, max_pages], all different; entries
  /// that no kernel may read get ids that no pool has. k, v and the tokens' scales wherever some query token may look:
  /// not past the (clamped) context length, nor before the window. Touches nothing else.
  Result<void> fill_q(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;
  Result<void> fill_table(const LeanDecodeArgs& args, const CheckFeatures& check, const int* pages,
                          CUstream_st* stream) const;
  Result<void> fill_kv(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;

  /// Quarter turns, float [positions, rope_dim]. q, as written by fill_q, and planted keys are what these turn into the
  /// case's data.
  Result<void> fill_rope(const CheckFeatures& check, std::int64_t positions, float* table, CUstream_st* stream) const;
  /// wrong: on the device; used by count_wrong only.
  Result<void> new_rows(NewRowsStep step, const LeanDecodeArgs& args, const CheckFeatures& check, std::uint64_t* wrong,
                        CUstream_st* stream) const;

  /// FP64: max, then exp and sum, then O, one CTA per (request, query token, query head) row from first_row to
  /// first_row + rows. weights: double [rows, longest], scratch. o: double [batch, q_len, q_heads, v_head_dim]; lse:
  /// double [batch, q_len, q_heads].
  Result<void> oracle(const LeanDecodeArgs& args, const CheckFeatures& check, std::int64_t first_row, std::int64_t rows,
                      std::int64_t longest, double* weights, double* o, double* lse, CUstream_st* stream) const;

  /// The yardstick: fp32 scores and softmax, weights rounded to the dtype (to fp16 where K and V have one byte), fp32
  /// sums, output rounded. One CTA per row. weights: float [rows, longest], scratch. o: bits [batch, q_len, q_heads,
  /// v_head_dim], dense.
  Result<void> plain(const LeanDecodeArgs& args, const CheckFeatures& check, std::int64_t first_row, std::int64_t rows,
                     std::int64_t longest, float* weights, std::uint16_t* o, CUstream_st* stream) const;

 private:
  explicit OracleKernels(LoadedSource source) : source_(std::move(source)) {}
  LoadedSource source_;
  Arch arch_;
  CubinCache* cubins_ = nullptr;
  std::string score_;
  CUfunc_st* fill_q_ = nullptr;
  CUfunc_st* fill_table_ = nullptr;
  CUfunc_st* fill_kv_ = nullptr;
  CUfunc_st* fill_rope_ = nullptr;
  CUfunc_st* new_rows_ = nullptr;
  CUfunc_st* oracle_ = nullptr;
  CUfunc_st* plain_ = nullptr;
  mutable std::map<std::string, std::shared_ptr<const OracleKernels>> variants_;  ///< by score expression
};

}  // namespace v1
}  // namespace leanattn
