// decode_features.cpp -- the checks of the arguments for features: scales, masks, scores, new tokens.
#include <fmt/format.h>

#include <limits>
#include <tuple>
#include <utility>

#include "decode_arguments.hpp"
#include "errors.hpp"
#include "generator/kv_encoding.hpp"
#include "names.hpp"

namespace leanattn::python {
namespace nb = nanobind;

void DecodeArguments::require_dense_floats(Optional& view, std::int64_t count, const char* what) const {
  view->require_type(ElementType::fp32);
  view->require_rank(1, what);
  view->require_extent(0, count, what);
  view->require_contiguous();
}

void DecodeArguments::read_scales(const DecodeObjects& objects) {
  const bool has_k = read(k_scale_, objects.k_scale, "k_scale"), has_v = read(v_scale_, objects.v_scale, "v_scale");
  const auto require_aligned = [&] {
    k_.require_aligned_rows(given(objects.k_new), kVectorBytes, counted_);
    if (v_) v_->require_aligned_rows(given(objects.k_new));
  };
  if (!has_k && !has_v) return require_aligned();
  if (problem_.kv_format == LEANATTN_KV_SAME)
    bad_value(has_k ? "k_scale" : "v_scale", fmt::format("is given, but k_cache is {}", to_string(k_.type())),
              "Scales are for caches of one-byte or four-bit elements.");
  // -1 where it is not given.
  const auto kind = [&](Optional& scale) -> std::int32_t {
    if (!scale) return -1;
    scale->require_type(ElementType::fp32);
    if (scale->rank() == 3) {
      scale->require_extent(0, k_.extent(0), "of k_cache");
      scale->require_extent(1, problem_.kv_heads, "kv_heads");
      scale->require_extent(2, cache_tokens_, "tokens of k_cache");
      scale->require_strides();
      return LEANATTN_SCALE_TOKEN;
    }
    if (scale->rank() > 1) scale->require_rank(1, "[1], [kv_heads] or [batch or pages, kv_heads, tokens]");
    scale->require_contiguous();
    if (scale->elements() == 1) return LEANATTN_SCALE_TENSOR;
    scale->require_extent(0, problem_.kv_heads, "kv_heads, or 1");
    return LEANATTN_SCALE_HEAD;
  };
  const std::int32_t of_k = kind(k_scale_), of_v = kind(v_scale_);
  if (has_k && has_v && of_k != of_v)
    bad_value("v_scale",
              fmt::format("has shape {}, but k_scale has {}", v_scale_->shape_text(), k_scale_->shape_text()));
  problem_.kv_scale = has_k ? of_k : of_v;
  if (problem_.kv_scale == LEANATTN_SCALE_TOKEN) {
    const TensorView& scale = has_k ? *k_scale_ : *v_scale_;
    if (has_k && has_v) {
      for (const int i : {0, 1, 2}) {
        if (k_scale_->stride(i) != v_scale_->stride(i))
          bad_value("v_scale", fmt::format("has stride {} in dimension {}, but k_scale has {}", v_scale_->stride(i), i,
                                           k_scale_->stride(i)));
      }
    }
    const bool written = given(objects.k_new);
    k_.require_rows(written);
    if (v_) v_->require_rows(written);
    // Scales may lie among the rows, which are then aligned as scales are.
    if (!k_.has_aligned_rows(kVectorBytes) || (v_ && !v_->has_aligned_rows(kVectorBytes)))
      problem_.kv_scale = LEANATTN_SCALE_IN_ROW;
    launch_.kv_scale_stride_batch = scale.launch_stride(0);
    launch_.kv_scale_stride_head = scale.launch_stride(1);
    launch_.kv_scale_stride_token = scale.launch_stride(2);
  } else {
    require_aligned();
  }
  if (has_k) launch_.k_scale = k_scale_->data<float>();
  if (has_v) launch_.v_scale = v_scale_->data<float>();
}

void DecodeArguments::read_block_scales(const DecodeObjects& objects) {
  const bool has_k = read(k_block_scales_, objects.k_block_scales, "k_block_scales"),
             has_v = read(v_block_scales_, objects.v_block_scales, "v_block_scales");
  const int of_row = kv_encoding(static_cast<KvFormat>(problem_.kv_format)).block_scale_bytes(problem_.head_dim);
  if (of_row == 0) {
    if (!has_k && !has_v) return;
    bad_value(has_k ? "k_block_scales" : "v_block_scales", "is given, but kv_dtype is not \"nvfp4\"",
              "Leave it out: other caches have no scales of blocks.");
  }
  if (!has_k || !has_v)
    bad_value(has_k ? "v_block_scales" : "k_block_scales", "is missing",
              "Give the fp8 e4m3 scales of the blocks of 16 columns in each row of the cache.");
  const bool head_major = number_of(kCacheLayouts, objects.kv_layout, "kv_layout") == LEANATTN_KV_CONTIGUOUS;
  for (const TensorView* scales : {&*k_block_scales_, &*v_block_scales_}) {
    if (scales->type() != ElementType::fp8_e4m3) scales->require_type(ElementType::uint8);
    scales->require_rank(4, "that of k_cache, with head_dim / 16 columns");
    for (const int dimension : {0, 1, 2}) scales->require_extent(dimension, k_.extent(dimension), "of k_cache");
    scales->require_extent(3, of_row, "head_dim / 16");
    scales->require_aligned_rows(given(objects.k_new), block_scale_copy_bytes(of_row));
  }
  for (const int i : {0, 1, 2}) {
    if (k_block_scales_->stride(i) != v_block_scales_->stride(i))
      bad_value("v_block_scales", fmt::format("has stride {} in dimension {}, but k_block_scales has {}",
                                              v_block_scales_->stride(i), i, k_block_scales_->stride(i)));
  }
  launch_.kv_scale_stride_batch = k_block_scales_->launch_stride(0);
  launch_.kv_scale_stride_head = k_block_scales_->launch_stride(head_major ? 1 : 2);
  launch_.kv_scale_stride_token = k_block_scales_->launch_stride(head_major ? 2 : 1);
  launch_.k_block_scales = k_block_scales_->data();
  launch_.v_block_scales = v_block_scales_->data();
}

void DecodeArguments::read_masks(const DecodeObjects& objects) {
  const bool tree = read(tree_mask_, objects.tree_mask, "tree_mask");
  problem_.query_mask = given(objects.mask) ? number_of(kNames<QueryMask>, objects.mask, "mask")
                        : tree              ? LEANATTN_MASK_TREE
                                            : LEANATTN_MASK_CAUSAL;
  if (tree != (problem_.query_mask == LEANATTN_MASK_TREE)) {
    if (!tree) bad_value("tree_mask", "is missing", "The mask \"tree\" needs it.");
    bad_value("mask",
              fmt::format("is \"{}\", but tree_mask is given", name_of(kNames<QueryMask>, problem_.query_mask)));
  }
  if (tree) {
    if (tree_mask_->type() != ElementType::uint32) tree_mask_->require_type(ElementType::int32);
    tree_mask_->require_contiguous();
    if (tree_mask_->elements() != query_tokens_)
      bad_value("tree_mask",
                fmt::format("has shape {}, but there are {} query tokens", tree_mask_->shape_text(), query_tokens_),
                "Give one word for each query token.");
    launch_.tree_mask = tree_mask_->data<std::uint32_t>();
  }
  if (read(spans_, objects.spans, "spans")) {
    spans_->require_type(ElementType::int32);
    spans_->require_rank(2, "[query tokens, 2]");
    spans_->require_extent(0, query_tokens_, "query tokens");
    spans_->require_extent(1, 2, "begin and end");
    spans_->require_contiguous();
    problem_.spans = 1;
    launch_.spans = spans_->data<std::int32_t>();
  }
  problem_.window = int_of(objects.window, "window");
  problem_.sink_tokens = int_of(objects.sink_tokens, "sink_tokens");
}

void DecodeArguments::read_scores(const DecodeObjects& objects) {
  if (given(objects.scale)) {
    launch_.scale = static_cast<float>(float_of(objects.scale, "scale"));
    if (!(launch_.scale > 0 && launch_.scale <= std::numeric_limits<float>::max()))
      bad_value("scale", fmt::format("is {}", launch_.scale),
                "Give a positive number, or None for 1 / sqrt(head_dim).");
  }
  problem_.soft_cap = float_of(objects.soft_cap, "soft_cap");
  if (given(objects.score)) {
    score_ = text_of(objects.score, "score");
    if (score_.empty()) bad_value("score", "is empty");
    problem_.score = score_.c_str();
  }
  if (read(sink_logits_, objects.sink_logits, "sink_logits")) {
    require_dense_floats(sink_logits_, problem_.q_heads, "[q_heads]");
    problem_.sink_logits = 1;
    launch_.sink_logits = sink_logits_->data<float>();
  }
  if (read(alibi_slopes_, objects.alibi_slopes, "alibi_slopes")) {
    require_dense_floats(alibi_slopes_, problem_.q_heads, "[q_heads]");
    problem_.alibi = 1;
    launch_.alibi_slopes = alibi_slopes_->data<float>();
  }
}

void DecodeArguments::read_new_tokens(const DecodeObjects& objects) {
  const bool has_k = read(k_new_, objects.k_new, "k_new"), has_v = read(v_new_, objects.v_new, "v_new");
  if (!v_ && has_v) bad_value("v_new", "is given, but values are a part of the keys", "Leave it out.");
  if (v_ && has_k != has_v)
    bad_value(has_k ? "v_new" : "k_new", "is missing", "Keys and values are appended together.");
  if (has_k) {
    problem_.append = 1;
    for (const TensorView* tensor : {&*k_new_, v_new_ ? &*v_new_ : &*k_new_}) {
      tensor->require_type(q_.type());
      tensor->require_rank(q_.rank(), "that of q, with kv_heads");
      tensor->require_aligned_rows();
      const int heads = q_.rank() - 2;
      for (int i = 0; i < heads; ++i) tensor->require_extent(i, q_.extent(i), "of q");
      tensor->require_extent(heads, problem_.kv_heads, "kv_heads");
    }
    const int heads = q_.rank() - 2;
    k_new_->require_extent(heads + 1, problem_.head_dim, "head_dim");
    launch_.k_new = k_new_->data();
    launch_.k_new_stride_head = k_new_->launch_stride(heads);
    (ragged_ ? launch_.k_new_stride_token : launch_.k_new_stride_batch) = k_new_->launch_stride(0);
    if (several_) launch_.k_new_stride_token = k_new_->launch_stride(1);
  }
  if (has_v) {
    const int heads = q_.rank() - 2;
    v_new_->require_extent(heads + 1, v_columns_, "head_dim of v_cache");
    launch_.v_new = v_new_->data();
    launch_.v_new_stride_head = v_new_->launch_stride(heads);
    (ragged_ ? launch_.v_new_stride_token : launch_.v_new_stride_batch) = v_new_->launch_stride(0);
    if (several_) launch_.v_new_stride_token = v_new_->launch_stride(1);
  }
  if (!read(rope_table_, objects.rope_table, "rope_table")) {
    if (given(objects.rope)) bad_value("rope_table", "is missing", "Give the cosines and sines of the rotation.");
    return;
  }
  rope_table_->require_type(ElementType::fp32);
  rope_table_->require_rank(2, "[positions, rope_dim]");
  rope_table_->require_contiguous();
  // The kernel reads a row for every position that occurs, and the host does not know which these are. Those of a group
  // are positions in the whole contexts.
  const std::int64_t positions = capacity_ * objects.ranks;
  if (rope_table_->extent(0) < positions)
    bad_value("rope_table",
              fmt::format("has shape {}, but contexts may have {} tokens", rope_table_->shape_text(), positions),
              objects.ranks == 1
                  ? "Give a row for every position that the cache has room for."
                  : "Give a row for every position that the caches of all ranks together have room for.");
  problem_.rope = given(objects.rope) ? number_of(kNames<Rope>, objects.rope, "rope") : LEANATTN_ROPE_HALF_SPLIT;
  if (problem_.rope == LEANATTN_ROPE_NONE) bad_value("rope", "is \"none\", but rope_table is given");
  problem_.rope_dim = rope_table_->extent32(1);
  launch_.rope_table = rope_table_->data<float>();
}

void DecodeArguments::read_selection(const DecodeObjects& objects) {
  const bool counts = read(selected_counts_, objects.selected_counts, "selected_counts");
  if (!read(selection_, objects.selection, "selection")) {
    if (counts) bad_value("selection", "is missing, and selected_counts is given");
    if (given(objects.selection_block)) bad_value("selection", "is missing, and selection_block is given");
    return;
  }
  if (!counts) bad_value("selected_counts", "is missing", "Say how many entries of each query token's lists count.");
  const int heads = q_.rank() - 2, entries = heads + 1;
  selection_->require_type(ElementType::int32);
  selection_->require_rank(q_.rank(),
                           several_ ? "[batch, q_len, kv_heads or 1, entries]" : "[batch, kv_heads or 1, entries]");
  for (int i = 0; i < heads; ++i) selection_->require_extent(i, q_.extent(i), "of q");
  if (selection_->extent(heads) != 1) selection_->require_extent(heads, problem_.kv_heads, "kv_heads, or 1");
  selection_->require_rows();
  selected_counts_->require_type(ElementType::int32);
  selected_counts_->require_rank(heads, several_ ? "[batch, q_len]" : "[batch]");
  for (int i = 0; i < heads; ++i) selected_counts_->require_extent(i, q_.extent(i), "of q");
  selected_counts_->require_contiguous();
  problem_.selection_block = given(objects.selection_block) ? int_of(objects.selection_block, "selection_block") : 1;
  if (problem_.selection_block < 1)
    bad_value("selection_block", fmt::format("is {}", problem_.selection_block),
              "Give the tokens of an entry: 1, 16, 32, 64 or 128.");
  problem_.selection_in_pool = in_pool_;
  launch_.selection = selection_->data<std::int32_t>();
  launch_.selected_counts = selected_counts_->data<std::int32_t>();
  launch_.selection_capacity = selection_->extent32(entries);
  launch_.selection_heads = selection_->extent32(heads);
  launch_.selection_stride_batch = selection_->launch_stride(0);
  launch_.selection_stride_head = selection_->launch_stride(heads);
  if (several_) launch_.selection_stride_token = selection_->launch_stride(1);
  capacity_ = std::int64_t{launch_.selection_capacity} * problem_.selection_block;
}

void DecodeArguments::read_second_cache(const DecodeObjects& objects) {
  const bool has_k = read(second_k_, objects.second_k_cache, "second_k_cache"),
             has_v = read(second_v_, objects.second_v_cache, "second_v_cache"),
             table = read(second_page_table_, objects.second_page_table, "second_page_table"),
             lengths = read(second_lengths_, objects.second_lengths, "second_lengths");
  if (!has_k) {
    const char* const asks = has_v     ? "second_v_cache"
                             : table   ? "second_page_table"
                             : lengths ? "second_lengths"
                                       : nullptr;
    if (asks != nullptr) bad_value("second_k_cache", fmt::format("is missing, and {} is given", asks));
    return;
  }
  if (!selection_)
    bad_value("second_k_cache", "is given without a selection", "It is a second cache beside selected KV.");
  if (!table) bad_value("second_page_table", "is missing", "Say where the pages of each request are.");
  if (!lengths) bad_value("second_lengths", "is missing", "Say how many of its tokens each query token sees.");
  if (has_v != v_.has_value())
    bad_value("second_v_cache", has_v ? "is given, and v_cache is None" : "is missing, and v_cache is given");
  // One kernel reads both caches, by the same strides.
  for (const auto& [view, of, name] :
       {std::tuple{&second_k_, &k_, "of k_cache"}, std::tuple{&second_v_, has_v ? &*v_ : nullptr, "of v_cache"}}) {
    if (of == nullptr) continue;
    (*view)->require_type(of->type());
    (*view)->require_rank(of->rank(), "that of k_cache");
    (*view)->require_aligned_rows(/*written=*/false, kVectorBytes, counted_);
    for (int i = 1; i < of->rank(); ++i) (*view)->require_extent(i, of->extent(i), name);
    for (int i = 0; i < of->rank(); ++i) {
      if ((*view)->stride(i) != of->stride(i) && (*view)->extent(i) > 1 && of->extent(i) > 1)
        bad_value(
            of == &k_ ? "second_k_cache" : "second_v_cache",
            fmt::format("has stride {} in dimension {}, and the other cache {}", (*view)->stride(i), i, of->stride(i)),
            "Both caches have the same layout.");
    }
  }
  const int heads = q_.rank() - 2;
  second_page_table_->require_type(ElementType::int32);
  second_page_table_->require_rank(2, "[batch, pages of a request]");
  second_page_table_->require_extent(0, batch_, "batch");
  second_page_table_->require_rows();
  second_lengths_->require_type(ElementType::int32);
  second_lengths_->require_rank(heads, several_ ? "[batch, q_len]" : "[batch]");
  for (int i = 0; i < heads; ++i) second_lengths_->require_extent(i, q_.extent(i), "of q");
  second_lengths_->require_contiguous();
  problem_.second_cache = 1;
  launch_.second_k = second_k_->data();
  // What the stride from page to page is, a pool of one page does not say.
  if (k_.extent(0) == 1) launch_.k_stride_batch = second_k_->launch_stride(0);
  if (has_v && v_->extent(0) == 1) launch_.v_stride_batch = second_v_->launch_stride(0);
  if (has_v) {
    second_v_->require_extent(0, second_k_->extent(0), "of second_k_cache");
    launch_.second_v = second_v_->data();
  }
  launch_.second_page_table = second_page_table_->data<std::int32_t>();
  launch_.second_lengths = second_lengths_->data<std::int32_t>();
  launch_.second_page_table_stride = second_page_table_->launch_stride(0);
  launch_.second_pool_pages = second_k_->extent32(0);
  launch_.second_max_pages = second_page_table_->extent32(1, is_empty() ? 0 : 1);
  capacity_ += std::int64_t{launch_.second_max_pages} * problem_.page_size;
}

void DecodeArguments::read_group(const DecodeObjects& objects) {
  const bool full = read(full_lengths_, objects.full_context_lengths, "full_context_lengths"),
             starts = read(starts_, objects.context_starts, "context_starts");
  problem_.context_interleave = int_of(objects.context_interleave, "context_interleave");
  problem_.replicate_output = bool_of(objects.replicate_output, "replicate_output");
  if (objects.ranks == 1) [[likely]] {
    const char* const asks = full                               ? "full_context_lengths"
                             : starts                           ? "context_starts"
                             : problem_.context_interleave != 0 ? "context_interleave"
                             : problem_.replicate_output != 0   ? "replicate_output"
                                                                : nullptr;
    if (asks != nullptr)
      bad_value("group", fmt::format("is missing, and {} is given", asks),
                "Give the rank's Group, or leave out what is for one.");
    return;
  }
  problem_.context_parallel = objects.ranks;
  for (const auto& [given, view] : {std::pair{full, &full_lengths_}, std::pair{starts, &starts_}}) {
    if (!given) continue;
    (*view)->require_type(ElementType::int32);
    (*view)->require_rank(1, "[batch]");
    (*view)->require_extent(0, batch_, "batch");
    (*view)->require_contiguous();
  }
  if (full) launch_.full_context_lengths = full_lengths_->data<std::int32_t>();
  if (starts) launch_.context_starts = starts_->data<std::int32_t>();
}

}  // namespace leanattn::python
