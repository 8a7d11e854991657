#include "decode_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "errors.hpp"
#include "names.hpp"

namespace leanattn::python {
namespace nb = nanobind;
namespace {

constexpr unsigned kVectorBytes = 16;  // what one load takes: the alignment of rows

bool given(nb::handle object) { return !object.is_none(); }

/// Rows of `tensor` begin at multiples of 16 bytes, in every dimension but the last.
void require_aligned_rows(const TensorView& tensor) {
  tensor.require_rows();
  tensor.require_aligned(kVectorBytes);
  for (int i = 0; i + 1 < tensor.rank(); ++i) {
    if (tensor.stride(i) * bytes_of(tensor.type()) % kVectorBytes == 0) [[likely]]
      continue;
    bad_value(tensor.name(),
              fmt::format("has stride {} in dimension {}, which is not a multiple of 16 bytes", tensor.stride(i), i),
              "Pad rows to 16 bytes.");
  }
}

std::int32_t narrow(const TensorView& tensor, std::int64_t extent) {
  if (extent < 1) bad_value(tensor.name(), fmt::format("has shape {}, which is empty", tensor.shape_text()));
  if (extent > std::numeric_limits<std::int32_t>::max())
    bad_value(tensor.name(), fmt::format("has shape {}, with more than 2^31 in a dimension", tensor.shape_text()));
  return static_cast<std::int32_t>(extent);
}

/// A context length for the look-up that does not change at every step of a cache that grows: rounded up, by at most
/// an eighth.
std::int64_t typical_context(std::int64_t tokens) {
  const auto unit =
      std::max<std::int64_t>(64, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)) / 8));
  return (tokens + unit - 1) / unit * unit;
}

}  // namespace

DecodeArguments::DecodeArguments(const DecodeObjects& objects, CUstream_st* stream)
    : stream_(stream),
      q_(objects.q, "q", stream),
      k_(objects.k_cache, "k_cache", stream),
      v_(objects.v_cache, "v_cache", stream),
      lengths_(objects.context_lengths, "context_lengths", stream) {
  leanattn_problem_init(&problem_);
  leanattn_shape_init(&shape_);
  leanattn_decode_args_init(&launch_);
  read_queries(objects);
  read_cache(objects);
  read_cache_format(objects);
  read_scales(objects);
  read_masks(objects);
  read_scores(objects);
  read_new_tokens(objects);
  read_shape(objects);
  problem_.lse = given(objects.out_lse) || bool_of(objects.return_lse, "return_lse");
}

bool DecodeArguments::read(Optional& view, nb::handle object, const char* name) {
  if (object.is_none()) [[likely]]
    return false;
  view.emplace(object, name, stream_);
  view->require_device(q_.device());
  return true;
}

void DecodeArguments::require_dense_floats(Optional& view, std::int64_t count, const char* what) const {
  view->require_type(ElementType::fp32);
  view->require_rank(1, what);
  view->require_extent(0, count, what);
  view->require_contiguous();
}

void DecodeArguments::read_queries(const DecodeObjects& objects) {
  ragged_ = read(q_offsets_, objects.q_offsets, "q_offsets");
  if (q_.type() != ElementType::bf16 && q_.type() != ElementType::fp16) {
    if (q_.type() == ElementType::fp32) bad_type("q", "is float32, neither bfloat16 nor float16");
    q_.require_type(ElementType::bf16);
  }
  problem_.dtype = q_.type() == ElementType::bf16 ? LEANATTN_BF16 : LEANATTN_FP16;
  several_ = !ragged_ && q_.rank() == 4;
  if (ragged_) {
    q_.require_rank(3, "[query tokens, q_heads, head_dim] with q_offsets");
  } else if (!several_) {
    q_.require_rank(3, "[batch, q_heads, head_dim] or [batch, q_len, q_heads, head_dim]");
  }
  require_aligned_rows(q_);
  const int heads = q_.rank() - 2;
  problem_.q_heads = narrow(q_, q_.extent(heads));
  problem_.head_dim = narrow(q_, q_.extent(heads + 1));
  launch_.q = q_.data();
  launch_.q_stride_head = q_.stride(heads);

  lengths_.require_device(q_.device());
  lengths_.require_type(ElementType::int32);
  lengths_.require_rank(1, "[batch]");
  lengths_.require_contiguous();
  launch_.context_lengths = lengths_.data<std::int32_t>();
  if (ragged_) {
    batch_ = narrow(lengths_, lengths_.extent(0));
    if (!given(objects.max_q_len))
      bad_value("max_q_len", "is missing", "With q_offsets, say how many query tokens a request has at most.");
    problem_.q_len = int_of(objects.max_q_len, "max_q_len");
    problem_.ragged_q = 1;
    query_tokens_ = narrow(q_, q_.extent(0));
    launch_.q_stride_token = q_.stride(0);
    q_offsets_->require_type(ElementType::int32);
    q_offsets_->require_rank(1, "[batch + 1]");
    q_offsets_->require_extent(0, batch_ + 1, "batch + 1");
    q_offsets_->require_contiguous();
    launch_.q_offsets = q_offsets_->data<std::int32_t>();
  } else {
    batch_ = narrow(q_, q_.extent(0));
    lengths_.require_extent(0, batch_, "batch");
    problem_.q_len = several_ ? narrow(q_, q_.extent(1)) : 1;
    if (given(objects.max_q_len) && int_of(objects.max_q_len, "max_q_len") != problem_.q_len)
      bad_value("max_q_len",
                fmt::format("is {}, but q has {} query tokens a request", int_of(objects.max_q_len, "max_q_len"),
                            problem_.q_len),
                "It is for q_offsets; leave it out.");
    query_tokens_ = batch_ * problem_.q_len;
    launch_.q_stride_batch = q_.stride(0);
    if (several_) launch_.q_stride_token = q_.stride(1);
  }
  launch_.batch = static_cast<std::int32_t>(batch_);
}

void DecodeArguments::read_cache(const DecodeObjects& objects) {
  const bool head_major = number_of(kCacheLayouts, objects.kv_layout, "kv_layout") == LEANATTN_KV_CONTIGUOUS;
  const bool paged = read(page_table_, objects.page_table, "page_table");
  const char* const shape =
      paged ? (head_major ? "[pages, kv_heads, page_size, head_dim]" : "[pages, page_size, kv_heads, head_dim]")
            : (head_major ? "[batch, kv_heads, context, head_dim]" : "[batch, context, kv_heads, head_dim]");
  const int heads = head_major ? 1 : 2, tokens = head_major ? 2 : 1;
  for (const TensorView* cache : {&k_, &v_}) {
    cache->require_device(q_.device());
    cache->require_rank(4, shape);
    require_aligned_rows(*cache);
  }
  for (const int dimension : {0, heads, tokens}) v_.require_extent(dimension, k_.extent(dimension), "of k_cache");
  k_.require_extent(3, problem_.head_dim, "head_dim of q");
  problem_.kv_heads = narrow(k_, k_.extent(heads));
  if (problem_.q_heads % problem_.kv_heads != 0) {
    bad_value("q",
              fmt::format("has {} heads, which is no multiple of k_cache's {}", problem_.q_heads, problem_.kv_heads));
  }
  if (v_.extent(3) != problem_.head_dim) problem_.v_head_dim = narrow(v_, v_.extent(3));
  cache_tokens_ = narrow(k_, k_.extent(tokens));
  if (paged) {
    page_table_->require_type(ElementType::int32);
    page_table_->require_rank(2, "[batch, max_pages]");
    page_table_->require_extent(0, batch_, "batch");
    page_table_->require_rows();
    problem_.page_size = static_cast<std::int32_t>(cache_tokens_);
    launch_.page_table = page_table_->data<std::int32_t>();
    launch_.max_pages = narrow(*page_table_, page_table_->extent(1));
    launch_.page_table_stride = page_table_->stride(0);
    launch_.pool_pages = narrow(k_, k_.extent(0));
    capacity_ = std::int64_t{launch_.max_pages} * problem_.page_size;
  } else {
    k_.require_extent(0, batch_, "batch");
    capacity_ = cache_tokens_;
    launch_.context_capacity = static_cast<std::int32_t>(capacity_);
  }
  launch_.k = k_.data();
  launch_.k_stride_batch = k_.stride(0);
  launch_.k_stride_head = k_.stride(heads);
  launch_.k_stride_token = k_.stride(tokens);
  launch_.v = v_.data();
  launch_.v_stride_batch = v_.stride(0);
  launch_.v_stride_head = v_.stride(heads);
  launch_.v_stride_token = v_.stride(tokens);
  // What the memory is, not what the dimensions are called: a transposed view of one layout is the other.
  const bool adjacent = cache_tokens_ == 1 || (k_.stride(tokens) == k_.extent(3) && v_.stride(tokens) == v_.extent(3));
  problem_.kv_layout = adjacent ? LEANATTN_KV_CONTIGUOUS : LEANATTN_KV_STRIDED;
}

void DecodeArguments::read_cache_format(const DecodeObjects& objects) {
  v_.require_type(k_.type());
  const bool said = given(objects.kv_dtype);
  const std::int32_t wanted = said ? number_of(kCacheFormats, objects.kv_dtype, "kv_dtype") : LEANATTN_KV_SAME;
  std::int32_t found = LEANATTN_KV_SAME;
  switch (k_.type()) {
    case ElementType::int8: found = LEANATTN_KV_INT8; break;
    case ElementType::fp8_e4m3: found = LEANATTN_KV_FP8_E4M3; break;
    case ElementType::fp8_e5m2: found = LEANATTN_KV_FP8_E5M2; break;
    case ElementType::uint8:
      if (wanted == LEANATTN_KV_SAME)
        bad_type("k_cache", "is uint8, which does not say what its bytes are",
                 "Give kv_dtype: \"fp8_e4m3\", \"fp8_e5m2\" or \"int8\".");
      found = wanted;
      break;
    default: k_.require_type(q_.type());
  }
  // fp8 may travel as int8 through frameworks whose DLPack has no fp8.
  if (said && wanted != found) {
    if (k_.type() != ElementType::int8 || wanted == LEANATTN_KV_SAME)
      bad_value("kv_dtype",
                fmt::format("is \"{}\", but k_cache is {}", name_of(kCacheFormats, wanted), to_string(k_.type())));
    found = wanted;
  }
  problem_.kv_format = found;
}

void DecodeArguments::read_scales(const DecodeObjects& objects) {
  const bool has_k = read(k_scale_, objects.k_scale, "k_scale"), has_v = read(v_scale_, objects.v_scale, "v_scale");
  if (!has_k && !has_v) return;
  if (problem_.kv_format == LEANATTN_KV_SAME)
    bad_value(has_k ? "k_scale" : "v_scale", fmt::format("is given, but k_cache is {}", to_string(k_.type())),
              "Scales are for one-byte caches.");
  // -1: not given.
  const auto kind = [&](Optional& scale) -> std::int32_t {
    if (!scale) return -1;
    scale->require_type(ElementType::fp32);
    if (scale->rank() == 3) {
      scale->require_extent(0, k_.extent(0), "of k_cache");
      scale->require_extent(1, problem_.kv_heads, "kv_heads");
      scale->require_extent(2, cache_tokens_, "tokens of k_cache");
      scale->require_rows();
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
    launch_.kv_scale_stride_batch = scale.stride(0);
    launch_.kv_scale_stride_head = scale.stride(1);
    launch_.kv_scale_stride_token = scale.stride(2);
  }
  if (has_k) launch_.k_scale = k_scale_->data<float>();
  if (has_v) launch_.v_scale = v_scale_->data<float>();
}

void DecodeArguments::read_masks(const DecodeObjects& objects) {
  const bool tree = read(tree_mask_, objects.tree_mask, "tree_mask");
  problem_.query_mask = given(objects.mask) ? number_of(kMasks, objects.mask, "mask")
                        : tree              ? LEANATTN_MASK_TREE
                                            : LEANATTN_MASK_CAUSAL;
  if (tree != (problem_.query_mask == LEANATTN_MASK_TREE)) {
    if (!tree) bad_value("tree_mask", "is missing", "The mask \"tree\" needs it.");
    bad_value("mask", fmt::format("is \"{}\", but tree_mask is given", name_of(kMasks, problem_.query_mask)));
  }
  if (tree) {
    if (tree_mask_->type() != ElementType::uint32) tree_mask_->require_type(ElementType::int32);
    tree_mask_->require_contiguous();
    if (tree_mask_->elements() != query_tokens_)
      bad_value("tree_mask",
                fmt::format("has shape {}, but there are {} query tokens", tree_mask_->shape_text(), query_tokens_),
                "One word a query token.");
    launch_.tree_mask = tree_mask_->data<std::uint32_t>();
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
  if (has_k != has_v) bad_value(has_k ? "v_new" : "k_new", "is missing", "Keys and values are appended together.");
  if (has_k) {
    problem_.append = 1;
    for (const TensorView* tensor : {&*k_new_, &*v_new_}) {
      tensor->require_type(q_.type());
      tensor->require_rank(q_.rank(), "that of q, with kv_heads");
      require_aligned_rows(*tensor);
      const int heads = q_.rank() - 2;
      for (int i = 0; i < heads; ++i) tensor->require_extent(i, q_.extent(i), "of q");
      tensor->require_extent(heads, problem_.kv_heads, "kv_heads");
    }
    const int heads = q_.rank() - 2;
    k_new_->require_extent(heads + 1, problem_.head_dim, "head_dim");
    v_new_->require_extent(heads + 1, v_.extent(3), "head_dim of v_cache");
    launch_.k_new = k_new_->data();
    launch_.v_new = v_new_->data();
    launch_.k_new_stride_head = k_new_->stride(heads);
    launch_.v_new_stride_head = v_new_->stride(heads);
    (ragged_ ? launch_.k_new_stride_token : launch_.k_new_stride_batch) = k_new_->stride(0);
    (ragged_ ? launch_.v_new_stride_token : launch_.v_new_stride_batch) = v_new_->stride(0);
    if (several_) {
      launch_.k_new_stride_token = k_new_->stride(1);
      launch_.v_new_stride_token = v_new_->stride(1);
    }
  }
  if (!read(rope_table_, objects.rope_table, "rope_table")) {
    if (given(objects.rope))
      bad_value("rope_table", "is missing", "It has the cosines and sines that rope turns with.");
    return;
  }
  rope_table_->require_type(ElementType::fp32);
  rope_table_->require_rank(2, "[positions, rope_dim]");
  rope_table_->require_contiguous();
  // The kernel reads the row of every position that occurs, and those are on the device.
  if (rope_table_->extent(0) < capacity_)
    bad_value("rope_table",
              fmt::format("has shape {}, but contexts may have {} tokens", rope_table_->shape_text(), capacity_),
              "Give a row for every position that the cache has room for.");
  problem_.rope = given(objects.rope) ? number_of(kRopes, objects.rope, "rope") : LEANATTN_ROPE_HALF_SPLIT;
  if (problem_.rope == LEANATTN_ROPE_NONE) bad_value("rope", "is \"none\", but rope_table is given");
  problem_.rope_dim = narrow(*rope_table_, rope_table_->extent(1));
  launch_.rope_table = rope_table_->data<float>();
}

void DecodeArguments::read_shape(const DecodeObjects& objects) {
  problem_.batch_invariant = bool_of(objects.batch_invariant, "batch_invariant");
  problem_.pdl = bool_of(objects.pdl, "pdl");
  shape_.batch = static_cast<std::int32_t>(batch_);
  if (given(objects.max_batch)) shape_.max_batch = int_of(objects.max_batch, "max_batch");
  shape_.longest_context = given(objects.longest_context) ? int64_of(objects.longest_context, "longest_context")
                                                          : typical_context(capacity_);
  if (given(objects.total_context)) shape_.total_context = int64_of(objects.total_context, "total_context");
}

nb::object DecodeArguments::out_shape() const {
  const auto columns = v_.extent(3);
  if (q_.rank() == 3) return nb::make_tuple(q_.extent(0), q_.extent(1), columns);
  return nb::make_tuple(q_.extent(0), q_.extent(1), q_.extent(2), columns);
}

nb::object DecodeArguments::lse_shape() const {
  if (q_.rank() == 3) return nb::make_tuple(q_.extent(0), q_.extent(1));
  return nb::make_tuple(q_.extent(0), q_.extent(1), q_.extent(2));
}

void DecodeArguments::set_out(nb::handle out, const char* name) {
  read(out_, out, name);
  out_->require_type(q_.type());
  out_->require_rank(q_.rank(), "that of q");
  require_aligned_rows(*out_);
  const int heads = q_.rank() - 2;
  for (int i = 0; i <= heads; ++i) out_->require_extent(i, q_.extent(i), "of q");
  out_->require_extent(heads + 1, v_.extent(3), "head_dim of v_cache");
  if (out_->data() == q_.data())
    bad_value(name, "is q", "The kernel reads q after it has written parts of the result.");
  launch_.o = out_->data();
  launch_.o_stride_head = out_->stride(heads);
  (ragged_ ? launch_.o_stride_token : launch_.o_stride_batch) = out_->stride(0);
  if (several_) launch_.o_stride_token = out_->stride(1);
}

void DecodeArguments::set_lse(nb::handle lse, const char* name) {
  read(lse_, lse, name);
  lse_->require_type(ElementType::fp32);
  lse_->require_rank(q_.rank() - 1, "that of q without head_dim");
  for (int i = 0; i + 1 < q_.rank(); ++i) lse_->require_extent(i, q_.extent(i), "of q");
  lse_->require_contiguous();
  launch_.lse = lse_->data<float>();
}

}  // namespace leanattn::python
