// problem.hpp -- DecodeProblem (what a model fixes), Shape (what the caller knows or guesses of a step), Config (what
// is launched), and the bytes that a step reads. Plain data and pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// By what the ranks of a group reach each other's memory: the slowest link between any two of them. It decides what is
/// fast and never what is right. unknown: any of them, which is what a look-up asks that does not know.
enum class GroupLink : std::uint8_t { unknown, nvlink, pcie, same_gpu };
std::string_view to_string(GroupLink link);
/// Errors: invalid_argument, naming the choices.
Result<GroupLink> parse_group_link(std::string_view text);

/// What never changes in a model.
struct DecodeProblem {
  int q_heads = 32;
  int kv_heads = 8;  ///< divides q_heads
  int head_dim = 128;
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::contiguous;
  bool lse = false;
  /// Launches may overlap the kernel before them in the stream (programmatic dependent launch); docs/api.md has the
  /// contract. GPUs before sm_90 have no such launches and ignore this.
  bool pdl = false;
  Features features{};  ///< what is asked for beside plain dense decode
  /// Of the group that shares the contexts; unknown without context_parallel. Measurements belong to one link.
  GroupLink group_link = GroupLink::unknown;

  bool operator==(const DecodeProblem&) const = default;
};

/// The query tokens of a mixed step, where requests may bring prefill (has_prefill()). Those with several query tokens
/// are its chunks, and the others have one each. All 0: one each, or not known.
struct QueryMix {
  std::int64_t query_tokens = 0;  ///< of all requests together, or that a launch has room for
  int chunks = 0;                 ///< 0: the fewest that can have so many
  /// Tokens of the chunks' contexts together; 0: longest_context each.
  std::int64_t chunk_context = 0;
  /// Pairs of a chunk's query token and a token of its context up to that one, over all chunks; 0: of equal chunks.
  std::int64_t chunk_pairs = 0;

  bool operator==(const QueryMix&) const = default;
};

/// What the caller knows or guesses about a step. It decides how fast a launch is, never whether it is right. With a
/// selection, contexts count the tokens that a query token has selected, and not those of the request.
struct Shape {
  int batch = 1;
  int max_batch = 0;                    ///< for which the workspace is sized; 0: the same as batch
  std::int64_t longest_context = 1024;  ///< tokens
  std::int64_t total_context = 0;       ///< tokens, summed over the batch; 0: batch * longest_context
  QueryMix mix{};                       ///< of a problem with prefill; else all 0

  bool operator==(const Shape&) const = default;
};

/// The condition under which a time was measured. cold: K and V come from memory, as in every step of a model with many
/// layers. warm: they are in L2 already.
enum class L2Policy { cold, warm };
std::string_view to_string(L2Policy policy);
/// Errors: invalid_argument, naming the choices.
Result<L2Policy> parse_l2_policy(std::string_view text);

/// One choice that can be launched: a kernel, a grid, a segment cost and what the copy engine asks of L2.
struct Config {
  KernelSpec spec;
  std::int64_t grid = 1;  ///< CTAs
  /// Empty tile positions that the schedule puts before each output tile. They make the ranges of a ragged batch take
  /// equally long. In LeanTiles.
  int segment_cost = 0;
  /// Bytes that L2 fetches from memory for a tensor copy that misses, 128 or 256. 256 hides latency where little is
  /// read, and costs bandwidth where much is. It is a property of the launch's tensor maps and not of the kernel, so
  /// that it costs no compilation. 128 on all load paths but tensor, which have no such setting.
  int l2_promotion = 128;

  bool operator==(const Config&) const = default;
};

/// Errors: invalid_argument (zero, negative, overflowing, heads not divisible, a shape that contradicts itself, a mix
/// without prefill), unsupported (head_dim, v_head_dim, group); those of validate(Features).
Result<void> validate(const DecodeProblem& problem);
Result<void> validate(const DecodeProblem& problem, const Shape& shape);

/// The same problem, with those features at their defaults that change nothing: v_head_dim and rope_dim where they
/// repeat head_dim, kv_scale of a cache with q's elements, a full mask over one query token, the link of no group. A
/// kv_scale that is not asked for becomes the usual one of kv_format.
/// Where requests may bring prefill, q_len is the largest one, so that all such problems share kernels and winners.
/// Problems that mean the same are equal then. The results of the JSON readers are canonical.
DecodeProblem canonical(DecodeProblem problem);
/// The problem of one rank's part alone: without context_parallel and what goes with it, as if the part were all of it.
/// Without a group the same one.
DecodeProblem without_group(DecodeProblem problem);
/// The same problem with ordinary launches.
DecodeProblem without_pdl(DecodeProblem problem);
/// Columns of V and O.
int v_head_dim(const DecodeProblem& problem);

/// The same shape, with max_batch and total_context 0 where they only repeat what the other fields say, and canonical
/// mix. Shapes that mean the same are equal then.
Shape canonical(const Shape& shape);
/// The mix with nothing left at 0, and no more query tokens than the contexts have tokens; all 0 where nothing is
/// known, or where there is no more than one query token for each request.
QueryMix canonical_mix(const Shape& shape);
/// Query tokens of a canonical shape's chunks.
std::int64_t chunk_tokens(const Shape& shape);
/// The part of a shape that decides what is fast, canonical: max_batch decides the size of a plan.
Shape without_max_batch(Shape shape);
/// Tokens over the batch: total_context with its default filled in. Saturates at INT64_MAX.
std::int64_t total_tokens(const Shape& shape);
/// The shape counted in visible tokens, those that at least one query token sees: without a window the same shape. Of a
/// ragged batch only the longest request is known. The others are taken to be equally long, which can count too many
/// tokens but never too few. Of a group, lengths are those of a rank's parts, and a window shows as much of them as of
/// the rank that has most of it.
Shape visible_shape(const DecodeProblem& problem, const Shape& shape);

/// JSON on one line with sorted keys, for database keys and reports. Shapes are made canonical() first. A problem has
/// "pdl" only when it is true, "features" only when they are not plain and "group_link" only when it is known, a shape
/// has "mix" only when it is not 0, and a config has "segment_cost" only when it is not 0 and "l2_promotion" only when
/// it is not 128, so that what means the same always has the same text. The readers ignore unknown keys and accept only
/// what validate() accepts. Errors: invalid_argument (not such an object, a key missing, ill-typed or out of range),
/// those of validate.
std::string to_json(const DecodeProblem& problem);
std::string to_json(const Shape& shape);
std::string to_json(const Config& config);
Result<DecodeProblem> problem_from_json(std::string_view json);
Result<Shape> shape_from_json(std::string_view json);
Result<Config> config_from_json(std::string_view json);

/// The lengths of all requests of one step, for a caller who knows them. The arrays stay the caller's.
struct RequestLengths {
  /// [batch], in tokens; a negative one counts as 0. With a selection: those that each query token has selected.
  std::span<const int> context_lengths;
  std::span<const int> query_tokens = {};  ///< [batch], where they differ (ragged_q); empty: q_len each
  std::int64_t shared_tokens = 0;          ///< first tokens of every context, whose pages all requests share
};

/// The shape of a step of this problem, canonical. With query_tokens of a problem with prefill it has the mix. At least
/// one request is needed.
Shape shape_of(const DecodeProblem& problem, const RequestLengths& lengths);

/// The definition of the bytes that a step reads: the K and V of the visible tokens, in the elements of the cache, each
/// byte once, without scales. Divided by the time of a step this is its achieved bandwidth. A window or a ragged batch
/// makes the number for a shape an upper bound (visible_shape()); for lengths it is exact, except that of a group with
/// a window it is that of the rank that has most of the window. Both saturate at INT64_MAX.
std::int64_t kv_bytes(const DecodeProblem& problem, const Shape& shape);
std::int64_t kv_bytes(const DecodeProblem& problem, const RequestLengths& lengths);
/// Bytes of the scales that such a step reads beside them: two floats (latent: one) for each token and KV head of a
/// cache with KvScale::token, those of the blocks of two rows where blocks have scales, else 0.
std::int64_t kv_scale_bytes(const DecodeProblem& problem, const RequestLengths& lengths);
/// Achieved bandwidth in 10^9 bytes a second; 0 where `us` is not above 0.
double gb_per_s(std::int64_t bytes, double us);

}  // namespace v1
}  // namespace leanattn
