// oracle_kernels.hpp -- OracleKernels: the helper kernels of a check, which write data and compute the FP64 oracle and
// the plain implementation. They are compiled once for each score expression. One thread at a time, with the owning
// context current.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/cuda/gpu.hpp"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/problem.hpp"
#include "tuner/oracle/random_data.hpp"

// CheckFeatures is the kernels' second argument. It is included at global scope, so that host and device agree on it.
#include "templates/check/features.cuh"

namespace leanattn {
inline namespace v1 {

class CubinCache;

/// The source of all helper kernels, for compile_source(). It has no includes. `score` is the problem's score
/// expression, or empty.
std::string oracle_source(std::string_view score = {});

/// What makes LeanDecodeArgs as long as the host's, as sources with templates/check/ begin.
inline constexpr std::string_view kAllArguments =
    "#define LEAN_LONG_ARGUMENTS\n#define LEAN_SPANS\n#define LEAN_BLOCK_SCALES\n";
/// Appends the embedded template of this file name to a source.
void append_template(std::string& source, std::string_view name);

/// The kernels' second argument for a problem and its data. `scale` is the softmax scale.
CheckFeatures check_features(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale);

/// The query tokens of all requests that these arguments have.
std::int64_t all_query_tokens(const LeanDecodeArgs& args, const CheckFeatures& check);

/// What new_rows() does with the K and V of query tokens in a problem with append. The values are those that
/// check/kernels.cuh uses.
enum class NewRowsStep : int {
  plant,        ///< It writes k_new and v_new.
  spoil,        ///< It overwrites their rows in the cache.
  count_wrong,  ///< It adds to *wrong the number of elements of those rows that append should have written otherwise.
};

class OracleKernels {
 public:
  /// Compiles the kernels, which takes seconds, so that load() finds them in `cubins`. Any thread. Errors:
  /// nvrtc_missing, compile_failed, invalid_argument (the expression).
  static Result<CompiledKernel> compile(Arch arch, CubinCache* cubins, std::string_view score = {});
  /// Compiles and loads the kernels. cubins may be null; otherwise it must outlive them. Errors: nvrtc_missing,
  /// compile_failed, load_failed, context_lost.
  static Result<std::shared_ptr<const OracleKernels>> load(Arch arch, CubinCache* cubins, std::string_view score = {});

  /// The kernels for another score expression, which the first call compiles. Only one thread may call it at a time.
  /// Errors: those of load().
  Result<std::shared_ptr<const OracleKernels>> for_score(const std::string& score) const;
  const std::string& score() const { return score_; }
  /// The same kernels in the current context, which may be another one. Errors: those of load().
  Result<std::shared_ptr<const OracleKernels>> in_current_context() const;

  /// fill_q() writes q. fill_table() writes args.page_table from `pages`, int [batch, max_pages], all different;
  /// entries that no kernel may read get pages that no pool has. fill_kv() writes the k, v and scales of visible
  /// tokens: those within the clamped context length that some query token sees. Nothing else is written.
  /// Stream-ordered.
  Result<void> fill_q(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;
  Result<void> fill_table(const LeanDecodeArgs& args, const CheckFeatures& check, const int* pages,
                          CUstream_st* stream) const;
  Result<void> fill_kv(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;

  /// Writes the spans of query tokens to args.spans, by the context lengths. Where a window hides tokens, fill_table()
  /// and fill_kv() read them. Stream-ordered.
  Result<void> fill_spans(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;

  /// Writes what query tokens have selected to args.selection and args.selected_counts, by the page table that
  /// fill_table() has written. Stream-ordered.
  Result<void> fill_selection(const LeanDecodeArgs& args, const CheckFeatures& check, CUstream_st* stream) const;

  /// Writes a table of rotations by quarter turns, float [positions, rope_dim]. They turn the q of fill_q() and
  /// appended keys into the case's data.
  Result<void> fill_rope(const CheckFeatures& check, std::int64_t positions, float* table, CUstream_st* stream) const;
  /// Does one step with the rows of the query tokens. `wrong` is in device memory, and only count_wrong uses it.
  Result<void> new_rows(NewRowsStep step, const LeanDecodeArgs& args, const CheckFeatures& check, std::uint64_t* wrong,
                        CUstream_st* stream) const;

  /// Computes the oracle in FP64, with one CTA for each (request, query token, query head) row from first_row to
  /// first_row + rows. weights: double [rows, longest], scratch. o: double [query tokens, q_heads, v_head_dim]. lse:
  /// double [query tokens, q_heads].
  Result<void> oracle(const LeanDecodeArgs& args, const CheckFeatures& check, std::int64_t first_row, std::int64_t rows,
                      std::int64_t longest, double* weights, double* o, double* lse, CUstream_st* stream) const;

  /// Computes the plain implementation, whose errors are the yardstick: scores, softmax and sums in fp32, weights
  /// rounded to the dtype (to fp16 with a one-byte cache), output rounded. One CTA for each row. weights: float [rows,
  /// longest], scratch. o: dense bits [query tokens, q_heads, v_head_dim].
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
  CUfunc_st* fill_selection_ = nullptr;
  CUfunc_st* fill_spans_ = nullptr;
  CUfunc_st* fill_rope_ = nullptr;
  CUfunc_st* new_rows_ = nullptr;
  CUfunc_st* oracle_ = nullptr;
  CUfunc_st* plain_ = nullptr;
  mutable std::map<std::string, std::shared_ptr<const OracleKernels>> variants_;  ///< by score expression
};

}  // namespace v1
}  // namespace leanattn
