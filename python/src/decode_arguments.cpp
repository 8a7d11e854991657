// decode_arguments.cpp -- the checks of queries, cache, shape and outputs.
#include "decode_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "errors.hpp"
#include "generator/kv_encoding.hpp"
#include "names.hpp"
#include "page_rows.hpp"
#include "problem.hpp"

namespace leanattn::python {
namespace nb = nanobind;
std::int64_t typical_context(std::int64_t tokens) {
  const auto unit =
      std::max<std::int64_t>(64, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tokens)) / 8));
  return (tokens + unit - 1) / unit * unit;
}

DecodeArguments::DecodeArguments(const DecodeObjects& objects, CUstream_st* stream)
    : stream_(stream), q_(objects.q, "q", stream), k_(objects.k_cache, "k_cache", stream) {
  leanattn_problem_init(&problem_);
  leanattn_shape_init(&shape_);
  leanattn_decode_args_init(&launch_);
  in_pool_ = given(objects.selection) && !given(objects.page_table) && objects.rows == nullptr;
  if (objects.rows == nullptr && ((!in_pool_ && !given(objects.kv_offsets)) || given(objects.context_lengths)))
    lengths_.emplace(objects.context_lengths, "context_lengths", stream);
  read_queries(objects);
  read_cache(objects);
  read_cache_format(objects);
  read_scales(objects);
  read_block_scales(objects);
  read_masks(objects);
  read_scores(objects);
  read_new_tokens(objects);
  read_selection(objects);
  read_second_cache(objects);
  read_group(objects);
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
  q_.require_aligned_rows();
  const int heads = q_.rank() - 2;
  problem_.q_heads = q_.extent32(heads);
  problem_.head_dim = q_.extent32(heads + 1);
  launch_.q = q_.data();
  launch_.q_stride_head = q_.launch_stride(heads);

  if (lengths_) {
    lengths_->require_device(q_.device());
    lengths_->require_type(ElementType::int32);
    lengths_->require_rank(1, "[batch]");
    lengths_->require_contiguous();
    launch_.context_lengths = lengths_->data<std::int32_t>();
  }
  if (objects.rows != nullptr) objects.rows->indptr().require_device(q_.device());
  const bool packed = read(kv_offsets_, objects.kv_offsets, "kv_offsets");
  if (packed) {
    if (lengths_)
      bad_value("context_lengths", "is given, but kv_offsets says how long contexts are", "Give None in its place.");
    kv_offsets_->require_type(ElementType::int32);
    kv_offsets_->require_rank(1, "[batch + 1]");
    kv_offsets_->require_contiguous();
    problem_.packed_kv = 1;
    launch_.kv_offsets = kv_offsets_->data<std::int32_t>();
  }
  if (ragged_) {
    if (!lengths_ && !packed && objects.rows == nullptr)
      bad_value("context_lengths", "is missing", "With q_offsets, give one length a request.");
    batch_ = lengths_ ? lengths_->extent32(0, 0) : packed ? kv_offsets_->extent32(0) - 1 : objects.rows->batch();
    if (!given(objects.max_q_len))
      bad_value("max_q_len", "is missing", "With q_offsets, say how many query tokens a request has at most.");
    problem_.q_len = int_of(objects.max_q_len, "max_q_len");
    problem_.ragged_q = 1;
    query_tokens_ = launch_.query_tokens = q_.extent32(0, 0);
    launch_.q_stride_token = q_.launch_stride(0);
    q_offsets_->require_type(ElementType::int32);
    q_offsets_->require_rank(1, "[batch + 1]");
    q_offsets_->require_extent(0, batch_ + 1, "batch + 1");
    q_offsets_->require_contiguous();
    launch_.q_offsets = q_offsets_->data<std::int32_t>();
  } else {
    batch_ = q_.extent32(0, 0);
    if (lengths_) lengths_->require_extent(0, batch_, "batch");
    if (packed) kv_offsets_->require_extent(0, batch_ + 1, "batch + 1");
    if (objects.rows != nullptr && objects.rows->batch() != batch_)
      bad_value("page_table", fmt::format("is of {} requests, but q has {}", objects.rows->batch(), batch_));
    problem_.q_len = several_ ? q_.extent32(1) : 1;
    if (given(objects.max_q_len) && int_of(objects.max_q_len, "max_q_len") != problem_.q_len)
      bad_value("max_q_len",
                fmt::format("is {}, but q has {} query tokens a request", int_of(objects.max_q_len, "max_q_len"),
                            problem_.q_len),
                "It is for q_offsets; leave it out.");
    query_tokens_ = batch_ * problem_.q_len;
    launch_.q_stride_batch = q_.launch_stride(0);
    if (several_) launch_.q_stride_token = q_.launch_stride(1);
  }
  launch_.batch = static_cast<std::int32_t>(batch_);
}

void DecodeArguments::read_cache(const DecodeObjects& objects) {
  const bool head_major = number_of(kCacheLayouts, objects.kv_layout, "kv_layout") == LEANATTN_KV_CONTIGUOUS;
  const bool paged = read(page_table_, objects.page_table, "page_table") || objects.rows != nullptr;
  const char* const shape =
      paged || in_pool_
          ? (head_major ? "[pages, kv_heads, page_size, head_dim]" : "[pages, page_size, kv_heads, head_dim]")
          : (head_major ? "[batch, kv_heads, context, head_dim]" : "[batch, context, kv_heads, head_dim]");
  const bool latent = !read(v_, objects.v_cache, "v_cache"), packed = kv_offsets_.has_value();
  const std::int32_t wanted =
      given(objects.kv_dtype) ? number_of(kNames<KvFormat>, objects.kv_dtype, "kv_dtype") : LEANATTN_KV_SAME;
  const KvEncoding& encoding = kv_encoding(static_cast<KvFormat>(wanted));
  const int elements_of_unit = encoding.bits < 8 ? 8 / encoding.bits : 1;  // of those in which extents count
  // Engines keep latent caches without a dimension for the one KV head.
  const bool flat = latent && !packed && k_.rank() == 3;
  const int heads = packed || head_major ? 1 : 2,
            tokens = packed                ? 0
                     : head_major && !flat ? 2
                                           : 1,
            columns = packed || flat ? 2 : 3;
  if (packed && (paged || latent))
    bad_value("kv_offsets", paged ? "is given with page_table" : "is given, and v_cache is None",
              "They are for K and V that are no cache.");
  for (const TensorView* cache : {&k_, latent ? &k_ : &*v_}) {
    cache->require_device(q_.device());
    if (packed) cache->require_rank(3, "[tokens, kv_heads, head_dim] with kv_offsets");
    if (!packed && !flat) cache->require_rank(4, shape);
    cache->require_aligned_rows(given(objects.k_new), kScaleBytes);
  }
  if (latent) {
    if (!given(objects.v_head_dim))
      bad_value("v_cache", "is None, and v_head_dim is missing",
                "Give v_cache, or for latent attention how many first columns of k_cache are values.");
    if (!given(objects.scale))
      bad_value("scale", "is missing, and latent attention has no default", "Give the model's softmax scale.");
    problem_.latent = 1;
    problem_.v_head_dim = int_of(objects.v_head_dim, "v_head_dim");
    v_columns_ = problem_.v_head_dim;
    if (v_columns_ < 1 || v_columns_ > k_.extent(columns))
      bad_value("v_head_dim", fmt::format("is {}, and k_cache has {} columns", v_columns_, k_.extent(columns)));
  } else {
    if (given(objects.v_head_dim))
      bad_value("v_head_dim", "is given with v_cache", "It is for latent attention, where v_cache is None.");
    v_columns_ = v_->extent(columns) * elements_of_unit;
    for (const int dimension : {0, heads, tokens}) v_->require_extent(dimension, k_.extent(dimension), "of k_cache");
  }
  if (k_.type() == ElementType::uint8 && wanted == LEANATTN_KV_SAME)
    bad_type(
        "k_cache", "is uint8, which does not say what its bytes are",
        "Give kv_dtype: \"fp8_e4m3\", \"fp8_e5m2\", \"int8\", \"int4\", \"nvfp4\", \"fp8_ds_mla\" or \"fp8_ds_v4\".");
  // Rows with a format of their own are bytes, whose number is not that of the columns.
  const bool bytes = encoding.row != nullptr || encoding.bits < 8;
  const std::int64_t row = encoding.row_bytes(problem_.head_dim) / encoding.stride_bytes();
  k_.require_extent(columns, row, bytes ? "bytes of a row of the kv_dtype" : "head_dim of q");
  problem_.kv_heads = flat ? 1 : k_.extent32(heads);
  if (problem_.q_heads % problem_.kv_heads != 0) {
    bad_value("q",
              fmt::format("has {} heads, which is no multiple of k_cache's {}", problem_.q_heads, problem_.kv_heads));
  }
  if (v_ && v_columns_ != problem_.head_dim) problem_.v_head_dim = static_cast<std::int32_t>(v_columns_);
  cache_tokens_ = k_.extent32(tokens);
  if (paged) {
    if (page_table_) {
      page_table_->require_type(ElementType::int32);
      page_table_->require_rank(2, "[batch, max_pages]");
      page_table_->require_extent(0, batch_, "batch");
      page_table_->require_rows();
      launch_.page_table = page_table_->data<std::int32_t>();
      launch_.max_pages = page_table_->extent32(1, is_empty() ? 0 : 1);
      launch_.page_table_stride = page_table_->launch_stride(0);
    } else {
      launch_.max_pages = static_cast<std::int32_t>(objects.max_pages);
      launch_.page_table_stride = objects.max_pages;
    }
    problem_.page_size = static_cast<std::int32_t>(cache_tokens_);
    launch_.pool_pages = k_.extent32(0);
    capacity_ = std::int64_t{launch_.max_pages} * problem_.page_size;
  } else if (in_pool_) {
    problem_.page_size = static_cast<std::int32_t>(cache_tokens_);
    launch_.pool_pages = k_.extent32(0);
  } else {
    if (!packed) k_.require_extent(0, batch_, "batch");
    capacity_ = cache_tokens_;
    launch_.context_capacity = static_cast<std::int32_t>(capacity_);
  }
  launch_.k = k_.data();
  if (!packed) launch_.k_stride_batch = k_.launch_stride(0);
  if (!flat) launch_.k_stride_head = k_.launch_stride(heads);
  launch_.k_stride_token = k_.launch_stride(tokens);
  if (const std::int64_t without_scales = encoding.row_stride(problem_.head_dim); without_scales != row) {
    // The tensor counts scales to the rows. In memory they lie behind those of a page.
    counted_ = tokens;
    if (cache_tokens_ > 1 && k_.stride(tokens) != row)
      bad_value("k_cache", fmt::format("has tokens {} bytes apart, not {}", k_.stride(tokens), row),
                "Only pages may be apart: the scales of a page lie behind its rows.");
    launch_.k_stride_token = without_scales;
  }
  if (v_) {
    launch_.v = v_->data();
    if (!packed) launch_.v_stride_batch = v_->launch_stride(0);
    launch_.v_stride_head = v_->launch_stride(heads);
    launch_.v_stride_token = v_->launch_stride(tokens);
  }
  // The strides decide and not the names of the dimensions, because a transposed view of one layout is the other one.
  const bool adjacent = cache_tokens_ == 1 ||
                        (k_.stride(tokens) == k_.extent(columns) && (!v_ || v_->stride(tokens) == v_->extent(columns)));
  problem_.kv_layout = adjacent ? LEANATTN_KV_CONTIGUOUS : LEANATTN_KV_STRIDED;
}

void DecodeArguments::read_cache_format(const DecodeObjects& objects) {
  if (v_) v_->require_type(k_.type());
  const bool said = given(objects.kv_dtype);
  const std::int32_t wanted = said ? number_of(kNames<KvFormat>, objects.kv_dtype, "kv_dtype") : LEANATTN_KV_SAME;
  std::int32_t found = LEANATTN_KV_SAME;
  switch (k_.type()) {
    case ElementType::int8: found = LEANATTN_KV_INT8; break;
    case ElementType::fp8_e4m3: found = LEANATTN_KV_FP8_E4M3; break;
    case ElementType::fp8_e5m2: found = LEANATTN_KV_FP8_E5M2; break;
    case ElementType::uint8: found = wanted; break;
    default: k_.require_type(q_.type());
  }
  // Frameworks whose DLPack has no fp8 may pass it as int8.
  if (said && wanted != found) {
    if (k_.type() != ElementType::int8 || wanted == LEANATTN_KV_SAME)
      bad_value("kv_dtype",
                fmt::format("is \"{}\", but k_cache is {}", name_of(kNames<KvFormat>, wanted), to_string(k_.type())));
    found = wanted;
  }
  problem_.kv_format = found;
}

void DecodeArguments::read_shape(const DecodeObjects& objects) {
  problem_.batch_invariant = bool_of(objects.batch_invariant, "batch_invariant");
  problem_.pdl = bool_of(objects.pdl, "pdl");
  if (given(objects.shape)) {
    if (given(objects.typical_batch) || given(objects.longest_context) || given(objects.total_context))
      bad_value("shape", "is given with typical_batch, longest_context or total_context",
                "It says them: leave these out.");
    shape_ = detail::to_c(read_plan_shape(objects.shape));
    shape_.max_batch = std::max(shape_.batch, static_cast<std::int32_t>(batch_));
    if (given(objects.max_batch)) shape_.max_batch = int_of(objects.max_batch, "max_batch");
    return;
  }
  shape_.batch = static_cast<std::int32_t>(batch_);
  if (given(objects.typical_batch)) {
    shape_.batch = int_of(objects.typical_batch, "typical_batch");
    if (shape_.batch < 1) bad_value("typical_batch", fmt::format("is {}", shape_.batch));
    shape_.max_batch = std::max(shape_.batch, static_cast<std::int32_t>(batch_));
  }
  if (given(objects.max_batch)) shape_.max_batch = int_of(objects.max_batch, "max_batch");
  shape_.longest_context = given(objects.longest_context) ? int64_of(objects.longest_context, "longest_context")
                                                          : typical_context(capacity_);
  if (given(objects.total_context)) shape_.total_context = int64_of(objects.total_context, "total_context");
  if (query_tokens_ > batch_) shape_.query_tokens = typical_context(query_tokens_);
}

void DecodeArguments::set_page_table(const std::int32_t* page_table, const std::int32_t* context_lengths) {
  launch_.page_table = page_table;
  launch_.context_lengths = context_lengths;
}

nb::object DecodeArguments::out_shape() const {
  const auto columns = v_columns_;
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
  out_->require_aligned_rows(/*written=*/true);
  const int heads = q_.rank() - 2;
  for (int i = 0; i <= heads; ++i) out_->require_extent(i, q_.extent(i), "of q");
  out_->require_extent(heads + 1, v_columns_, "columns of the values");
  if (out_->data() == q_.data() && !is_empty())
    bad_value(name, "is q", "The kernel reads q after it has written parts of the result.");
  launch_.o = out_->data();
  launch_.o_stride_head = out_->launch_stride(heads);
  (ragged_ ? launch_.o_stride_token : launch_.o_stride_batch) = out_->launch_stride(0);
  if (several_) launch_.o_stride_token = out_->launch_stride(1);
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
