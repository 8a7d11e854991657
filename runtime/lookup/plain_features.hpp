// plain_features.hpp -- is_plain() without a call or a branch for each field, because it runs at every decode step. Any
// thread.
#pragma once

#include "generator/features.hpp"

namespace leanattn {
inline namespace v1 {

/// The same answer as is_plain(). It names every field of Features, so that a new field does not compile before it is
/// counted here.
inline bool is_plain_fast(const Features& features) noexcept {
  const auto& [page_size, q_len, ragged_q, mask, window, sink_tokens, sink_logits, soft_cap, alibi, score, kv_format,
               kv_scale, v_head_dim, latent, append, rope, rope_dim, batch_invariant, selection_block,
               selection_in_pool, second_cache, context_parallel, context_interleave, context_ranks, replicate_output] =
      features;
  const int any = page_size | (q_len ^ 1) | static_cast<int>(ragged_q) | static_cast<int>(mask) | window | sink_tokens |
                  static_cast<int>(sink_logits) | static_cast<int>(alibi) | static_cast<int>(score.size()) |
                  static_cast<int>(kv_format) | static_cast<int>(kv_scale) | v_head_dim | static_cast<int>(latent) |
                  static_cast<int>(batch_invariant) | static_cast<int>(append) | static_cast<int>(rope) | rope_dim |
                  selection_block | static_cast<int>(selection_in_pool) | static_cast<int>(second_cache) |
                  (context_parallel ^ 1) | context_interleave | context_ranks | static_cast<int>(replicate_output);
  return any == 0 && soft_cap == 0;
}

}  // namespace v1
}  // namespace leanattn
