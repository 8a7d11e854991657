// plan_arguments.cpp -- a launch's arguments: defaults filled in, every value checked before anything reaches the GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "generator/row_format.hpp"
#include "runtime/engine/argument_checks.hpp"
#include "runtime/engine/feature_arguments.hpp"
#include "runtime/engine/plan.hpp"
#include "runtime/lookup/plain_features.hpp"
#include "templates/line/schedule.cuh"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kQueryElementBytes = 2;            // of q and o; those of k and v are the problem's
constexpr std::uintptr_t kWorkspaceBytes = 256;  // the alignment that workspace_layout() counts from
constexpr std::int64_t kMostOutputs = 1 << 20;   // the kernel's estimated quotients are exact below it

using namespace detail;

/// The dense strides of K or V in the layout that the problem names. `tokens` of a request, or of a page: then `batch`
/// is the step between pages.
struct DenseCache {
  std::int64_t batch, head, token;
};
DenseCache dense_cache(const DecodeProblem& problem, std::int64_t tokens, std::int64_t columns) {
  // tokens x columns alone always fits.
  const std::int64_t batch = stride_product(problem.kv_heads, tokens * columns);
  if (problem.layout == KvLayout::contiguous) return {batch, tokens * columns, columns};
  return {batch, columns, problem.kv_heads * columns};
}

}  // namespace

Result<void> check_workspace(const WorkspaceLayout& layout, const void* workspace, std::int64_t bytes) {
  if (auto ok = check_pointer("workspace", workspace, kWorkspaceBytes); !ok) return ok;
  if (bytes < layout.total_bytes) {
    return invalid(fmt::format("the workspace has {} bytes, this plan needs {}", bytes, layout.total_bytes),
                   "Ask leanattn_plan_workspace_bytes.");
  }
  return {};
}

Result<LeanDecodeArgs> bind_arguments(const LaunchLimits& limits, const leanattn_decode_args& args, void* workspace) {
  const DecodeProblem& problem = limits.problem;
  const Features& features = problem.features;
  if (args.batch < 0 || args.batch > limits.size.batch) [[unlikely]] {
    return invalid(fmt::format("batch is {}, this plan takes 0 to {}", args.batch, limits.size.batch),
                   "A plan takes up to the max_batch of the shape it was made for.");
  }
  const Result<int> tokens = capacity_of(features, args);
  if (!tokens) [[unlikely]]
    return tl::unexpected(tokens.error());
  if (!std::isfinite(args.scale) || args.scale < 0) [[unlikely]] {
    return invalid(fmt::format("scale is {}", args.scale), "Give a positive number, or 0 for 1 / sqrt(head_dim).");
  }
  // With absorbed projections head_dim is not the width of the model's keys, so that it says nothing about the scale.
  if (features.latent && args.scale == 0) [[unlikely]]
    return invalid("scale is 0, and a latent problem has no default", "Give the model's softmax scale.");
  if (args.reserved != 0) [[unlikely]] {
    return invalid(fmt::format("decode_args.reserved is {}", args.reserved),
                   "Leave it 0; leanattn_decode_args_init does.");
  }
  struct Pointer {
    const char* name;
    const void* value;
    std::uintptr_t alignment;
  };
  const void* const v = features.latent ? args.k : args.v;
  if (features.latent && args.v != nullptr) [[unlikely]]
    return invalid("v is given, but this plan's problem is latent", "Leave v null: it is the first columns of k.");
  for (const Pointer& pointer :
       {Pointer{"q", args.q, kVectorBytes}, Pointer{"k", args.k, kVectorBytes}, Pointer{"v", v, kVectorBytes},
        Pointer{"o", args.o, kVectorBytes},
        features.selection_in_pool ? Pointer{"selected_counts", args.selected_counts, alignof(std::int32_t)}
                                   : Pointer{"context_lengths", args.context_lengths, alignof(std::int32_t)},
        Pointer{"workspace", workspace, kWorkspaceBytes}}) {
    if (args.batch == 0 && pointer.value == nullptr) continue;  // frameworks have no memory for what is empty
    if (auto ok = check_pointer(pointer.name, pointer.value, pointer.alignment); !ok) [[unlikely]] {
      return tl::unexpected(std::move(ok.error()));
    }
  }
  if (problem.lse && (args.batch > 0 || args.lse != nullptr)) {
    if (auto ok = check_pointer("lse", args.lse, alignof(float)); !ok) [[unlikely]] {
      return tl::unexpected(std::move(ok.error()));
    }
  } else if (!problem.lse && args.lse != nullptr) [[unlikely]] {
    return invalid("lse is given, but this plan's problem has no LSE output", "Set lse in the problem to get it.");
  }

  const bool plain = is_plain_fast(features);
  if (!plain || !says_nothing_of_features(args)) {
    if (auto ok = check_feature_arguments(features, args); !ok) [[unlikely]]
      return tl::unexpected(std::move(ok.error()));
  }

  const bool paged = features.page_size > 0;
  const std::int64_t batch = args.batch;
  std::int64_t capacity = *tokens;
  // A second cache has the same strides; bind_second_cache() refuses more pages.
  const std::int64_t pages =
      features.second_cache ? std::max(args.pool_pages, std::min<std::int64_t>(args.second_pool_pages, kMostTokens))
                            : args.pool_pages;
  // What k_stride_batch and k_stride_token step along: requests and their tokens, or pages and theirs.
  const std::int64_t entries = paged ? pages : batch, entry_tokens = paged ? features.page_size : capacity;
  const int element_bytes = kv_element_bytes(features);
  const Row q_row{"head_dim", problem.head_dim, kQueryElementBytes};
  const Row o_row{.name = features.v_head_dim != 0 ? "v_head_dim" : "head_dim",
                  .columns = v_head_dim(problem),
                  .element_bytes = kQueryElementBytes,
                  .written = true};
  const RowFormat* const format = row_format(features);
  const Row k_row = format != nullptr ? Row{"a row of the kv_format", format->bytes, element_bytes, features.append}
                                      : Row{q_row.name, q_row.columns, element_bytes, features.append};
  const Row v_row{o_row.name, o_row.columns, element_bytes, features.append};
  const DenseCache dense_k = dense_cache(problem, entry_tokens, k_row.columns);
  LeanDecodeArgs bound{};
  bound.q_stride_head = or_dense(args.q_stride_head, q_row.columns);
  bound.q_stride_token = or_dense(args.q_stride_token, problem.q_heads * q_row.columns);
  bound.o_stride_head = or_dense(args.o_stride_head, o_row.columns);
  bound.o_stride_token = or_dense(args.o_stride_token, problem.q_heads * o_row.columns);
  // Of one query token the token stride is never followed, so it says nothing about the batch's.
  const bool several = features.q_len > 1;
  bound.q_stride_batch =
      or_dense(args.q_stride_batch,
               stride_product(features.q_len, several ? bound.q_stride_token : problem.q_heads * q_row.columns));
  bound.o_stride_batch =
      or_dense(args.o_stride_batch,
               stride_product(features.q_len, several ? bound.o_stride_token : problem.q_heads * o_row.columns));
  bound.k_stride_token = or_dense(args.k_stride_token, dense_k.token);
  bound.k_stride_head = or_dense(args.k_stride_head, dense_k.head);
  bound.k_stride_batch = or_dense(args.k_stride_batch, dense_k.batch);
  // Rows of V in a latent cache are parts of K's rows.
  const DenseCache dense_v = features.latent
                                 ? DenseCache{bound.k_stride_batch, bound.k_stride_head, bound.k_stride_token}
                                 : dense_cache(problem, entry_tokens, v_row.columns);
  bound.v_stride_token = or_dense(args.v_stride_token, dense_v.token);
  bound.v_stride_head = or_dense(args.v_stride_head, dense_v.head);
  bound.v_stride_batch = or_dense(args.v_stride_batch, dense_v.batch);
  // Requests of ragged numbers of query tokens follow each other token by token: at most q_len each.
  const std::int64_t requests = features.ragged_q ? 1 : batch;
  const std::int64_t query_tokens = features.ragged_q ? batch * features.q_len : features.q_len;
  if (auto ok = check_strides(q_row, {{"q_stride_batch", bound.q_stride_batch, requests},
                                      {"q_stride_token", bound.q_stride_token, query_tokens},
                                      {"q_stride_head", bound.q_stride_head, problem.q_heads}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(o_row, {{"o_stride_batch", bound.o_stride_batch, requests},
                                      {"o_stride_token", bound.o_stride_token, query_tokens},
                                      {"o_stride_head", bound.o_stride_head, problem.q_heads}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(k_row, {{"k_stride_batch", bound.k_stride_batch, entries},
                                      {"k_stride_head", bound.k_stride_head, problem.kv_heads},
                                      {"k_stride_token", bound.k_stride_token, entry_tokens}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (auto ok = check_strides(v_row, {{"v_stride_batch", bound.v_stride_batch, entries},
                                      {"v_stride_head", bound.v_stride_head, problem.kv_heads},
                                      {"v_stride_token", bound.v_stride_token, entry_tokens}});
      !ok) [[unlikely]] {
    return tl::unexpected(std::move(ok.error()));
  }
  if (problem.layout == KvLayout::contiguous) {
    struct TokenStride {
      const char* name;
      std::int64_t stride, columns;
    };
    for (const TokenStride& token : {TokenStride{"k_stride_token", bound.k_stride_token, k_row.columns},
                                     TokenStride{"v_stride_token", bound.v_stride_token, dense_v.token}}) {
      if (token.stride == token.columns || entry_tokens == 1) [[likely]]
        continue;
      return invalid(fmt::format("{} is {}, but the problem's KV layout is contiguous: {}", token.name, token.stride,
                                 token.columns),
                     "Make the plan with the strided layout.");
    }
  }
  if (features.append) {
    if (auto ok = bind_new_tokens(problem, args, requests, query_tokens, bound); !ok) [[unlikely]]
      return tl::unexpected(std::move(ok.error()));
  }
  if (has_one_byte_elements(features) && features.kv_scale == KvScale::token) {
    if (auto ok = bind_token_scales(problem, args, entry_tokens, entries, bound); !ok) [[unlikely]]
      return tl::unexpected(std::move(ok.error()));
  }

  const bool selects = has_selection(features);
  if (selects) {
    // From here on, lengths are those of lists.
    const Result<int> selected = bind_selection(problem, args, bound);
    if (!selected) [[unlikely]]
      return tl::unexpected(selected.error());
    capacity = *selected;
    if (features.second_cache) {
      const Result<int> second = bind_second_cache(features, args, bound);
      if (!second) [[unlikely]]
        return tl::unexpected(second.error());
      capacity += *second + features.selection_block;  // whose last block may have a part only
    }
  }
  const std::int64_t lists = selects ? batch * features.q_len : batch;

  if (limits.size.context_capacity != 0 && capacity > limits.size.context_capacity) [[unlikely]] {
    return invalid(fmt::format("contexts of up to {} tokens, and this batch-invariant plan's workspace is made for {}",
                               capacity, limits.size.context_capacity),
                   "Give the plan's shape that longest_context.");
  }
  if (const std::int64_t outputs = std::int64_t{problem.kv_heads} * limits.row_blocks; outputs > kMostOutputs)
      [[unlikely]] {
    return fail(ErrorCode::unsupported, fmt::format("{} output tiles a request, more than 2^20", outputs),
                "Split the KV heads over several launches.");
  }
  if (capacity > kMostTokens ||
      !lean_line_fits(static_cast<unsigned>(lists), static_cast<unsigned>(problem.kv_heads * limits.row_blocks),
                      static_cast<unsigned>(capacity), static_cast<unsigned>(limits.tile),
                      static_cast<unsigned>(limits.segment_cost), features.sink_tokens)) [[unlikely]] {
    return fail(ErrorCode::unsupported,
                fmt::format("batch {} x {} KV heads x context_capacity {} may need 2^30 LeanTiles of {} tokens or more",
                            args.batch, problem.kv_heads, capacity, limits.tile),
                "Lower context_capacity (at most 2^30) or the batch; the schedule counts tiles in 32 bits.");
  }

  constexpr float kLog2E = 1.44269504088896341f;
  const float scale = args.scale > 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  bound.q = args.q;
  bound.k = args.k;
  bound.v = v;
  bound.o = args.o;
  bound.lse = args.lse;
  bound.context_lengths = args.context_lengths;
  bind_workspace(bound, limits.workspace, workspace);
  bound.batch = args.batch;
  bound.kv_heads = problem.kv_heads;
  bound.context_capacity = *tokens;
  // Kernels that transform scores scale them first; the others fold the scale into the exponent.
  bound.score_scale = scale;
  bound.scale_log2 = !plain && transforms_scores(features) ? kLog2E : scale * kLog2E;
  if (!plain) {
    bound.page_table = args.page_table;
    bound.page_table_stride = or_dense(args.page_table_stride, args.max_pages);
    bound.pool_pages = static_cast<int>(args.pool_pages);
    bound.q_offsets = args.q_offsets;
    bound.tree_mask = args.tree_mask;
    bound.alibi_slopes = args.alibi_slopes;
    bound.sink_logits = args.sink_logits;
    bound.k_scale = args.k_scale;
    bound.v_scale = features.latent ? args.k_scale : args.v_scale;
    bound.rope_table = args.rope_table;
    bound.k_new = args.k_new;
    bound.v_new = args.v_new;
    bound.full_lengths = args.full_context_lengths;
    bound.context_starts = args.context_starts;
  }
  bound.segment_cost = static_cast<unsigned>(limits.segment_cost);
  return bound;
}

}  // namespace v1
}  // namespace leanattn
