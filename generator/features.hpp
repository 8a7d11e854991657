// features.hpp -- Features: what a model or a server may want beside plain dense decode. Part of a DecodeProblem and of
// a KernelSpec; each is compiled into a kernel only when asked for. Plain data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// What the query tokens of a request see of each other, if there are several. They all see every token before them.
///   causal  each sees those up to itself (verification of a speculated chain)
///   tree    each sees those that its word of a bit mask names (verification of a speculated tree)
///   full    each sees all (queries of several requests over a prefix that they share)
enum class QueryMask : std::uint8_t { causal, tree, full };

/// Rotary position embedding of q, and of keys that are appended: dim i turns with dim i + rope_dim / 2, or dim 2 i
/// with 2 i + 1.
enum class Rope : std::uint8_t { none, half_split, interleaved };

/// Element type of the KV cache: that of q, one byte, or four bits. fp8_ds_mla, fp8_ds_v4: rows of a latent cache that
/// have a format of their own (kv_encoding.hpp).
enum class KvFormat : std::uint8_t { same, fp8_e4m3, fp8_e5m2, int8, fp8_ds_mla, int4, nvfp4, fp8_ds_v4 };
/// What has a scale of its own, in a cache of one-byte or four-bit elements: the whole tensor, a KV head, or a token of
/// a head. in_row: a token of a head too, whose scale lies among the rows, which are aligned to four bytes only.
enum class KvScale : std::uint8_t { tensor, head, token, in_row };

std::string_view to_string(QueryMask v);
std::string_view to_string(Rope v);
std::string_view to_string(KvFormat v);
std::string_view to_string(KvScale v);

/// Each member has a row in the table of features (feature_table.hpp).
struct Features {
  int page_size = 0;  ///< tokens per page of a paged cache; 0: dense

  /// K and V are no cache: those of all requests follow each other, and an array says where a request's begin.
  bool packed_kv = false;

  int q_len = 1;          ///< most query tokens of a request, 1 to most_query_tokens(); the last tokens of its context
  bool ragged_q = false;  ///< each request has its own number of them, 0 to q_len
  QueryMask mask = QueryMask::causal;  ///< of no consequence where q_len is 1, where tree is refused

  /// Each query token says in which span of tokens it is, if any. Tokens of a span see each other both ways, beside
  /// what the causal mask and a window show (images of a prompt).
  bool spans = false;

  int window = 0;            ///< tokens a query sees, its own the last of them; mask full: to either side; 0: all
  int sink_tokens = 0;       ///< first tokens of a context that stay visible beside the window
  bool sink_logits = false;  ///< each query head has a learned logit that counts in the softmax's denominator only

  double soft_cap = 0;  ///< scores become cap * tanh(score / cap); 0: as they are
  bool alibi = false;   ///< slope[head] * (kv index - q index) is added to scores
  /// What replaces each score: an expression of score, q_index, kv_index and head (score_expression.hpp); empty: none.
  std::string score{};

  KvFormat kv_format = KvFormat::same;
  KvScale kv_scale = KvScale::tensor;  ///< of no consequence where kv_format is same

  int v_head_dim = 0;  ///< columns of V and O; 0: head_dim
  /// V is the first v_head_dim columns of K, so that one cache holds both (multi-head latent attention; DeepSeek-V2,
  /// section 2.1, with the projections absorbed into q and o).
  bool latent = false;

  /// The query tokens' own K and V are given beside the cache, and written into it before they are read.
  bool append = false;
  Rope rope = Rope::none;
  /// Dims that turn: the first of a head or, if latent, the first behind V's columns; 0: all of these.
  int rope_dim = 0;

  /// A request's bits do not depend on its batch mates or the grid: every LeanTile is a partial of its own.
  bool batch_invariant = false;

  /// Each query token brings a list of what it sees (a selection; sparse attention), whose entries are blocks of so
  /// many tokens: 1, 16, 32, 64 or 128. 0: it sees all of its context. The cache is paged.
  int selection_block = 0;
  /// Entries count blocks from the start of the pool; otherwise from the start of the request's context, and the page
  /// table says where these lie.
  bool selection_in_pool = false;
  /// Beside what it has selected, a query token sees the first tokens of its request in a second cache, whose pages are
  /// as those of the first.
  bool second_cache = false;

  /// Ranks (GPUs) that hold a part of every context each and merge their results in the kernel: 2 to 8; 1: one GPU has
  /// all of it.
  int context_parallel = 1;
  /// Which tokens a rank holds: units of so many tokens in turn, a power of two up to 256; 0: one contiguous part of
  /// every context.
  int context_interleave = 0;
  /// Ranks to which the tokens of every context are dealt, where these are more than the context_parallel ranks that
  /// merge in the kernel; 0: those. Callers leave it 0: groups over NCCL ask it of the kernels of their parts, where
  /// these must know positions in the whole contexts.
  int context_ranks = 0;
  /// Every rank writes the results of all query heads; otherwise each writes those of its share of the heads.
  bool replicate_output = false;

  bool operator==(const Features&) const = default;
};

/// Whether nothing beside plain dense decode is asked for.
bool is_plain(const Features& features);
/// Whether the kernel computes scores in natural units before the softmax (soft cap, ALiBi, an expression), instead of
/// folding the scale into the exponent.
bool transforms_scores(const Features& features);
/// Whether query tokens bring lists of what they see.
inline bool has_selection(const Features& features) { return features.selection_block > 0; }
/// Whether several ranks share every context, and merge their results in the kernel.
inline bool in_group(const Features& features) { return features.context_parallel > 1; }
/// Ranks to which the tokens of every context are dealt; 1: the GPU has all of them.
inline int ranks_of_context(const Features& features) {
  return features.context_ranks > 0 ? features.context_ranks : features.context_parallel;
}
/// Whether the GPU has a part of every context, whoever merges the results.
inline bool has_part_of_context(const Features& features) { return ranks_of_context(features) > 1; }
/// Whether the kernel of a rank computes with indices of tokens in the whole context.
inline bool needs_indices(const Features& features) {
  return has_part_of_context(features) && (features.alibi || !features.score.empty() || features.rope != Rope::none);
}
/// Whether the kernel of a rank must know where in the whole context its tokens lie.
inline bool needs_positions(const Features& features) {
  return needs_indices(features) ||
         (has_part_of_context(features) &&
          (features.window > 0 || features.append || (features.q_len > 1 && features.mask != QueryMask::full)));
}
/// The most query tokens of a request that decodes.
inline constexpr int kMostDecodeTokens = 16;
/// The largest q_len with these features: kMostDecodeTokens, with the full mask 1024. Where requests have their own
/// numbers of query tokens it is kMostPrefillTokens, but not with a tree mask, batch invariance or a part of a context.
inline constexpr int kMostPrefillTokens = 1 << 17;
int most_query_tokens(const Features& features);
/// Whether requests may bring prefill: more query tokens than decode has, each request its own number of them. Then
/// q_len says nothing of a launch. In a canonical problem it is kMostPrefillTokens.
bool has_prefill(const Features& features);
/// The most ranks of a group.
inline constexpr int kMostContextParallel = 8;
/// Query rows that read the same tokens of one KV head: group * q_len, or the group of one query token where each has a
/// selection of its own.
int query_rows(const Features& features, int group);

/// Whether every value is in its domain. Errors: invalid_argument (a value makes no sense, or contradicts another),
/// unsupported (a limit, which the message names).
Result<void> validate(const Features& features);
/// Dims of a head that may turn: all, or those behind V's columns of a latent cache; and the first of them.
int turning_dims(const Features& features, int head_dim);
int first_turning_dim(const Features& features, int head_dim);
/// Whether the features fit heads of so many dims: the dims that turn, and V as a part of K. Errors: invalid_argument.
Result<void> validate_for_head(const Features& features, int head_dim);

/// A part of a kernel's name, e.g. "_p16_q4_win4096". Empty if is_plain.
std::string features_name(const Features& features);
/// A hash that tells Features apart. 0 if is_plain.
std::uint64_t features_hash(const Features& features);

/// JSON object with the fields that differ from the default only, keys sorted, one line. from_json ignores unknown keys
/// and accepts only what validate() accepts. Errors: invalid_argument, those of validate.
std::string to_json(const Features& features);
Result<Features> features_from_json(std::string_view json);

}  // namespace v1
}  // namespace leanattn
