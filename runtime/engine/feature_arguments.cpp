#include "runtime/engine/feature_arguments.hpp"

#include <fmt/format.h>

#include "generator/kv_encoding.hpp"
#include "runtime/engine/argument_checks.hpp"

namespace leanattn {
inline namespace v1 {
namespace detail {
namespace {

/// An array that a feature reads: there exactly when the problem has the feature.
struct FeaturePointer {
  const char* name;
  const void* value;
  bool wanted;
  bool optional;        ///< may be null all the same
  const char* feature;  ///< the problem's field that asks for it
  std::uintptr_t alignment = alignof(float);
};

/// What a problem with a latent cache has not.
constexpr const char* kNoLatent = "a v beside k, because it is latent";
/// What a problem has not whose second cache holds K and V in one.
constexpr const char* kNoSecondV = "a second_v beside second_k, because it is latent";
/// What a problem has not whose selections say where in the pool tokens lie.
constexpr const char* kNoRequests = "pages of a request, because of selection_in_pool";

Result<void> check_feature_pointers(const DecodeProblem& problem, const leanattn_decode_args& args) {
  const Features& features = problem.features;
  const bool scales = has_scales(features), blocks = has_block_scales(features),
             optional = !stages_scales(features) || blocks;
  const auto of_blocks = static_cast<std::uintptr_t>(
      block_scale_alignment(features, problem.layout, kv_encoding(features).block_scale_bytes(problem.head_dim)));
  const bool tree = features.mask == QueryMask::tree, latent = features.latent;
  for (const FeaturePointer& pointer :
       {FeaturePointer{"page_table", args.page_table, features.page_size > 0 && !features.selection_in_pool, false,
                       features.selection_in_pool ? kNoRequests : "page_size"},
        FeaturePointer{"q_offsets", args.q_offsets, features.ragged_q, false, "ragged_q"},
        FeaturePointer{"tree_mask", args.tree_mask, tree, false, "the query mask tree"},
        FeaturePointer{"alibi_slopes", args.alibi_slopes, features.alibi, false, "alibi"},
        FeaturePointer{"sink_logits", args.sink_logits, features.sink_logits, false, "sink_logits"},
        FeaturePointer{"k_scale", args.k_scale, scales, optional, "a kv_format with scales"},
        FeaturePointer{"v_scale", args.v_scale, scales && !latent, optional,
                       latent ? kNoLatent : "a kv_format with scales"},
        FeaturePointer{"k_block_scales", args.k_block_scales, blocks, false, "the kv_format nvfp4", of_blocks},
        FeaturePointer{"v_block_scales", args.v_block_scales, blocks, false, "the kv_format nvfp4", of_blocks},
        FeaturePointer{"rope_table", args.rope_table, features.rope != Rope::none, false, "rope"},
        FeaturePointer{"k_new", args.k_new, features.append, false, "append", kVectorBytes},
        FeaturePointer{"v_new", args.v_new, features.append && !latent, false, latent ? kNoLatent : "append",
                       kVectorBytes},
        FeaturePointer{"selection", args.selection, has_selection(features), false, "selection_block"},
        FeaturePointer{"selected_counts", args.selected_counts, has_selection(features), false, "selection_block"},
        FeaturePointer{"second_k", args.second_k, features.second_cache, false, "second_cache", kVectorBytes},
        FeaturePointer{"second_v", args.second_v, features.second_cache && !latent, false,
                       features.second_cache && latent ? kNoSecondV : "second_cache", kVectorBytes},
        FeaturePointer{"second_page_table", args.second_page_table, features.second_cache, false, "second_cache"},
        FeaturePointer{"second_lengths", args.second_lengths, features.second_cache, false, "second_cache"},
        FeaturePointer{"spans", args.spans, features.spans, false, "spans", alignof(LeanSpan)},
        FeaturePointer{"kv_offsets", args.kv_offsets, features.packed_kv, false, "packed_kv"},
        FeaturePointer{"full_context_lengths", args.full_context_lengths, in_group(features),
                       !needs_positions(features), "context_parallel"},
        FeaturePointer{"context_starts", args.context_starts,
                       needs_positions(features) && features.context_interleave == 0, false,
                       "contiguous parts of contexts and what depends on positions"}}) {
    if (!pointer.wanted) {
      if (pointer.value == nullptr) [[likely]]
        continue;
      return invalid(fmt::format("{} is given, but this plan's problem has not {}", pointer.name, pointer.feature),
                     "Set that in the problem, or leave the pointer null.");
    }
    if ((pointer.optional || args.batch == 0) && pointer.value == nullptr) continue;
    if (auto ok = check_pointer(pointer.name, pointer.value, pointer.alignment); !ok) [[unlikely]]
      return ok;
  }
  return {};
}

/// Values that only a paged cache, one with a scale per token, or new tokens give a meaning.
Result<void> check_unused(const Features& features, const leanattn_decode_args& args) {
  const bool paged = features.page_size > 0;
  const bool scales = has_token_scales(features) || has_block_scales(features);
  const bool own_v = !features.latent, new_v = features.append && own_v, lists = has_selection(features),
             tables = paged && !features.selection_in_pool, second = features.second_cache;
  const char* const of_tables = features.selection_in_pool ? kNoRequests : "page_size";
  const char* const of_new_v = own_v ? "append" : kNoLatent;
  struct Value {
    const char* name;
    std::int64_t value;
    bool used;
    const char* feature;
  };
  for (const Value& value : {Value{"pool_pages", args.pool_pages, paged, "page_size"},
                             Value{"max_pages", args.max_pages, tables, of_tables},
                             Value{"page_table_stride", args.page_table_stride, tables, of_tables},
                             Value{"query_tokens", args.query_tokens, features.ragged_q, "ragged_q"},
                             Value{"v_stride_batch", args.v_stride_batch, own_v, kNoLatent},
                             Value{"v_stride_head", args.v_stride_head, own_v, kNoLatent},
                             Value{"v_stride_token", args.v_stride_token, own_v, kNoLatent},
                             Value{"kv_scale_stride_batch", args.kv_scale_stride_batch, scales, "kv_scale token"},
                             Value{"kv_scale_stride_head", args.kv_scale_stride_head, scales, "kv_scale token"},
                             Value{"kv_scale_stride_token", args.kv_scale_stride_token, scales, "kv_scale token"},
                             Value{"k_new_stride_batch", args.k_new_stride_batch, features.append, "append"},
                             Value{"k_new_stride_token", args.k_new_stride_token, features.append, "append"},
                             Value{"k_new_stride_head", args.k_new_stride_head, features.append, "append"},
                             Value{"v_new_stride_batch", args.v_new_stride_batch, new_v, of_new_v},
                             Value{"v_new_stride_token", args.v_new_stride_token, new_v, of_new_v},
                             Value{"v_new_stride_head", args.v_new_stride_head, new_v, of_new_v},
                             Value{"selection_stride_batch", args.selection_stride_batch, lists, "selection_block"},
                             Value{"selection_stride_token", args.selection_stride_token, lists, "selection_block"},
                             Value{"selection_stride_head", args.selection_stride_head, lists, "selection_block"},
                             Value{"selection_capacity", args.selection_capacity, lists, "selection_block"},
                             Value{"selection_heads", args.selection_heads, lists, "selection_block"},
                             Value{"second_page_table_stride", args.second_page_table_stride, second, "second_cache"},
                             Value{"second_pool_pages", args.second_pool_pages, second, "second_cache"},
                             Value{"second_max_pages", args.second_max_pages, second, "second_cache"}}) {
    if (value.used || value.value == 0) [[likely]]
      continue;
    return invalid(fmt::format("{} is {}, but this plan's problem has not {}", value.name, value.value, value.feature),
                   "Leave it 0; leanattn_decode_args_init does.");
  }
  if (args.query_tokens < 0) [[unlikely]]
    return invalid(fmt::format("query_tokens is {}", args.query_tokens),
                   "Give the tokens for which q and o have room, or 0 for batch * q_len.");
  if (args.reserved3 != 0) [[unlikely]]
    return invalid(fmt::format("decode_args.reserved3 is {}", args.reserved3),
                   "Leave it 0; leanattn_decode_args_init does.");
  return {};
}

Result<void> check_pool(const leanattn_decode_args& args) {
  constexpr std::int64_t kMostPages = 0x7fffffff;  // page numbers are 32-bit
  if (args.pool_pages >= 1 && args.pool_pages <= kMostPages) [[likely]]
    return {};
  return invalid(fmt::format("pool_pages is {}", args.pool_pages),
                 fmt::format("Give the pages that k and v hold, 1 to {}.", kMostPages));
}

/// Whether rows of `entries` page numbers, `stride` from one to the next, can be those of so many requests.
Result<void> check_table_rows(const char* name, std::int64_t stride, std::int64_t entries, std::int64_t batch) {
  if (stride == 0 || stride == LEANATTN_STRIDE_EXPANDED || batch <= 1) [[likely]]
    return {};
  constexpr std::int64_t kEntryBytes = 4;
  std::int64_t last = 0;
  if (stride >= entries && !__builtin_mul_overflow(stride, batch * kEntryBytes, &last)) [[likely]]
    return {};
  return invalid(fmt::format("{} is {}, with rows of {} entries for {} requests", name, stride, entries, batch),
                 "Leave it 0 for rows that follow each other.");
}

}  // namespace

Result<void> check_feature_arguments(const DecodeProblem& problem, const leanattn_decode_args& args) {
  const Features& features = problem.features;
  if (auto ok = check_unused(features, args); !ok) [[unlikely]]
    return ok;
  return check_feature_pointers(problem, args);
}

Result<int> capacity_of(const Features& features, const leanattn_decode_args& args) {
  if (features.page_size == 0) {
    if (args.context_capacity >= 1) [[likely]]
      return args.context_capacity;
    return invalid(fmt::format("context_capacity is {}", args.context_capacity),
                   "Give the tokens that k and v hold per request, at least 1.");
  }
  if (features.selection_in_pool) {
    if (auto ok = check_pool(args); !ok) return tl::unexpected(std::move(ok.error()));
    return 0;
  }
  if (args.max_pages < 1)
    return invalid(fmt::format("max_pages is {}", args.max_pages),
                   "Give the entries of a request's row of page_table, at least 1.");
  if (auto ok = check_pool(args); !ok) return tl::unexpected(std::move(ok.error()));
  const std::int64_t tokens = std::int64_t{args.max_pages} * features.page_size;
  if (tokens > kMostTokens) {
    return fail(ErrorCode::unsupported,
                fmt::format("max_pages is {}: with pages of {} tokens a request may have {}, more than 2^30",
                            args.max_pages, features.page_size, tokens),
                "Give shorter rows of page_table.");
  }
  if (args.context_capacity != 0 && args.context_capacity != tokens) {
    return invalid(fmt::format("context_capacity is {}, but {} pages of {} tokens hold {}", args.context_capacity,
                               args.max_pages, features.page_size, tokens),
                   "Leave it 0 for a paged cache.");
  }
  if (auto ok = check_table_rows("page_table_stride", args.page_table_stride, args.max_pages, args.batch); !ok)
    return tl::unexpected(ok.error());
  return static_cast<int>(tokens);
}

Result<void> bind_scales(const DecodeProblem& problem, const leanattn_decode_args& args, std::int64_t tokens,
                         std::int64_t outermost, LeanDecodeArgs& bound) {
  const bool in_rows = has_scales_in_rows(problem.features), adjacent = problem.layout == KvLayout::contiguous;
  const int bytes = kv_element_bytes(problem.features),
            of_blocks = kv_encoding(problem.features).block_scale_bytes(problem.head_dim);
  // Scales of tokens may have any alignment.
  const Row scales = of_blocks > 0 ? Row{"the scales of a row", of_blocks, 1, false,
                                         static_cast<unsigned>(block_scale_copy_bytes(of_blocks))}
                                   : Row{"a scale", 1, kVectorBytes};
  const auto or_usual = [&](std::int64_t given, std::int64_t of_k, std::int64_t entries) {
    return or_dense(given, in_rows ? of_k * bytes / kScaleBytes : entries * scales.columns);
  };
  // Scales of blocks are dense as rows are.
  const bool by_token = of_blocks > 0 && !adjacent;
  bound.kv_scale_stride_token =
      or_usual(args.kv_scale_stride_token, bound.k_stride_token, by_token ? problem.kv_heads : 1);
  bound.kv_scale_stride_head = or_usual(args.kv_scale_stride_head, bound.k_stride_head, by_token ? 1 : tokens);
  bound.kv_scale_stride_batch = or_usual(args.kv_scale_stride_batch, bound.k_stride_batch, problem.kv_heads * tokens);
  const Dimension batch{"kv_scale_stride_batch", bound.kv_scale_stride_batch, outermost},
      head{"kv_scale_stride_head", bound.kv_scale_stride_head, problem.kv_heads},
      token{"kv_scale_stride_token", bound.kv_scale_stride_token, tokens};
  if (auto ok = check_strides(scales, {batch, head, token}); !ok) return ok;
  if (of_blocks > 0 && adjacent && copies_boxes(problem.features) && token.extent > 1 && token.stride != of_blocks)
      [[unlikely]]
    return invalid(
        fmt::format("{} is {}, but the problem's KV layout is contiguous: {}", token.name, token.stride, of_blocks),
        "Make the plan with the strided layout.");
  if (of_blocks == 0) return {};
  const int boxes = block_scale_alignment(problem.features, problem.layout, of_blocks);
  return check_strides(Row{scales.name, of_blocks, 1, false, static_cast<unsigned>(boxes)}, {batch, head});
}

Result<void> check_shared_rows(const DecodeProblem& problem, std::int64_t tokens, std::int64_t outermost,
                               const LeanDecodeArgs& bound) {
  struct Place {
    const char* name;
    const void* value;
    std::int64_t offset;
  };
  struct Stride {
    const char* name;
    std::int64_t value, of_k, extent;
  };
  const KvEncoding& encoding = kv_encoding(problem.features);
  const std::int64_t k_row = encoding.row_bytes(problem.head_dim), v_row = encoding.row_bytes(v_head_dim(problem)),
                     bytes = encoding.stride_bytes();
  constexpr const char* kHint =
      "With kv_scale in_row a row holds K, its scale, V and its scale. Use token for scales that lie elsewhere.";
  for (const Place& place : {Place{"k_scale", bound.k_scale, k_row}, Place{"v", bound.v, k_row + kScaleBytes},
                             Place{"v_scale", bound.v_scale, k_row + kScaleBytes + v_row}}) {
    const auto* const wanted = static_cast<const char*>(bound.k) + place.offset;
    if (place.value != wanted && bound.batch > 0) [[unlikely]]
      return invalid(fmt::format("{} is at {}, not {} bytes behind k", place.name, place.value, place.offset), kHint);
  }
  // So that one tensor map has all pages (runtime/cuda/tensor_map.cpp).
  constexpr int kPageAlignment = 16;
  const int page = problem.features.page_size;
  if (page > 0 && page % kPageAlignment == 0 && bound.k_stride_batch * bytes % kPageAlignment != 0) [[unlikely]]
    return invalid(fmt::format("k_stride_batch is {} bytes, not a multiple of 16", bound.k_stride_batch * bytes),
                   "Pages of rows with scales in them begin at multiples of 16 bytes.");
  for (const Stride& stride :
       {Stride{"v_stride_batch", bound.v_stride_batch * bytes, bound.k_stride_batch, outermost},
        Stride{"v_stride_head", bound.v_stride_head * bytes, bound.k_stride_head, problem.kv_heads},
        Stride{"v_stride_token", bound.v_stride_token * bytes, bound.k_stride_token, tokens},
        Stride{"kv_scale_stride_batch", bound.kv_scale_stride_batch * kScaleBytes, bound.k_stride_batch, outermost},
        Stride{"kv_scale_stride_head", bound.kv_scale_stride_head * kScaleBytes, bound.k_stride_head, problem.kv_heads},
        Stride{"kv_scale_stride_token", bound.kv_scale_stride_token * kScaleBytes, bound.k_stride_token, tokens}}) {
    if (stride.extent > 1 && stride.value != stride.of_k * bytes) [[unlikely]]
      return invalid(fmt::format("{} is {} bytes, but that of k is {}", stride.name, stride.value, stride.of_k * bytes),
                     kHint);
  }
  return {};
}

Result<int> bind_selection(const DecodeProblem& problem, const leanattn_decode_args& args, LeanDecodeArgs& bound) {
  const Features& features = problem.features;
  const int block = features.selection_block;
  if (args.selection_capacity < 1)
    return invalid(fmt::format("selection_capacity is {}", args.selection_capacity),
                   "Give the entries of a query token's list, at least 1.");
  if (args.selection_heads != 0 && args.selection_heads != 1 && args.selection_heads != problem.kv_heads)
    return invalid(fmt::format("selection_heads is {}", args.selection_heads),
                   fmt::format("Give {} lists a query token, one a KV head, or 1 that all share.", problem.kv_heads));
  const std::int64_t tokens = std::int64_t{args.selection_capacity} * block;
  if (tokens > kMostTokens)
    return fail(ErrorCode::unsupported,
                fmt::format("selection_capacity is {}: with blocks of {} tokens a query token may select {}, more than "
                            "2^30",
                            args.selection_capacity, block, tokens),
                "Give shorter lists.");
  // Tokens of the pool are counted in 32 bits.
  if (args.pool_pages * features.page_size > 0x7fffffff)
    return fail(ErrorCode::unsupported,
                fmt::format("a selection from a pool of {} pages of {} tokens, more than 2^31 tokens", args.pool_pages,
                            features.page_size),
                "Split the pool, with a launch for the requests of each part.");
  const std::int64_t heads = args.selection_heads == 0 ? problem.kv_heads : args.selection_heads;
  const std::int64_t list = args.selection_capacity;
  bound.selection_stride_head = or_dense(args.selection_stride_head, list);
  bound.selection_stride_token =
      or_dense(args.selection_stride_token, stride_product(heads, bound.selection_stride_head));
  bound.selection_stride_batch =
      or_dense(args.selection_stride_batch, stride_product(features.q_len, bound.selection_stride_token));
  struct Stride {
    const char* name;
    std::int64_t stride, steps;
  };
  for (const Stride& stride : {Stride{"selection_stride_batch", bound.selection_stride_batch, args.batch},
                               Stride{"selection_stride_token", bound.selection_stride_token, features.q_len},
                               Stride{"selection_stride_head", bound.selection_stride_head, heads}}) {
    std::int64_t reach = 0;
    if (stride.steps > 1 && stride.stride != 0 &&
        (stride.stride < list || __builtin_mul_overflow(stride.stride, stride.steps * 4, &reach)))
      return invalid(fmt::format("{} is {}, with lists of {} entries", stride.name, stride.stride, list),
                     "Leave it 0 for lists that follow each other.");
  }
  if (heads == 1) bound.selection_stride_head = 0;
  bound.selection = args.selection;
  bound.selected_counts = args.selected_counts;
  bound.selection_capacity = args.selection_capacity;
  return static_cast<int>(tokens);
}

Result<int> bind_second_cache(const Features& features, const leanattn_decode_args& args, LeanDecodeArgs& bound) {
  if (args.second_max_pages < 1)
    return invalid(fmt::format("second_max_pages is {}", args.second_max_pages),
                   "Give the entries of a request's row of second_page_table, at least 1.");
  const std::int64_t tokens = std::int64_t{args.second_max_pages} * features.page_size;
  if (tokens > kMostTokens)
    return fail(ErrorCode::unsupported,
                fmt::format("second_max_pages is {}: with pages of {} tokens a request may have {}, more than 2^30",
                            args.second_max_pages, features.page_size, tokens),
                "Give shorter rows of second_page_table.");
  if (args.second_pool_pages < 1)
    return invalid(fmt::format("second_pool_pages is {}", args.second_pool_pages),
                   "Give the pages that second_k and second_v hold, at least 1.");
  // A bit of the place of a token says in which cache it is.
  for (const auto& [name, pages] :
       {std::pair{"pool_pages", args.pool_pages}, std::pair{"second_pool_pages", args.second_pool_pages}}) {
    if (pages > kMostTokens / features.page_size)
      return fail(ErrorCode::unsupported,
                  fmt::format("{} is {}: pools of pages of {} tokens beside a second cache have up to 2^30 tokens",
                              name, pages, features.page_size),
                  "Split the pool, with a launch for the requests of each part.");
  }
  if (auto ok = check_table_rows("second_page_table_stride", args.second_page_table_stride, args.second_max_pages,
                                 args.batch);
      !ok)
    return tl::unexpected(ok.error());
  bound.second_k = args.second_k;
  bound.second_v = features.latent ? args.second_k : args.second_v;
  bound.second_page_table = args.second_page_table;
  bound.second_lengths = args.second_lengths;
  bound.second_page_table_stride = or_dense(args.second_page_table_stride, args.second_max_pages);
  bound.second_pool_pages = static_cast<int>(args.second_pool_pages);
  bound.second_capacity = static_cast<int>(tokens);
  return static_cast<int>(tokens);
}

Result<void> bind_new_tokens(const DecodeProblem& problem, const leanattn_decode_args& args, std::int64_t requests,
                             std::int64_t query_tokens, LeanDecodeArgs& bound) {
  constexpr int kElementBytes = 2;  // of q's type
  const Row k_row{"head_dim", problem.head_dim, kElementBytes};
  const Row v_row{problem.features.v_head_dim != 0 ? "v_head_dim" : "head_dim", v_head_dim(problem), kElementBytes};
  // Of one query token the token stride is never followed, so it says nothing about the batch's.
  const auto batch_stride = [&](std::int64_t given, std::int64_t token_stride, const Row& row) {
    return or_dense(given, problem.features.q_len > 1 ? stride_product(problem.features.q_len, token_stride)
                                                      : problem.kv_heads * row.columns);
  };
  bound.k_new_stride_head = or_dense(args.k_new_stride_head, k_row.columns);
  bound.k_new_stride_token = or_dense(args.k_new_stride_token, problem.kv_heads * k_row.columns);
  bound.k_new_stride_batch = batch_stride(args.k_new_stride_batch, bound.k_new_stride_token, k_row);
  if (auto ok = check_strides(k_row, {{"k_new_stride_batch", bound.k_new_stride_batch, requests},
                                      {"k_new_stride_token", bound.k_new_stride_token, query_tokens},
                                      {"k_new_stride_head", bound.k_new_stride_head, problem.kv_heads}});
      !ok)
    return ok;
  if (problem.features.latent) return {};  // V is a part of it
  bound.v_new_stride_head = or_dense(args.v_new_stride_head, v_row.columns);
  bound.v_new_stride_token = or_dense(args.v_new_stride_token, problem.kv_heads * v_row.columns);
  bound.v_new_stride_batch = batch_stride(args.v_new_stride_batch, bound.v_new_stride_token, v_row);
  return check_strides(v_row, {{"v_new_stride_batch", bound.v_new_stride_batch, requests},
                               {"v_new_stride_token", bound.v_new_stride_token, query_tokens},
                               {"v_new_stride_head", bound.v_new_stride_head, problem.kv_heads}});
}

}  // namespace detail
}  // namespace v1
}  // namespace leanattn
