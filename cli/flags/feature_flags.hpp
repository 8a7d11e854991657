// feature_flags.hpp -- FeatureFlags: what a problem asks for beside plain dense decode, such as pages, a window or a
// one-byte cache. Main thread.
#pragma once

#include <string>

#include "generator/kernel_spec.hpp"

namespace CLI {
class App;
}

namespace leanattn {
inline namespace v1 {

/// The text of every flag as typed. It is empty for flags that were not given.
struct FeatureFlags {
  std::string page_size, q_len, query_mask;
  std::string window, sink_tokens;
  std::string soft_cap, score;
  std::string kv_dtype, kv_scale;
  std::string v_head_dim, rope, rope_dim;
  std::string selection_block, context_parallel, context_interleave;
  bool ragged_q = false, sink_logits = false, alibi = false, latent = false, append = false, batch_invariant = false;
  bool selection_in_pool = false, second_cache = false, replicate_output = false;
};

/// Registers the flags. `flags` must live until the program has been parsed and run.
void add_feature_flags(CLI::App& command, FeatureFlags& flags);

/// A model's features, of which every flag that was given replaces its own. Errors: invalid_argument and unsupported,
/// naming the flag and its value. Whether the features can be had together is left to validate().
Result<Features> with_flags(Features features, const FeatureFlags& flags, DType dtype);

}  // namespace v1
}  // namespace leanattn
