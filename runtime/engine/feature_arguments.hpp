// feature_arguments.hpp -- what features add to a launch's arguments: arrays, pages, scales. Pure functions; any
// thread.
#pragma once

#include <cstdint>

#include "leanattn/leanattn.h"
#include "runtime/cuda/loaded_kernel.hpp"
#include "runtime/problem.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {

/// Kernels count a request's tokens in signed 32-bit steps.
inline constexpr int kMostTokens = 1 << 30;

/// Every array of a feature that the problem has, and nothing of one that it has not. Errors: invalid_argument, naming
/// the argument.
Result<void> check_feature_arguments(const DecodeProblem& problem, const leanattn_decode_args& args);

/// Whether no argument says anything about a feature: what there is to check of a plain problem's.
inline bool says_nothing_of_features(const leanattn_decode_args& args) noexcept {
  const auto word = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const std::uint64_t pointers = word(args.page_table) | word(args.q_offsets) | word(args.tree_mask) |
                                 word(args.alibi_slopes) | word(args.sink_logits) | word(args.k_scale) |
                                 word(args.v_scale) | word(args.k_new) | word(args.v_new) | word(args.rope_table) |
                                 word(args.selection) | word(args.selected_counts) | word(args.full_context_lengths) |
                                 word(args.context_starts) | word(args.second_k) | word(args.second_v) |
                                 word(args.second_page_table) | word(args.second_lengths) | word(args.spans) |
                                 word(args.kv_offsets) | word(args.k_block_scales) | word(args.v_block_scales);
  const std::int64_t sizes = args.page_table_stride | args.kv_scale_stride_batch | args.kv_scale_stride_head |
                             args.kv_scale_stride_token | args.pool_pages | args.max_pages | args.query_tokens |
                             args.k_new_stride_batch | args.k_new_stride_token | args.k_new_stride_head |
                             args.v_new_stride_batch | args.v_new_stride_token | args.v_new_stride_head |
                             args.selection_stride_batch | args.selection_stride_token | args.selection_stride_head |
                             args.selection_capacity | args.selection_heads | args.second_page_table_stride |
                             args.second_pool_pages | args.second_max_pages | args.reserved3;
  return pointers == 0 && sizes == 0;
}

/// Tokens that k and v hold per request: the caller's figure, or what its row of the page table amounts to; 0 where
/// selections say where in the pool tokens lie. Errors: invalid_argument (also for the sizes of pool and table),
/// unsupported (more than 2^30).
Result<int> capacity_of(const Features& features, const leanattn_decode_args& args);

/// The lists of what query tokens have selected, [batch, q_len, selection_heads, selection_capacity] unless strides say
/// otherwise. Returns how many tokens a list may name. Errors: invalid_argument, unsupported (more than 2^30 of them,
/// or a pool of more than 2^31).
Result<int> bind_selection(const DecodeProblem& problem, const leanattn_decode_args& args, LeanDecodeArgs& bound);

/// The second cache. Returns how many tokens of it a query token may see. Errors: invalid_argument, unsupported (more
/// than 2^30 of them, or either pool has more tokens).
Result<int> bind_second_cache(const Features& features, const leanattn_decode_args& args, LeanDecodeArgs& bound);

/// Strides of k_scale and v_scale, for a scale per token: [outermost, kv_heads, tokens] unless given, where `outermost`
/// counts requests, or pages of `tokens`. Or those of k_block_scales and v_block_scales, of as many rows of scales.
/// Errors: invalid_argument.
Result<void> bind_scales(const DecodeProblem& problem, const leanattn_decode_args& args, std::int64_t tokens,
                         std::int64_t outermost, LeanDecodeArgs& bound);

/// Whether K, V and scales of bound arguments share rows, where the problem's scales lie in rows. `tokens` and
/// `outermost` as above. Errors: invalid_argument, naming what lies elsewhere.
Result<void> check_shared_rows(const DecodeProblem& problem, std::int64_t tokens, std::int64_t outermost,
                               const LeanDecodeArgs& bound);

/// Strides of k_new and v_new: [batch, q_len, kv_heads, columns] unless given. `requests` and `query_tokens` are what
/// the batch and token strides step along. Errors: invalid_argument.
Result<void> bind_new_tokens(const DecodeProblem& problem, const leanattn_decode_args& args, std::int64_t requests,
                             std::int64_t query_tokens, LeanDecodeArgs& bound);

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
