// decode_arguments.hpp -- DecodeArguments: the arguments of decode(), checked and turned into the problem, shape and
// arguments of a launch. Called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "leanattn/leanattn.h"
#include "tensor.hpp"

namespace leanattn::python {

class PageRows;

/// The arguments of decode() as they came; None where they were left out. docs/python.md explains them. They have
/// the order of the signature (kParameters in decode.cpp).
struct DecodeObjects {
  nanobind::handle q, k_cache, v_cache, context_lengths, page_table, v_head_dim;
  nanobind::handle scale, out, return_lse, out_lse;
  nanobind::handle kv_layout, kv_dtype, k_scale, v_scale, k_block_scales, v_block_scales;
  nanobind::handle max_q_len, q_offsets, kv_offsets, mask, tree_mask, spans;
  nanobind::handle window, sink_tokens, sink_logits, soft_cap, alibi_slopes, score;
  nanobind::handle k_new, v_new, rope_table, rope;
  nanobind::handle selection, selected_counts, selection_block;
  nanobind::handle second_k_cache, second_v_cache, second_page_table, second_lengths;
  nanobind::handle batch_invariant, pdl;
  nanobind::handle typical_batch, max_batch, longest_context, total_context, shape;
  nanobind::handle group, full_context_lengths, context_starts, context_interleave, replicate_output;
  nanobind::handle stream, engine, workspace;
  int ranks = 1;                   ///< of the group; 1: there is none
  const PageRows* rows = nullptr;  ///< what page_table and context_lengths are made of, which are None then
  std::int64_t max_pages = 0;      ///< with rows: columns of that page table
};

/// A context length for the look-up. It is rounded up by at most an eighth, so that it does not change at every step of
/// a cache that grows.
std::int64_t typical_context(std::int64_t tokens);

/// The arguments of one call. It keeps the tensors, and so must live until the launch is enqueued. Every check raises
/// an error that names the argument; nothing has been enqueued then.
class DecodeArguments {
 public:
  DecodeArguments(const DecodeObjects& objects, CUstream_st* stream);
  DecodeArguments(const DecodeArguments&) = delete;
  DecodeArguments& operator=(const DecodeArguments&) = delete;

  const leanattn_problem& problem() const { return problem_; }
  const leanattn_shape& shape() const { return shape_; }
  const leanattn_decode_args& launch() const { return launch_; }
  int device() const { return q_.device(); }
  bool wants_lse() const { return problem_.lse != 0; }
  /// Whether there is no query token, and so nothing to launch.
  bool is_empty() const { return batch_ == 0 || query_tokens_ == 0; }

  /// The shapes of the outputs, for those that were not given.
  nanobind::object out_shape() const;
  nanobind::object lse_shape() const;
  /// Checks the outputs as every other tensor.
  void set_out(nanobind::handle out, const char* name);
  void set_lse(nanobind::handle lse, const char* name);
  /// Where the launch finds what was given as rows. The GIL need not be held.
  void set_page_table(const std::int32_t* page_table, const std::int32_t* context_lengths);

 private:
  using Optional = std::optional<TensorView>;
  /// Reads an optional tensor, which must be on the GPU of q. False where it was left out.
  bool read(Optional& view, nanobind::handle object, const char* name);

  void read_queries(const DecodeObjects& objects);
  void read_cache(const DecodeObjects& objects);
  void read_cache_format(const DecodeObjects& objects);
  void read_scales(const DecodeObjects& objects);
  void read_block_scales(const DecodeObjects& objects);
  void read_masks(const DecodeObjects& objects);
  void read_scores(const DecodeObjects& objects);
  void read_new_tokens(const DecodeObjects& objects);
  void read_selection(const DecodeObjects& objects);
  void read_second_cache(const DecodeObjects& objects);
  void read_group(const DecodeObjects& objects);
  void read_shape(const DecodeObjects& objects);
  void require_dense_floats(Optional& view, std::int64_t count, const char* what) const;

  CUstream_st* stream_;
  leanattn_problem problem_;
  leanattn_shape shape_;
  leanattn_decode_args launch_;
  std::string score_;
  bool ragged_ = false, several_ = false;  // q is [tokens, ...]; q is [batch, q_len, ...]
  std::int64_t batch_ = 0, query_tokens_ = 0, capacity_ = 0, cache_tokens_ = 0;
  std::int64_t v_columns_ = 0;  // of v and the result
  int counted_ = -1;      // the dimension of k_cache whose stride counts scales that lie behind the rows; -1: none
  bool in_pool_ = false;  // a selection says where in the pool tokens lie
  TensorView q_, k_;
  Optional lengths_, selection_, selected_counts_, full_lengths_, starts_;
  Optional second_k_, second_v_, second_page_table_, second_lengths_;
  Optional v_, out_, lse_, page_table_, k_scale_, v_scale_, k_block_scales_, v_block_scales_, q_offsets_, kv_offsets_,
      tree_mask_, spans_, sink_logits_, alibi_slopes_, k_new_, v_new_, rope_table_;
};

}  // namespace leanattn::python
