// oracle.hpp -- the FP64 oracle on the CPU: O = softmax(scale * Q K^T) V and LSE, with every feature of a problem. Unit
// tests check the comparison with it, and every verify run checks the GPU's oracle. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/problem.hpp"
#include "tuner/oracle/random_data.hpp"

namespace leanattn {
inline namespace v1 {

/// The inputs of one (request, KV head): all query rows that share its K and V.
struct AttentionRows {
  int rows = 1;
  int head_dim = 1;
  std::int64_t context_length = 0;  ///< in tokens; zero or less: O is 0 and LSE is -inf
  double scale = 1;
  std::span<const double> q;  ///< [rows, head_dim]
  std::span<const double> k;  ///< [context_length, head_dim]
  std::span<const double> v;  ///< [context_length, v_head_dim]
  int v_head_dim = 0;         ///< of v and o; 0: head_dim
  /// Takes a scaled score, a row and a token index, and gives the score that counts, which is -infinity when the row
  /// does not see the token. Empty: scores stay as they are.
  std::function<double(double, int, std::int64_t)> transform = {};
  std::span<const double> sink_logits =
      {};  ///< [rows], which count in the softmax's denominator; empty: there are none
};

struct OracleOutput {
  std::vector<double> o;    ///< [rows, v_head_dim]; of a batch with more dimensions in front
  std::vector<double> lse;  ///< [rows] likewise, natural logarithms
};

/// The attention of these rows.
OracleOutput oracle(const AttentionRows& input);

/// What a problem's score expression means: it takes score, q_index, kv_index and query head, and gives the new score.
using ScoreFunction = std::function<double(double, int, int, int)>;

/// What one request of generated data has beside its length.
struct OracleRequest {
  int query_tokens = -1;           ///< how many it has; -1: the problem's q_len
  std::int64_t shared_tokens = 0;  ///< how many of its first tokens are those of request 0
  ScoreFunction score = {};        ///< empty: the problem has no score expression
  DataSelection selection = {};    ///< of a problem with a selection
  int hole_every = 0;              ///< of a paged cache, whose pages in holes nobody sees (data_is_hole)
  int second_capacity = 0;         ///< of a problem with a second cache: most tokens of a request there
};

/// How many first tokens every request reads from request 0's pages. Only pages that request 0 fills are shared.
std::int64_t shared_tokens(const Features& features, int shared_prefix, std::int64_t context_of_request_0);

/// The oracle of one (request, KV head) of generated data. Its rows are [query tokens, group]. `scale` is the softmax
/// scale.
OracleOutput oracle_of_data(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale, int request,
                            int kv_head, std::int64_t context_length, const OracleRequest& details = {});

/// The oracle of a whole batch whose requests have one query token each, [batch, q_heads, ...], computed on `threads`
/// threads (0: one for each core).
OracleOutput oracle_of_batch(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale,
                             std::span<const int> context_lengths, int threads = 0);

/// The softmax scale that a kernel's scale_log2 argument means, and the argument for a scale. The oracles use the
/// former, so that rounding the argument to fp32 is no error of the kernel.
double scale_of_argument(float scale_log2);
float scale_argument(double scale);

}  // namespace v1
}  // namespace leanattn
