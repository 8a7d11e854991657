// compare.hpp -- the comparator: what a kernel wrote against the FP64 oracle, with a plain implementation's error as
// the yardstick. Plain data and pure functions; any thread; no GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// Bytes every output is filled with before a launch: a NaN in bf16, fp16 and fp32 that no instruction produces.
inline constexpr std::uint8_t kPoisonByte = 0xFF;

/// How far a right result may be from the oracle, for one request (all its rows have about the same context length,
/// hence the same error scale). Twice these passes.
struct Yardstick {
  double largest = 0;  ///< of |plain - oracle| over the request; never below three times its root mean square or half
                       ///< an ulp of max |oracle|
  double mean = 0;     ///< mean of |plain - oracle|; never below an eighth of an ulp of max |oracle|
};

/// What every kernel of one problem is compared with.
struct Reference {
  DType dtype = DType::bf16;
  int batch = 0, q_heads = 0, head_dim = 0;  ///< head_dim: columns of o
  std::vector<double> o;                     ///< oracle, [query tokens, q_heads, head_dim]
  std::vector<double> lse;                   ///< oracle, [query tokens, q_heads]; -inf where nothing is seen
  std::vector<Yardstick> yardsticks;         ///< [batch]
  std::vector<float> lse_limits;             ///< [query tokens, q_heads], absolute
  std::vector<int> query_tokens;             ///< [batch], of each request; empty: one each
};

/// Query tokens of a request, and how many the requests before it have together.
int query_tokens_of(const Reference& reference, int request);
std::int64_t query_tokens_before(const Reference& reference, int request);

/// Makes a Reference from the oracle's outputs and the plain implementation's (bits, same layout). `exact_weights`: the
/// data makes every softmax weight exactly 1 (DataKind::coverage), which tightens the LSE limit. Sizes must agree with
/// query_tokens ([batch]; empty: one each).
Reference make_reference(DType dtype, int batch, int q_heads, int head_dim, std::vector<double> oracle_o,
                         std::vector<double> oracle_lse, std::span<const std::uint16_t> plain_o, bool exact_weights,
                         std::vector<int> query_tokens = {});

/// Absolute LSE tolerance: 1e-4 for fp32 sums of ex2.approx terms (2e-6 when weights are exact) plus four fp32 ulps of
/// |lse|.
double lse_limit(double lse, bool exact_weights);

struct ComparisonReport {
  std::int64_t elements = 0;            ///< compared, O and LSE together
  std::int64_t unwritten = 0;           ///< outputs that still hold the poison
  std::int64_t pattern_mismatches = 0;  ///< NaN or infinity where the oracle has none, or the other way round
  std::int64_t stray_writes = 0;  ///< bytes changed outside the outputs: padding, LSE not asked for, past the workspace
  std::int64_t workspace_left = 0;   ///< workspace bytes that did not return to zero
  std::int64_t unequal_repeats = 0;  ///< output bytes that differed between two launches
  std::int64_t wrong_appended = 0;   ///< elements of K and V that the launch should have written into the cache
  double error_ratio = 0;            ///< worst |o - oracle| over its request's Yardstick::largest
  double mean_ratio = 0;             ///< worst mean |o - oracle| of a request over its Yardstick::mean
  double lse_ratio = 0;              ///< worst |lse - oracle| over its limit; at most 1 passes
  std::string first_failure;         ///< where and by how much; empty when passed

  bool passed() const;
};

/// Patterns first, then the largest error, then the mean, then LSE. o: bits, [query tokens, q_heads, head_dim], dense.
/// lse: [query tokens, q_heads], or empty when the kernel does not write it.
ComparisonReport compare(const Reference& reference, std::span<const std::uint16_t> o, std::span<const float> lse);

/// Adds counts, keeps the worst ratios and the first failure.
void merge(ComparisonReport& into, const ComparisonReport& other);

}  // namespace v1
}  // namespace leanattn
