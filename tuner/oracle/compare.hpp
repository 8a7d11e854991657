// compare.hpp -- compares what a kernel wrote with the FP64 oracle. How much it may be off follows from the error of a
// plain implementation in the same precision. Plain data and pure functions; any thread; no GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// The byte with which every output is filled before a launch. It makes a NaN in bf16, fp16 and fp32 that no
/// instruction produces.
inline constexpr std::uint8_t kPoisonByte = 0xFF;

/// How far a right result may be from the oracle, for up to kTokensOfYardstick query tokens of one request that follow
/// each other. These see about the same context, and hence have errors of the same size. A result passes up to twice
/// these errors.
struct Yardstick {
  double largest = 0;  ///< of |plain - oracle| over these tokens; at least three times its root mean square, and at
                       ///< least half an ulp of max |oracle|
  double mean = 0;     ///< of |plain - oracle| over these tokens; at least an eighth of an ulp of max |oracle|
};
inline constexpr int kTokensOfYardstick = 256;

/// The results with which every kernel of one decode case is compared.
struct Reference {
  DType dtype = DType::bf16;
  int batch = 0, q_heads = 0, head_dim = 0;  ///< head_dim is that of o
  std::vector<double> o;                     ///< the oracle's, [query tokens, q_heads, head_dim]
  std::vector<double> lse;            ///< the oracle's, [query tokens, q_heads]; -inf for a row that sees no token
  std::vector<Yardstick> yardsticks;  ///< of one request after the other, each of which has at least one
  std::vector<float> lse_limits;      ///< [query tokens, q_heads], the largest absolute error of LSE
  std::vector<int> query_tokens;      ///< [batch], how many each request has; empty: one each
};

/// How many query tokens a request has, and how many the requests before it have together.
int query_tokens_of(const Reference& reference, int request);
std::int64_t query_tokens_before(const Reference& reference, int request);

/// Makes a Reference from the outputs of the oracle and of the plain implementation, whose O is given as bits in the
/// same layout. `exact_weights` says that the data makes every softmax weight exactly 1, as DataKind::coverage does.
/// The limit of LSE is tighter then. All sizes must agree with `query_tokens`, which is [batch], or empty for one each.
Reference make_reference(DType dtype, int batch, int q_heads, int head_dim, std::vector<double> oracle_o,
                         std::vector<double> oracle_lse, std::span<const std::uint16_t> plain_o, bool exact_weights,
                         std::vector<int> query_tokens = {});

/// The largest absolute error of LSE that passes: 1e-4 for an fp32 sum of ex2.approx terms, or 2e-6 when the weights
/// are exact, plus four fp32 ulps of |lse|.
double lse_limit(double lse, bool exact_weights);

struct ComparisonReport {
  std::int64_t elements = 0;            ///< how many were compared, O and LSE together
  std::int64_t unwritten = 0;           ///< outputs that still hold the poison
  std::int64_t pattern_mismatches = 0;  ///< elements where only one of kernel and oracle has NaN or an infinity
  std::int64_t stray_writes =
      0;  ///< bytes written into padding, into an LSE that was not asked for, or past the workspace
  std::int64_t workspace_left = 0;   ///< workspace bytes that did not return to zero
  std::int64_t unequal_repeats = 0;  ///< output bytes that differed between two launches
  std::int64_t wrong_appended = 0;   ///< elements of K and V that append wrote wrongly or not at all
  double error_ratio = 0;            ///< the largest |o - oracle| over its Yardstick::largest
  double mean_ratio = 0;             ///< the largest mean |o - oracle| over its Yardstick::mean
  double lse_ratio = 0;              ///< the largest |lse - oracle| over its limit; at most 1 passes
  std::string first_failure;         ///< where and by how much the result is wrong; empty when it passed

  bool passed() const;
};

/// Compares where NaN and infinities are, then the largest error, the mean error and LSE. o holds dense bits, [query
/// tokens, q_heads, head_dim]. lse is [query tokens, q_heads], or empty when the kernel does not write it.
ComparisonReport compare(const Reference& reference, std::span<const std::uint16_t> o, std::span<const float> lse);

/// Adds the counts of `other`, and keeps the larger ratios and the first failure.
void merge(ComparisonReport& into, const ComparisonReport& other);

}  // namespace v1
}  // namespace leanattn
