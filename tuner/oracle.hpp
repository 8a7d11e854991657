// oracle.hpp -- the FP64 oracle on the CPU: O = softmax(scale * Q K^T) V and LSE, with every feature of a problem. Pure
// functions; any thread. Checks the comparator in unit tests and the GPU's oracle in every verify run.
#pragma once

#include <cstdint>
#include <functional>
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
  std::span<const double> v;  ///< [context_length, v_head_dim]
  int v_head_dim = 0;         ///< columns of v and o; 0: head_dim
  /// Score (scaled), row, token -> the score that counts; -infinity where the row does not see the token. None: as is.
  std::function<double(double, int, std::int64_t)> transform = {};
  std::span<const double> sink_logits = {};  ///< [rows], counted in the denominator; none: empty
};

struct OracleOutput {
  std::vector<double> o;    ///< [..., rows, v_head_dim]
  std::vector<double> lse;  ///< [..., rows], natural log
};

OracleOutput oracle(const AttentionRows& input);

/// score, q_index, kv_index, query head -> score: what a problem's score expression means.
using ScoreFunction = std::function<double(double, int, int, int)>;

/// What belongs to one request of generated data, beside its length.
struct OracleRequest {
  int query_tokens = -1;           ///< its own; -1: the problem's q_len
  std::int64_t shared_tokens = 0;  ///< its first tokens that are request 0's
  ScoreFunction score = {};        ///< of a problem with a score expression
};

/// Tokens at the start of a context that every request reads from request 0's pages: whole pages, full of its tokens.
std::int64_t shared_tokens(const Features& features, int shared_prefix, std::int64_t context_of_request_0);

/// The oracle of one (request, KV head) of generated data: its rows are [query tokens, group of query heads]. `scale`
/// is the softmax scale.
OracleOutput oracle_of_data(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale, int request,
                            int kv_head, std::int64_t context_length, const OracleRequest& details = {});

/// All of a batch whose requests have one query token each, [batch, q_heads, ...], on `threads` threads (0: one per
/// core).
OracleOutput oracle_of_batch(const DecodeProblem& problem, DataKind kind, std::uint64_t seed, double scale,
                             std::span<const int> context_lengths, int threads = 0);

/// What a kernel makes of its scale_log2 argument: the softmax scale that the oracles use, so that rounding the
/// argument to fp32 is not held against a kernel.
double scale_of_argument(float scale_log2);
float scale_argument(double scale);

}  // namespace v1
}  // namespace leanattn
