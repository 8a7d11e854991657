// plan_arguments.cpp -- a launch's arguments: defaults filled in, every value checked before anything reaches the GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "generator/feature_table.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/engine/argument_checks.hpp"
#include "runtime/engine/feature_arguments.hpp"
#include "runtime/engine/plan.hpp"
#include "templates/line/schedule.cuh"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kQueryElementBytes = 2;            // of q and o; those of k and v are the problem's
constexpr std::uintptr_t kWorkspaceBytes = 256;  // the alignment that workspace_layout() counts from
constexpr std::int64_t kMostRows = 0x7fffffff;   // of q that kernels count
constexpr std::int64_t kMostOutputs = 1 << 20;   // the kernel's estimated quotients are exact below it

using namespace detail;

/// The dense strides of K or V in the layout that the problem names. `tokens` of a request, or of a page: then `batch`
/// is the step between pages.
struct DenseCache {
  std::int64_t batch, head, token;
};
DenseCache dense_cache(const DecodeProblem& problem, std::int64_t tokens, std::int64_t columns) {
  // tokens x columns alone always fits.
  const std::int64_t plane = plane_bytes(problem.features, tokens), head = tokens * columns + plane;
  const std::int64_t batch = stride_product(problem.kv_heads, head);
  if (problem.layout == KvLayout::contiguous || plane > 0) return {batch, head, columns};
  return {batch, columns, problem.kv_heads * columns};
}

/// Rows of the four tensors.
struct Rows {
  Row q, o, k, v;
};
Rows rows_of(const DecodeProblem& problem) {
  const Features& features = problem.features;
  const int element_bytes = kv_element_bytes(features);
  const KvEncoding& encoding = kv_encoding(features);
  const auto alignment = static_cast<unsigned>(kv_alignment(features));
  const Row q{"head_dim", problem.head_dim, kQueryElementBytes};
  // V of a row with a format of its own is a part of K.
  const std::int64_t v_columns =
      encoding.row != nullptr ? v_head_dim(problem) : encoding.row_stride(v_head_dim(problem));
  const Row o{.name = features.v_head_dim != 0 ? "v_head_dim" : "head_dim",
              .columns = v_head_dim(problem),
              .element_bytes = kQueryElementBytes,
              .written = true};
  if (has_scales_in_rows(features)) {
    const Row row{"a row of the kv_format", encoding.shared_row_bytes(problem.head_dim, v_head_dim(problem)),
                  element_bytes, features.append, alignment};
    return {.q = q, .o = o, .k = row, .v = row};
  }
  return {.q = q,
          .o = o,
          .k = {encoding.row != nullptr || encoding.bits < 8 ? "a row of the kv_format" : q.name,
                encoding.row_stride(problem.head_dim), element_bytes, features.append, alignment},
          .v = {encoding.bits < 8 ? "a row of the kv_format" : o.name, v_columns, element_bytes, features.append,
                alignment}};
}

/// The query tokens of all requests for which a launch has memory.
std::int64_t query_tokens_of(const Features& features, const leanattn_decode_args& args) {
  return args.query_tokens > 0 ? args.query_tokens : std::int64_t{args.batch} * features.q_len;
}

/// How many steps the strides of the batch and of tokens take.
struct Extents {
  std::int64_t requests, query_tokens;  ///< of q and o
  std::int64_t entries, entry_tokens;   ///< of k and v: requests and their tokens, or pages and theirs
};
Extents extents_of(const Features& features, const leanattn_decode_args& args, std::int64_t capacity) {
  // A second cache has the same strides; bind_second_cache() refuses more pages.
  const std::int64_t pages =
      features.second_cache ? std::max(args.pool_pages, std::min<std::int64_t>(args.second_pool_pages, kMostTokens))
                            : args.pool_pages;
  const bool paged = features.page_size > 0;
  const std::int64_t batch = args.batch;
  // Requests of ragged numbers of query tokens follow each other token by token.
  return {.requests = features.ragged_q ? 1 : batch,
          .query_tokens = features.ragged_q ? query_tokens_of(features, args) : features.q_len,
          .entries = paged                ? pages
                     : features.packed_kv ? 1
                                          : batch,
          .entry_tokens = paged ? features.page_size : capacity};
}

Result<void> check_numbers(const LaunchLimits& limits, const leanattn_decode_args& args) {
  if (args.batch < 0 || args.batch > limits.size.batch) [[unlikely]] {
    return invalid(fmt::format("batch is {}, this plan takes 0 to {}", args.batch, limits.size.batch),
                   "A plan takes up to the max_batch of the shape it was made for.");
  }
  if (!std::isfinite(args.scale) || args.scale < 0) [[unlikely]]
    return invalid(fmt::format("scale is {}", args.scale), "Give a positive number, or 0 for 1 / sqrt(head_dim).");
  // With absorbed projections head_dim is not the width of the model's keys, so that it says nothing about the scale.
  if (limits.problem.features.latent && args.scale == 0) [[unlikely]]
    return invalid("scale is 0, and a latent problem has no default", "Give the model's softmax scale.");
  if (args.reserved != 0) [[unlikely]] {
    return invalid(fmt::format("decode_args.reserved is {}", args.reserved),
                   "Leave it 0; leanattn_decode_args_init does.");
  }
  return {};
}

Result<void> check_pointers(const DecodeProblem& problem, const leanattn_decode_args& args, const void* workspace) {
  struct Pointer {
    const char* name;
    const void* value;
    std::uintptr_t alignment;
  };
  const Features& features = problem.features;
  const auto alignment = static_cast<std::uintptr_t>(kv_alignment(features));
  if (features.latent && args.v != nullptr) [[unlikely]]
    return invalid("v is given, but this plan's problem is latent", "Leave v null: it is the first columns of k.");
  if (features.packed_kv && args.context_lengths != nullptr) [[unlikely]]
    return invalid("context_lengths is given, but this plan's problem has packed_kv",
                   "Leave it null: kv_offsets says how long contexts are.");
  for (const Pointer& pointer :
       {Pointer{"q", args.q, kVectorBytes}, Pointer{"k", args.k, alignment},
        Pointer{"v", features.latent ? args.k : args.v, has_scales_in_rows(features) ? alignof(float) : alignment},
        Pointer{"o", args.o, kVectorBytes},
        features.selection_in_pool ? Pointer{"selected_counts", args.selected_counts, alignof(std::int32_t)}
        : features.packed_kv       ? Pointer{"kv_offsets", args.kv_offsets, alignof(std::int32_t)}
                                   : Pointer{"context_lengths", args.context_lengths, alignof(std::int32_t)},
        Pointer{"workspace", workspace, kWorkspaceBytes}}) {
    if (args.batch == 0 && pointer.value == nullptr) continue;  // frameworks have no memory for what is empty
    if (auto ok = check_pointer(pointer.name, pointer.value, pointer.alignment); !ok) [[unlikely]]
      return ok;
  }
  if (problem.lse && (args.batch > 0 || args.lse != nullptr)) return check_pointer("lse", args.lse, alignof(float));
  if (!problem.lse && args.lse != nullptr) [[unlikely]]
    return invalid("lse is given, but this plan's problem has no LSE output", "Set lse in the problem to get it.");
  return {};
}

/// The caller's strides, with dense ones where it gave none.
void bind_strides(const DecodeProblem& problem, const Rows& rows, std::int64_t entry_tokens,
                  const leanattn_decode_args& args, LeanDecodeArgs& bound) {
  const Features& features = problem.features;
  bound.q_stride_head = or_dense(args.q_stride_head, rows.q.columns);
  bound.q_stride_token = or_dense(args.q_stride_token, problem.q_heads * rows.q.columns);
  bound.o_stride_head = or_dense(args.o_stride_head, rows.o.columns);
  bound.o_stride_token = or_dense(args.o_stride_token, problem.q_heads * rows.o.columns);
  // Of one query token the token stride is never followed, so it says nothing about the batch's.
  const bool several = features.q_len > 1;
  bound.q_stride_batch =
      or_dense(args.q_stride_batch,
               stride_product(features.q_len, several ? bound.q_stride_token : problem.q_heads * rows.q.columns));
  bound.o_stride_batch =
      or_dense(args.o_stride_batch,
               stride_product(features.q_len, several ? bound.o_stride_token : problem.q_heads * rows.o.columns));
  const DenseCache dense_k = dense_cache(problem, entry_tokens, rows.k.columns);
  bound.k_stride_token = or_dense(args.k_stride_token, dense_k.token);
  bound.k_stride_head = or_dense(args.k_stride_head, dense_k.head);
  bound.k_stride_batch = or_dense(args.k_stride_batch, dense_k.batch);
  // Where K and V share rows, they have the same strides.
  const DenseCache dense_v = features.latent || has_scales_in_rows(features)
                                 ? DenseCache{bound.k_stride_batch, bound.k_stride_head, bound.k_stride_token}
                                 : dense_cache(problem, entry_tokens, rows.v.columns);
  bound.v_stride_token = or_dense(args.v_stride_token, dense_v.token);
  bound.v_stride_head = or_dense(args.v_stride_head, dense_v.head);
  bound.v_stride_batch = or_dense(args.v_stride_batch, dense_v.batch);
}

Result<void> check_strides(const DecodeProblem& problem, const Rows& rows, const Extents& extents,
                           const LeanDecodeArgs& bound) {
  const auto& [requests, query_tokens, entries, entry_tokens] = extents;
  auto of_q = check_strides(rows.q, {{"q_stride_batch", bound.q_stride_batch, requests},
                                     {"q_stride_token", bound.q_stride_token, query_tokens},
                                     {"q_stride_head", bound.q_stride_head, problem.q_heads}});
  if (!of_q) return of_q;
  auto of_o = check_strides(rows.o, {{"o_stride_batch", bound.o_stride_batch, requests},
                                     {"o_stride_token", bound.o_stride_token, query_tokens},
                                     {"o_stride_head", bound.o_stride_head, problem.q_heads}});
  if (!of_o) return of_o;
  auto of_k = check_strides(rows.k, {{"k_stride_batch", bound.k_stride_batch, entries},
                                     {"k_stride_head", bound.k_stride_head, problem.kv_heads},
                                     {"k_stride_token", bound.k_stride_token, entry_tokens}});
  if (!of_k) return of_k;
  return check_strides(rows.v, {{"v_stride_batch", bound.v_stride_batch, entries},
                                {"v_stride_head", bound.v_stride_head, problem.kv_heads},
                                {"v_stride_token", bound.v_stride_token, entry_tokens}});
}

/// Whether the rows of neighbouring tokens touch, as the problem's layout says. Where V lies in K's rows, its tokens
/// are as far apart as K's.
Result<void> check_layout(const DecodeProblem& problem, const Rows& rows, std::int64_t entry_tokens,
                          const LeanDecodeArgs& bound) {
  struct TokenStride {
    const char* name;
    std::int64_t stride, columns;
  };
  if (problem.layout != KvLayout::contiguous || entry_tokens == 1) return {};
  for (const TokenStride& token : {TokenStride{"k_stride_token", bound.k_stride_token, rows.k.columns},
                                   TokenStride{"v_stride_token", bound.v_stride_token,
                                               problem.features.latent ? bound.k_stride_token : rows.v.columns}}) {
    if (token.stride == token.columns) [[likely]]
      continue;
    return invalid(
        fmt::format("{} is {}, but the problem's KV layout is contiguous: {}", token.name, token.stride, token.columns),
        "Make the plan with the strided layout.");
  }
  return {};
}

/// Whether the rows of a page are adjacent and leave room for the plane behind them, where there is one.
Result<void> check_plane(const DecodeProblem& problem, const Rows& rows, const Extents& extents,
                         const LeanDecodeArgs& bound) {
  const std::int64_t plane = plane_bytes(problem.features, extents.entry_tokens);
  if (plane == 0) return {};
  const std::int64_t bytes = extents.entry_tokens * rows.k.columns + plane;
  struct Stride {
    const char* name;
    std::int64_t value, extent;
    bool fits;
  };
  for (const Stride& stride :
       {Stride{"k_stride_token", bound.k_stride_token, extents.entry_tokens, bound.k_stride_token == rows.k.columns},
        Stride{"k_stride_head", bound.k_stride_head, problem.kv_heads, bound.k_stride_head >= bytes},
        Stride{"k_stride_batch", bound.k_stride_batch, extents.entries, bound.k_stride_batch >= bytes}}) {
    if (stride.fits || stride.extent <= 1) [[likely]]
      continue;
    return invalid(fmt::format("{} is {}, with pages of {} bytes", stride.name, stride.value, bytes),
                   fmt::format("A page of the kv_format has {} rows of {} bytes, and their scales behind them.",
                               extents.entry_tokens, rows.k.columns));
  }
  return {};
}

/// Tokens that a query token may see: of a context of so many tokens, or of the lists of what it has selected. Binds
/// these lists and the second cache.
Result<std::int64_t> bind_lists(const DecodeProblem& problem, const leanattn_decode_args& args, int capacity,
                                LeanDecodeArgs& bound) {
  if (!has_selection(problem.features)) return capacity;
  const Result<int> selected = bind_selection(problem, args, bound);
  if (!selected || !problem.features.second_cache) return selected;
  const Result<int> second = bind_second_cache(problem.features, args, bound);
  if (!second) return second;
  // The last block of the first cache may have a part only.
  return std::int64_t{*selected} + *second + problem.features.selection_block;
}

/// The most output tiles of a launch, and those of a request, or of a KV head of it, among which kernels divide.
struct OutputTiles {
  std::int64_t all, divided;
};
OutputTiles most_output_tiles(const LaunchLimits& limits, const leanattn_decode_args& args) {
  const DecodeProblem& problem = limits.problem;
  const Features& features = problem.features;
  const std::int64_t kv_heads = problem.kv_heads, of_request = kv_heads * limits.row_blocks;
  if (!features.ragged_q) return {of_request * args.batch * (has_selection(features) ? features.q_len : 1), of_request};
  // Whole ones of all requests together, and of each request the rest.
  const std::int64_t group = problem.q_heads / kv_heads, whole = query_tokens_of(features, args) * group / limits.rows;
  const std::int64_t of_head = std::min<std::int64_t>(limits.row_blocks, whole + 1);
  return {kv_heads * std::min(of_head * args.batch, whole + args.batch), std::max(kv_heads, of_head)};
}

/// Whether the workspace and 32-bit tile positions suffice for contexts or lists of so many tokens.
Result<void> check_line(const LaunchLimits& limits, const leanattn_decode_args& args, std::int64_t capacity) {
  const DecodeProblem& problem = limits.problem;
  const Features& features = problem.features;
  if (limits.size.context_capacity != 0 && capacity > limits.size.context_capacity) [[unlikely]] {
    return invalid(fmt::format("contexts of up to {} tokens, and this batch-invariant plan's workspace is made for {}",
                               capacity, limits.size.context_capacity),
                   "Give the plan's shape that longest_context.");
  }
  const OutputTiles outputs = most_output_tiles(limits, args);
  if (outputs.divided > kMostOutputs) [[unlikely]]
    return fail(ErrorCode::unsupported, fmt::format("{} output tiles a request, more than 2^20", outputs.divided),
                "Split the KV heads over several launches.");
  if (capacity <= kMostTokens && lean_line_fits(static_cast<std::uint64_t>(outputs.all) * limits.tile_positions,
                                                static_cast<unsigned>(capacity), static_cast<unsigned>(limits.tile),
                                                static_cast<unsigned>(limits.segment_cost), features.sink_tokens))
      [[likely]]
    return {};
  if (features.ragged_q && args.query_tokens == 0 && has_prefill(features)) [[unlikely]]
    return invalid(fmt::format("query_tokens is 0, which means {} for a batch of {} with prefill",
                               query_tokens_of(features, args), args.batch),
                   "Give the tokens for which q and o have room.");
  return fail(ErrorCode::unsupported,
              fmt::format("batch {} x {} KV heads x context_capacity {} may need 2^30 LeanTiles of {} tokens or more",
                          args.batch, problem.kv_heads, capacity, limits.tile),
              "Lower context_capacity (at most 2^30) or the batch; the schedule counts tiles in 32 bits.");
}

/// What needs no further check. `plain`: the problem has no features.
void bind_values(const LaunchLimits& limits, const leanattn_decode_args& args, bool plain, LeanDecodeArgs& bound) {
  constexpr float kLog2E = 1.44269504088896341f;
  const DecodeProblem& problem = limits.problem;
  const Features& features = problem.features;
  const float scale = args.scale > 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(problem.head_dim));
  bound.q = args.q;
  bound.k = args.k;
  bound.v = features.latent ? args.k : args.v;
  bound.o = args.o;
  bound.lse = args.lse;
  bound.context_lengths = args.context_lengths;
  bound.batch = args.batch;
  bound.kv_heads = problem.kv_heads;
  // Kernels that transform scores scale them first; the others fold the scale into the exponent.
  bound.score_scale = scale;
  bound.scale_log2 = !plain && transforms_scores(features) ? kLog2E : scale * kLog2E;
  bound.segment_cost = static_cast<unsigned>(limits.segment_cost);
  if (plain) return;
  bound.page_table = args.page_table;
  bound.page_table_stride = or_dense(args.page_table_stride, args.max_pages);
  bound.pool_pages = static_cast<int>(args.pool_pages);
  bound.q_offsets = args.q_offsets;
  if (features.ragged_q) bound.query_tokens = static_cast<int>(std::min(query_tokens_of(features, args), kMostRows));
  bound.tree_mask = args.tree_mask;
  if (features.packed_kv) {
    // One stride leads from row to row and from request to request, and the offsets stand for the lengths.
    bound.context_lengths = args.kv_offsets;
    bound.k_stride_batch = bound.k_stride_token, bound.v_stride_batch = bound.v_stride_token;
  }
  bound.spans = reinterpret_cast<const LeanSpan*>(args.spans);
  bound.alibi_slopes = args.alibi_slopes;
  bound.sink_logits = args.sink_logits;
  bound.k_scale = args.k_scale;
  bound.v_scale = features.latent ? args.k_scale : args.v_scale;
  bound.k_block_scales = args.k_block_scales;
  bound.v_block_scales = args.v_block_scales;
  bound.rope_table = args.rope_table;
  bound.k_new = args.k_new;
  bound.v_new = args.v_new;
  bound.full_lengths = args.full_context_lengths;
  bound.context_starts = args.context_starts;
}

/// All of bind_arguments(), into arguments that are zero.
Result<void> bind(const LaunchLimits& limits, const leanattn_decode_args& args, void* workspace,
                  LeanDecodeArgs& bound) {
  const DecodeProblem& problem = limits.problem;
  const Features& features = problem.features;
  const bool plain = is_plain_fast(features);
  if (auto ok = check_numbers(limits, args); !ok) return ok;
  const Result<int> tokens = capacity_of(features, args);
  if (!tokens) return tl::unexpected(tokens.error());
  if (auto ok = check_pointers(problem, args, workspace); !ok) return ok;
  if (!plain || !says_nothing_of_features(args)) {
    if (auto ok = check_feature_arguments(problem, args); !ok) return ok;
  }

  const Rows rows = rows_of(problem);
  const Extents extents = extents_of(features, args, *tokens);
  bind_strides(problem, rows, extents.entry_tokens, args, bound);
  if (auto ok = check_plane(problem, rows, extents, bound); !ok) return ok;
  if (auto ok = check_strides(problem, rows, extents, bound); !ok) return ok;
  if (auto ok = check_layout(problem, rows, extents.entry_tokens, bound); !ok) return ok;
  if (features.append) {
    if (auto ok = bind_new_tokens(problem, args, extents.requests, extents.query_tokens, bound); !ok) return ok;
  }
  if (has_token_scales(features) || has_block_scales(features)) {
    if (auto ok = bind_scales(problem, args, extents.entry_tokens, extents.entries, bound); !ok) return ok;
  }
  const Result<std::int64_t> visible = bind_lists(problem, args, *tokens, bound);
  if (!visible) return tl::unexpected(visible.error());
  if (auto ok = check_line(limits, args, *visible); !ok) return ok;

  bound.context_capacity = *tokens;
  bind_workspace(bound, limits.workspace, workspace);
  bind_values(limits, args, plain, bound);
  if (has_scales_in_rows(features)) return check_shared_rows(problem, extents.entry_tokens, extents.entries, bound);
  return {};
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
  Result<LeanDecodeArgs> bound(tl::in_place);  // all zero
  if (auto ok = bind(limits, args, workspace, *bound); !ok) [[unlikely]]
    bound = tl::unexpected(std::move(ok.error()));
  return bound;
}

}  // namespace v1
}  // namespace leanattn
