// oracle.hpp -- the FP64 oracle on the CPU: O = softmax(scale * Q K^T) V and LSE. Pure functions; any thread. Checks
// the comparator in unit tests and the GPU's oracle in every verify run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/problem.hpp"
#include "tuner/random_data.hpp"

namespace leanattn {
inline namespace v1 {

/// One (request, KV head): all query rows that share its K and V.
struct AttentionRows {
  int rows = 1;
  int head_dim = 1;
  std::int64_t context_length = 0;  ///< tokens; zero or less: O is 0 and LSE -inf
  double scale = 1;
  std::span<const double> q;  ///< [rows, head_dim]
  std::span<const double> k;  ///< [context_length, head_dim]
  std::span<const double> v;  ///< [context_length, head_dim]
};

struct OracleOutput {
  std::vector<double> o;    ///< [..., rows, head_dim]
  std::vector<double> lse;  ///< [..., rows], natural log
};

OracleOutput oracle(const AttentionRows& input);

/// The oracle of one (request, KV head) of generated data: rows are its group of query heads. `scale` is the softmax
/// scale.
OracleOutput oracle_of_data(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale, int request,
                            int kv_head, std::int64_t context_length);

/// All of a batch, [batch, q_heads, ...], on `threads` threads (0: one per core).
OracleOutput oracle_of_batch(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale,
                             std::span<const int> context_lengths, int threads = 0);

/// What a kernel makes of its scale_log2 argument: the softmax scale that the oracles use, so that rounding the
/// argument to fp32 is not held against a kernel.
double scale_of_argument(float scale_log2);
float scale_argument(double scale);

}  // namespace v1
}  // namespace leanattn
