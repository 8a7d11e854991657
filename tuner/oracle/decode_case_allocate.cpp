// decode_case_allocate.cpp -- chooses the strides of a decode case and allocates its arrays.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>

#include "generator/kv_encoding.hpp"
#include "tuner/oracle/decode_case.hpp"
#include "tuner/oracle/decode_case_detail.hpp"
#include "tuner/oracle/oracle.hpp"

namespace leanattn {
inline namespace v1 {

using decode_case_detail::kUnitBytes;
using decode_case_detail::round_up;
using decode_case_detail::wait_for;

namespace {

constexpr int kRoomPastContext = 72;  // tokens of NaN behind the longest context, more than one step of a warp
constexpr std::int64_t kMostPages = std::numeric_limits<int>::max();

/// Pages of a pool that holds `used` ones and some more, so that a kernel that confuses pages is found out.
std::int64_t pool_for(std::int64_t used) { return used + used / 4 + 3; }

/// The capacity of a request where the options name none.
std::int64_t usual_capacity(std::span<const int> context_lengths) {
  const int longest = context_lengths.empty() ? 0 : *std::max_element(context_lengths.begin(), context_lengths.end());
  return std::min<std::int64_t>(std::int64_t{std::max(0, longest)} + kRoomPastContext, std::numeric_limits<int>::max());
}

/// The rows of packed K and V.
std::int64_t packed_capacity(std::span<const int> context_lengths) {
  std::int64_t tokens = kRoomPastContext;
  for (const int length : context_lengths) tokens += std::max(length, 0);
  return std::min<std::int64_t>(tokens, std::numeric_limits<int>::max());
}

/// From one copy of K, or of V, to the next. elements: of the wider of the two. scale_bytes: of scales of its tokens.
std::int64_t copy_stride(std::int64_t elements, std::int64_t element_bytes, std::int64_t scale_bytes) {
  return round_up(elements * element_bytes + scale_bytes + kUnitBytes, 256);
}

/// Bytes by which a copy of K, or of V, is larger where tokens have scales that lie elsewhere: what stands for a
/// launch's reads takes them for more of K and V.
std::int64_t scale_bytes_of(const DecodeProblem& problem, std::int64_t tokens) {
  const bool apart = has_token_scales(problem.features) && !has_scales_in_rows(problem.features);
  const std::int64_t of_row = kv_encoding(problem.features).block_scale_bytes(problem.head_dim);
  return tokens * problem.kv_heads * (apart ? kScaleBytes : of_row);
}

Result<void> allocate_poisoned(DeviceBuffer& buffer, std::int64_t bytes, CUstream_st* stream) {
  auto made = DeviceBuffer::allocate(bytes);
  if (!made) return tl::unexpected(made.error());
  buffer = std::move(*made);
  return fill_bytes_async(buffer.data(), kPoisonByte, buffer.bytes(), stream);
}

/// Makes a device copy of `values` with `before` poisoned elements in front. Waits, so that `values` may go afterwards.
template <class T>
Result<void> upload(DeviceBuffer& buffer, const std::vector<T>& values, std::int64_t before, CUstream_st* stream) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  const std::int64_t offset = before * static_cast<std::int64_t>(sizeof(T));
  LEANATTN_TRY(allocate_poisoned(buffer, offset + bytes + kUnitBytes, stream));
  LEANATTN_TRY(copy_to_device_async(buffer.at(offset), values.data(), bytes, stream));
  return wait_for(stream);
}

}  // namespace

std::int64_t DecodeCase::bytes_of_copy(const DecodeProblem& problem, std::span<const int> context_lengths) {
  const Features& features = problem.features;
  const auto requests = static_cast<std::int64_t>(context_lengths.size());
  std::int64_t tokens =
      features.packed_kv ? packed_capacity(context_lengths) : requests * usual_capacity(context_lengths);
  if (features.page_size > 0) {
    const std::int64_t pages = (usual_capacity(context_lengths) + features.page_size - 1) / features.page_size;
    tokens = pool_for(requests * pages) * features.page_size;
  }
  const KvEncoding& encoding = kv_encoding(features);
  const std::int64_t k_row = encoding.row_bytes(problem.head_dim) / encoding.stride_bytes(),
                     v_row = features.latent ? 0 : encoding.row_stride(leanattn::v_head_dim(problem));
  const auto bytes_of = [&](std::int64_t columns) {
    return copy_stride(tokens * problem.kv_heads * columns, kv_element_bytes(features),
                       scale_bytes_of(problem, tokens));
  };
  if (has_scales_in_rows(features))
    return bytes_of(encoding.shared_row_bytes(problem.head_dim, leanattn::v_head_dim(problem)));
  return bytes_of(std::max(k_row, v_row)) * (features.latent ? 1 : 2);
}

std::int64_t DecodeCase::padding(std::int64_t units, std::int64_t element_bytes) const {
  return options_.padded ? units * kUnitBytes / element_bytes : 0;
}

Result<void> DecodeCase::allocate(CUstream_st* stream) {
  const Features& features = problem_.features;
  const std::int64_t head_dim = problem_.head_dim, q_heads = problem_.q_heads;
  const auto pad = [&](std::int64_t units) { return padding(units, 2); };
  if (features.packed_kv) {
    options_.context_capacity = static_cast<int>(packed_capacity(lengths_));
  } else if (options_.context_capacity == 0) {
    options_.context_capacity = static_cast<int>(usual_capacity(lengths_));
  }
  std::int64_t capacity = held_capacity(options_.part, options_.context_capacity);
  if (features.page_size > 0) {
    const std::int64_t whole = round_up(capacity, features.page_size);
    if (whole > std::numeric_limits<int>::max() || capacity == 0) {
      return fail(ErrorCode::invalid_argument, fmt::format("a capacity of {} tokens cannot be divided into pages of {}",
                                                           capacity, features.page_size));
    }
    capacity = whole;
  }
  if (options_.part.ranks == 1) options_.context_capacity = static_cast<int>(capacity);
  args_.batch = batch();
  args_.kv_heads = problem_.kv_heads;
  args_.context_capacity = static_cast<int>(capacity);
  const bool extreme = options_.data == DataKind::extreme;
  const double scale = extreme ? extreme_scale(problem_.head_dim) : 1.0 / std::sqrt(static_cast<double>(head_dim));
  args_.score_scale = static_cast<float>(scale);
  // The oracles use the scale that the kernel gets, so that its rounding to fp32 is no error of the kernel.
  const bool natural = transforms_scores(features);
  args_.scale_log2 = natural ? static_cast<float>(std::numbers::log2e) : scale_argument(scale);
  check_ = check_features(problem_, options_.data, options_.seed,
                          natural ? static_cast<double>(args_.score_scale) : scale_of_argument(args_.scale_log2));
  check_.shared_prefix = options_.shared_prefix;
  check_.hole_every = options_.hole_every;
  check_.rank = options_.part.rank, check_.ranks = options_.part.ranks, check_.interleave = options_.part.interleave;
  first_query_tokens_.assign(1, 0);
  for (const int count : query_tokens_) first_query_tokens_.push_back(first_query_tokens_.back() + count);
  args_.query_tokens = first_query_tokens_.back();

  args_.q_stride_head = head_dim + pad(1);
  args_.q_stride_token = q_heads * args_.q_stride_head + (features.q_len > 1 ? pad(2) : 0);
  args_.q_stride_batch = features.q_len * args_.q_stride_token + pad(3);
  args_.o_stride_head = check_.v_head_dim + pad(2);
  args_.o_stride_token = q_heads * args_.o_stride_head + (features.q_len > 1 ? pad(3) : 0);
  args_.o_stride_batch = features.q_len * args_.o_stride_token + pad(1);
  const std::int64_t offset = pad(1);
  const std::int64_t tokens = std::max<std::int64_t>(first_query_tokens_.back(), 1);
  const auto elements = [&](std::int64_t of_batch, std::int64_t of_token) {
    return offset + (features.ragged_q ? tokens * of_token : batch() * of_batch) + kUnitBytes / 2;
  };
  LEANATTN_TRY(allocate_poisoned(q_, elements(args_.q_stride_batch, args_.q_stride_token) * 2, stream));
  LEANATTN_TRY(allocate_poisoned(o_, elements(args_.o_stride_batch, args_.o_stride_token) * 2, stream));
  LEANATTN_TRY(allocate_poisoned(lse_, tokens * q_heads * 4, stream));
  LEANATTN_TRY(allocate_poisoned(lengths_device_, std::int64_t{batch() + 4} * 4, stream));
  LEANATTN_TRY(allocate_kv(stream));
  LEANATTN_TRY(allocate_features(stream));
  LEANATTN_TRY(allocate_new_tokens(stream));
  LEANATTN_TRY(allocate_selection(stream));
  LEANATTN_TRY(allocate_second_cache(stream));

  o_offset_ = offset;
  args_.q = q_.at(offset * 2);
  args_.o = o_.at(offset * 2);
  args_.lse = lse_.as<float>();
  // Arrays of lengths may begin at any multiple of four bytes.
  args_.context_lengths = lengths_device_.as<int>() + (options_.padded ? batch() % 3 + 1 : 0);
  if (options_.part.ranks > 1) {
    for (DeviceBuffer* const buffer : {&contexts_device_, &starts_device_})
      LEANATTN_TRY(allocate_poisoned(*buffer, std::int64_t{batch()} * 4, stream));
    args_.full_lengths = contexts_device_.as<int>(), args_.context_starts = starts_device_.as<int>();
  }
  LEANATTN_TRY(upload_lengths(stream));
  LEANATTN_TRY(kernels_->fill_q(args_, check_, stream));
  LEANATTN_TRY(plant_kv(stream));
  return wait_for(stream);
}

Result<void> DecodeCase::allocate_kv(CUstream_st* stream) {
  const Features& features = problem_.features;
  const std::int64_t element_bytes = kv_element_bytes(features);
  const std::int64_t k_row = kv_encoding(features).row_stride(problem_.head_dim);
  const std::int64_t v_row = features.latent ? 0 : kv_encoding(features).row_stride(check_.v_head_dim);
  const bool scales_in_rows = has_scales_in_rows(features);
  const auto pad = [&](std::int64_t units) {
    return padding(units, element_bytes) * kv_alignment(features) / kUnitBytes;
  };
  // A page has the strides that a request has in a dense cache.
  const std::int64_t tokens = features.page_size > 0 ? features.page_size : args_.context_capacity;
  const bool one_pool = features.page_size > 0 && options_.padded && !features.latent;
  std::int64_t pools = features.packed_kv ? 1 : batch();
  if (features.page_size > 0) {
    const std::int64_t max_pages = args_.context_capacity / features.page_size;
    const std::int64_t used = std::int64_t{batch()} * max_pages;
    pools = options_.pool_pages > 0 ? options_.pool_pages : pool_for(used);
    if (pools < used || pools > kMostPages) {
      return fail(ErrorCode::invalid_argument,
                  fmt::format("a pool of {} pages cannot hold the {} pages that are in use", pools, used),
                  fmt::format("Give at least as many pages as are in use and at most {}.", kMostPages));
    }
    check_.max_pages = static_cast<int>(max_pages);
    args_.page_table_stride = max_pages + (options_.padded ? 3 : 0);
    args_.pool_pages = static_cast<int>(pools);
  }
  // K and V get different padding, so that a kernel that confuses their strides is found out.
  const auto kv_strides = [&](long long& of_batch, long long& of_head, long long& of_token, std::int64_t columns,
                              std::int64_t units) {
    const std::int64_t plane = plane_bytes(features, tokens);
    if (problem_.layout == KvLayout::contiguous || plane > 0) {
      of_token = columns;
      of_head = tokens * columns + plane + pad(units);
      of_batch = problem_.kv_heads * of_head + pad(units + 4);
    } else {
      of_head = columns + pad(units);
      of_token = problem_.kv_heads * of_head + pad(units + 1);
      of_batch = tokens * of_token + pad(units + 4);
    }
  };
  kv_strides(args_.k_stride_batch, args_.k_stride_head, args_.k_stride_token, k_row, 1);
  if (!features.latent) kv_strides(args_.v_stride_batch, args_.v_stride_head, args_.v_stride_token, v_row, 2);
  const std::int64_t offset = pad(1);
  std::int64_t v_in_pool = args_.k_stride_batch;
  if (scales_in_rows) {
    // As engines lay them: a row of K, its scale, the row of V, and its scale.
    v_in_pool = k_row + kScaleBytes;
    kv_strides(args_.k_stride_batch, args_.k_stride_head, args_.k_stride_token,
               kv_encoding(features).shared_row_bytes(problem_.head_dim, check_.v_head_dim), 1);
    if (features.page_size > 0) args_.k_stride_batch = round_up(args_.k_stride_batch, kUnitBytes);
    args_.v_stride_batch = args_.k_stride_batch, args_.v_stride_head = args_.k_stride_head;
    args_.v_stride_token = args_.k_stride_token;
  } else if (one_pool) {
    args_.k_stride_batch = args_.v_stride_batch = args_.k_stride_batch + args_.v_stride_batch;
  }
  const std::int64_t of_blocks = kv_encoding(features).block_scale_bytes(problem_.head_dim),
                     k_scales_in_pool = v_in_pool;
  if (of_blocks > 0) {
    const int of_row = static_cast<int>(of_blocks), aligned = block_scale_alignment(features, problem_.layout, of_row);
    const std::int64_t odd = options_.padded ? block_scale_copy_bytes(of_row) : 0;
    if (problem_.layout == KvLayout::contiguous) {
      // Boxes take what is adjacent.
      args_.kv_scale_stride_token = of_blocks + (copies_boxes(features) ? 0 : odd);
      args_.kv_scale_stride_head = tokens * args_.kv_scale_stride_token + (options_.padded ? aligned : 0);
      args_.kv_scale_stride_batch = round_up(problem_.kv_heads * args_.kv_scale_stride_head, kUnitBytes);
    } else {
      args_.kv_scale_stride_head = of_blocks + odd;
      args_.kv_scale_stride_token = problem_.kv_heads * args_.kv_scale_stride_head + odd;
      args_.kv_scale_stride_batch = round_up(tokens * args_.kv_scale_stride_token, kUnitBytes);
    }
    // A page in one pool has K, the scales of its blocks, V, and theirs.
    if (one_pool) {
      v_in_pool += args_.kv_scale_stride_batch;
      args_.k_stride_batch += 2 * args_.kv_scale_stride_batch;
      args_.v_stride_batch = args_.k_stride_batch;
    }
  }
  kv_copy_bytes_ = copy_stride(offset + pools * std::max(args_.k_stride_batch, args_.v_stride_batch), element_bytes,
                               scale_bytes_of(problem_, pools * tokens));
  // One stride leads from row to row and from request to request.
  if (features.packed_kv) args_.k_stride_batch = args_.k_stride_token, args_.v_stride_batch = args_.v_stride_token;
  LEANATTN_TRY(allocate_poisoned(k_, kv_copy_bytes_ * options_.kv_copies, stream));
  args_.k = k_.at(offset * element_bytes);
  if (features.latent) {
    args_.v = args_.k, args_.v_stride_batch = args_.k_stride_batch;
    args_.v_stride_head = args_.k_stride_head, args_.v_stride_token = args_.k_stride_token;
  } else if (one_pool || scales_in_rows) {
    args_.v = k_.at((offset + v_in_pool) * element_bytes);
  } else {
    LEANATTN_TRY(allocate_poisoned(v_, kv_copy_bytes_ * options_.kv_copies, stream));
    args_.v = v_.at(offset * element_bytes);
  }

  if (features.page_size > 0) {
    const std::int64_t used = std::int64_t{batch()} * check_.max_pages;
    const std::int64_t spare = std::min(pools, pool_for(used)) - used;
    std::vector<int> pages(static_cast<std::size_t>(used + spare));
    std::iota(pages.begin(), pages.end(), static_cast<int>(pools - used - spare));
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(options_.seed));
    LEANATTN_TRY(upload(pages_, pages, 0, stream));
    const std::int64_t before = options_.padded ? 1 : 0;
    LEANATTN_TRY(allocate_poisoned(page_table_, (before + batch() * args_.page_table_stride) * 4, stream));
    args_.page_table = page_table_.as<int>() + before;
  }
  if (!has_scales(features)) return {};
  if (of_blocks > 0 && one_pool) {
    args_.kv_scale_stride_batch = args_.k_stride_batch;
    args_.k_block_scales = k_.at(offset + k_scales_in_pool);
    args_.v_block_scales = k_.at(offset + args_.k_stride_batch - (v_in_pool - k_scales_in_pool));
  } else if (of_blocks > 0) {
    const std::int64_t each = round_up(pools * args_.kv_scale_stride_batch, 256);
    LEANATTN_TRY(allocate_poisoned(block_scales_, each * 2, stream));
    args_.k_block_scales = block_scales_.data(), args_.v_block_scales = block_scales_.at(each);
  }
  if (scales_in_rows) {
    const auto of_pool = [&](std::int64_t byte) { return reinterpret_cast<float*>(k_.at(offset + byte)); };
    args_.kv_scale_stride_batch = args_.k_stride_batch / kScaleBytes;
    args_.kv_scale_stride_head = args_.k_stride_head / kScaleBytes;
    args_.kv_scale_stride_token = args_.k_stride_token / kScaleBytes;
    args_.k_scale = of_pool(k_row), args_.v_scale = of_pool(v_in_pool + v_row);
    return {};
  }
  if (!has_token_scales(features)) {
    const bool by_head = features.kv_scale == KvScale::head;
    std::vector<float> scales;
    for (const DataTensor tensor : {features.latent ? DataTensor::latent : DataTensor::k, DataTensor::v}) {
      for (int head = 0; head < (by_head ? problem_.kv_heads : 1); ++head)
        scales.push_back(data_kv_scale(options_.data, options_.seed, tensor, features, 0, head, 0));
    }
    LEANATTN_TRY(upload(kv_scales_, scales, 0, stream));
    args_.k_scale = kv_scales_.as<float>();
    args_.v_scale = features.latent ? args_.k_scale : kv_scales_.as<float>() + scales.size() / 2;
    return {};
  }
  const std::int64_t odd = options_.padded ? 1 : 0;
  if (problem_.layout == KvLayout::contiguous) {
    args_.kv_scale_stride_token = 1;
    args_.kv_scale_stride_head = tokens + odd;
    args_.kv_scale_stride_batch = problem_.kv_heads * args_.kv_scale_stride_head + odd;
  } else {
    args_.kv_scale_stride_head = 1;
    args_.kv_scale_stride_token = problem_.kv_heads + odd;
    args_.kv_scale_stride_batch = tokens * args_.kv_scale_stride_token + odd;
  }
  const std::int64_t each = round_up(pools * args_.kv_scale_stride_batch, 64);
  LEANATTN_TRY(allocate_poisoned(kv_scales_, each * 2 * 4, stream));
  args_.k_scale = kv_scales_.as<float>();
  args_.v_scale = features.latent ? args_.k_scale : kv_scales_.as<float>() + each;
  return {};
}

Result<void> DecodeCase::allocate_new_tokens(CUstream_st* stream) {
  const Features& features = problem_.features;
  if (features.rope != Rope::none) {
    const std::int64_t positions = std::max(1, options_.context_capacity);
    LEANATTN_TRY(allocate_poisoned(rope_table_, positions * check_.rope_dim * 4, stream));
    LEANATTN_TRY(kernels_->fill_rope(check_, positions, rope_table_.as<float>(), stream));
    args_.rope_table = rope_table_.as<float>();
  }
  if (!features.append) return {};
  const std::int64_t tokens = std::max<std::int64_t>(first_query_tokens_.back(), 1);
  const auto make = [&](DeviceBuffer& buffer, std::int64_t columns, std::int64_t units, long long& of_batch,
                        long long& of_token, long long& of_head) {
    of_head = columns + padding(units, 2);
    of_token = problem_.kv_heads * of_head + padding(units + 1, 2);
    of_batch = features.q_len * of_token + padding(units + 2, 2);
    return allocate_poisoned(buffer, (features.ragged_q ? tokens * of_token : batch() * of_batch) * 2, stream);
  };
  LEANATTN_TRY(
      make(k_new_, problem_.head_dim, 1, args_.k_new_stride_batch, args_.k_new_stride_token, args_.k_new_stride_head));
  if (!features.latent)
    LEANATTN_TRY(make(v_new_, check_.v_head_dim, 2, args_.v_new_stride_batch, args_.v_new_stride_token,
                      args_.v_new_stride_head));
  args_.k_new = k_new_.data();
  args_.v_new = v_new_.data();
  return allocate_poisoned(wrong_appended_, 8, stream);
}

Result<void> DecodeCase::allocate_selection(CUstream_st* stream) {
  const Features& features = problem_.features;
  if (!has_selection(features)) return {};
  // A block of the pool is a part of a page, because neighbouring pages belong to different requests.
  if (features.selection_in_pool && features.page_size % features.selection_block != 0)
    return fail(ErrorCode::invalid_argument,
                fmt::format("a decode case with blocks of {} tokens of a pool, in pages of {}",
                            features.selection_block, features.page_size),
                "Give pages of whole blocks.");
  check_.selection_spread = options_.selection_spread;
  check_.selection_holes = options_.selection_holes;
  check_.selection_heads = options_.padded && batch() % 2 == 1 ? 1 : problem_.kv_heads;
  const std::int64_t blocks = round_up(options_.context_capacity, features.selection_block) / features.selection_block;
  const std::int64_t most = (blocks + options_.selection_spread - 1) / options_.selection_spread;
  const std::int64_t odd = options_.padded ? 3 : 0;
  args_.selection_capacity = static_cast<int>(most + odd);
  args_.selection_stride_head = args_.selection_capacity + odd;
  args_.selection_stride_token = check_.selection_heads * args_.selection_stride_head + odd;
  args_.selection_stride_batch = features.q_len * args_.selection_stride_token + odd;
  LEANATTN_TRY(allocate_poisoned(selection_, batch() * args_.selection_stride_batch * 4, stream));
  LEANATTN_TRY(allocate_poisoned(selected_counts_, std::int64_t{batch()} * features.q_len * 4, stream));
  args_.selection = selection_.as<int>();
  args_.selected_counts = selected_counts_.as<int>();
  if (check_.selection_heads == 1) args_.selection_stride_head = 0;
  return {};
}

Result<void> DecodeCase::allocate_second_cache(CUstream_st* stream) {
  const Features& features = problem_.features;
  if (!features.second_cache) return {};
  const std::int64_t page = features.page_size, each = (options_.second_capacity + page - 1) / page,
                     used = batch() * each, pools = used + used / 4 + 3;
  args_.second_capacity = static_cast<int>(each * page);
  args_.second_page_table_stride = each + (options_.padded ? 3 : 0);
  args_.second_pool_pages = static_cast<int>(pools);
  const std::int64_t element_bytes = kv_element_bytes(features);
  // K and V lie in pools of their own, by the strides of the first cache.
  LEANATTN_TRY(
      allocate_poisoned(second_k_, round_up(pools * args_.k_stride_batch * element_bytes + kUnitBytes, 256), stream));
  args_.second_k = args_.second_v = second_k_.data();
  if (!features.latent) {
    LEANATTN_TRY(
        allocate_poisoned(second_v_, round_up(pools * args_.v_stride_batch * element_bytes + kUnitBytes, 256), stream));
    args_.second_v = second_v_.data();
  }
  std::vector<int> pages(static_cast<std::size_t>(pools));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(options_.seed + 1));
  LEANATTN_TRY(upload(second_pages_, pages, 0, stream));
  LEANATTN_TRY(allocate_poisoned(second_page_table_, batch() * args_.second_page_table_stride * 4, stream));
  args_.second_page_table = second_page_table_.as<int>();
  std::vector<int> lengths;
  for (int request = 0; request < batch(); ++request)
    for (int t = 0; t < features.q_len; ++t)
      lengths.push_back(data_second_length(options_.seed, request, t, args_.second_capacity));
  LEANATTN_TRY(upload(second_lengths_, lengths, 0, stream));
  args_.second_lengths = second_lengths_.as<int>();
  return upload(second_full_lengths_, std::vector<int>(static_cast<std::size_t>(batch()), args_.second_capacity), 0,
                stream);
}

Result<void> DecodeCase::allocate_features(CUstream_st* stream) {
  const Features& features = problem_.features;
  if (features.ragged_q) {
    const std::int64_t before = options_.padded ? 1 : 0;
    LEANATTN_TRY(upload(q_offsets_, first_query_tokens_, before, stream));
    args_.q_offsets = q_offsets_.as<int>() + before;
  }
  if (features.mask == QueryMask::tree) {
    std::vector<std::uint32_t> words;
    for (int request = 0; request < batch(); ++request) {
      for (int t = 0; t < query_tokens_[static_cast<std::size_t>(request)]; ++t)
        words.push_back(data_tree_word(options_.seed, request, t));
    }
    LEANATTN_TRY(upload(tree_mask_, words, 0, stream));
    args_.tree_mask = tree_mask_.as<unsigned>();
  }
  if (features.spans) {
    const std::int64_t before = options_.padded ? 1 : 0, tokens = first_query_tokens_.back();
    LEANATTN_TRY(allocate_poisoned(spans_, (before + tokens + 1) * std::int64_t{sizeof(LeanSpan)}, stream));
    args_.spans = spans_.as<LeanSpan>() + before;
  }
  if (features.alibi || features.sink_logits) {
    std::vector<float> values;
    values.reserve(static_cast<std::size_t>(problem_.q_heads) * 2);
    for (int head = 0; head < problem_.q_heads; ++head) values.push_back(data_alibi_slope(options_.seed, head));
    for (int head = 0; head < problem_.q_heads; ++head) values.push_back(data_sink_logit(options_.seed, head));
    LEANATTN_TRY(upload(head_values_, values, 0, stream));
    if (features.alibi) args_.alibi_slopes = head_values_.as<float>();
    if (features.sink_logits) args_.sink_logits = head_values_.as<float>() + problem_.q_heads;
  }
  return {};
}

}  // namespace v1
}  // namespace leanattn
