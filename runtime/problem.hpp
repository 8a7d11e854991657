// problem.hpp -- DecodeProblem (fixed by a model) and Shape (known or guessed by the caller). Plain data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/kernel_spec.hpp"

namespace leanattn {
inline namespace v1 {

/// What never changes in a model.
struct DecodeProblem {
  int q_heads = 32;
  int kv_heads = 8;  ///< divides q_heads
  int head_dim = 128;
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::contiguous;
  bool lse = false;
  /// Launches may overlap the kernel before them in the stream (programmatic dependent launch); docs/api.md has the
  /// contract. A GPU before sm_90 has no such launches: there it asks for nothing.
  bool pdl = false;
  Features features{};  ///< caches, masks and scores beside the plain ones

  bool operator==(const DecodeProblem&) const = default;
};

/// What the caller knows or guesses about a step. It chooses speed, never correctness.
struct Shape {
  int batch = 1;
  int max_batch = 0;                    ///< 0: same as batch. Workspace is sized for it
  std::int64_t longest_context = 1024;  ///< tokens
  std::int64_t total_context = 0;       ///< sum over the batch in tokens; 0: batch * longest_context

  bool operator==(const Shape&) const = default;
};

/// One runnable choice: a kernel and its grid.
struct Config {
  KernelSpec spec;
  std::int64_t grid = 1;  ///< CTAs
  /// What the schedule charges an output tile beside its LeanTiles, in LeanTiles: balances very uneven batches in time.
  int segment_cost = 0;

  bool operator==(const Config&) const = default;
};

/// Errors: invalid_argument (zero, negative, overflowing, heads not divisible, a shape that contradicts itself),
/// unsupported (head_dim, v_head_dim, group); those of validate(Features).
Result<void> validate(const DecodeProblem& problem);
Result<void> validate(const DecodeProblem& problem, const Shape& shape);

/// The same problem with the features that have no consequence at their defaults (v_head_dim and rope_dim where they
/// repeat head_dim, kv_scale of a cache with q's elements, a full mask over one query token): equal meaning, equal
/// value. The readers' results are canonical.
DecodeProblem canonical(DecodeProblem problem);
/// Columns of V and O.
int v_head_dim(const DecodeProblem& problem);

/// The same shape with max_batch and total_context 0 where they only repeat what the other fields say: equal meaning,
/// equal value.
Shape canonical(const Shape& shape);
/// total_context with its default filled in: tokens over the batch. Saturates at INT64_MAX.
std::int64_t total_tokens(const Shape& shape);
/// The shape that is left of it where a window hides tokens: the longest request and the total count tokens that some
/// query sees. Of a ragged batch only its longest request is known, so the others count as if equal: at most too many.
/// The same shape without a window.
Shape visible_shape(const DecodeProblem& problem, const Shape& shape);
/// Tokens over the batch that a step must read: total_tokens of visible_shape().
std::int64_t visible_tokens(const DecodeProblem& problem, const Shape& shape);

/// Canonical one-line JSON, keys sorted; used as database keys and in reports. A shape is made canonical() first.
/// The readers ignore unknown keys and accept only what validate() accepts. Errors: invalid_argument (not such an
/// object, a key missing, ill-typed or out of range), those of validate. A problem's "pdl" is there only when true, so
/// that the keys of ordinary launches stay what they were before there was another kind; likewise its "features" only
/// when not plain, and a config's "segment_cost" only when not zero.
std::string to_json(const DecodeProblem& problem);
std::string to_json(const Shape& shape);
std::string to_json(const Config& config);
Result<DecodeProblem> problem_from_json(std::string_view json);
Result<Shape> shape_from_json(std::string_view json);
Result<Config> config_from_json(std::string_view json);

/// Bytes of K and V the step must read (visible tokens, each once; scales not counted): the numerator of achieved
/// bandwidth. Saturates at INT64_MAX.
std::int64_t kv_bytes(const DecodeProblem& problem, const Shape& shape);

}  // namespace v1
}  // namespace leanattn
