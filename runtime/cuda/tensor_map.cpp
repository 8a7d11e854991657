// tensor_map.cpp -- sizes, strides and boxes of the tensor maps of K and V.
#include "runtime/cuda/tensor_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "generator/families/family.hpp"
#include "generator/kv_encoding.hpp"
#include "runtime/cuda/driver.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kPanelDims = 64;  // 128 bytes, the widest swizzle
constexpr std::int64_t kElementBytes = 2;

/// Those of one walk.
Result<void> encode_walk(const KernelSpec& spec, const KernelLayout& layout, const LeanDecodeArgs& args,
                         int l2_promotion, KvTensorMaps::OfWalk& maps) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const bool paged = spec.features.page_size > 0;
  const std::int64_t tokens = paged ? spec.features.page_size : args.context_capacity;
  const std::int64_t outer = paged ? args.pool_pages : spec.features.packed_kv ? 1 : args.batch;
  const auto promotion = l2_promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const auto type = spec.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const int run = paged ? layout.page_run : layout.step_tokens;
  const cuuint32_t every_element[] = {1, 1, 1, 1, 1};

  struct Operand {
    const void* base;
    int dims, dims_of_copy;
    long long token, head, outer;
  };
  const auto encode = [&](CUtensorMap& map, const Operand& operand) {
    const auto panels = static_cast<cuuint32_t>(operand.dims / kPanelDims);
    const auto panels_of_copy = static_cast<cuuint32_t>(operand.dims_of_copy / kPanelDims);
    const cuuint64_t sizes[] = {kPanelDims, static_cast<cuuint64_t>(tokens), panels,
                                static_cast<cuuint64_t>(args.kv_heads), static_cast<cuuint64_t>(outer)};
    const cuuint32_t box[] = {kPanelDims, static_cast<cuuint32_t>(run), run == layout.step_tokens ? panels_of_copy : 1,
                              1, 1};
    // The stride of a dimension of one element is never used, but it must be valid.
    const auto bytes = [](long long stride, long long extent) {
      return static_cast<cuuint64_t>(extent > 1 ? stride * kElementBytes : 16);
    };
    const cuuint64_t strides[] = {bytes(operand.token, tokens), kPanelDims * kElementBytes,
                                  bytes(operand.head, args.kv_heads), bytes(operand.outer, outer)};
    constexpr cuuint64_t kStrideLimit = cuuint64_t{1} << 40;
    if (const cuuint64_t longest = *std::max_element(std::begin(strides), std::end(strides)); longest >= kStrideLimit)
      return Result<void>(fail(ErrorCode::unsupported, fmt::format("a KV stride of {} bytes", longest),
                               "Load path tensor takes strides below 2^40 bytes."));
    return check(
        (*api)->cuTensorMapEncodeTiled(&map, type, 5, const_cast<void*>(operand.base), sizes, strides, box,
                                       every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                       promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled", ErrorCode::launch_failed);
  };
  // A latent stage of two parts has those of the first half of V, and all others.
  const bool in_parts = spec.features.latent && layout.stage_parts > 1;
  const int dims = spec.head_dim, first = in_parts ? value_dim(spec) / 2 : dims;
  const Operand k = {args.k, dims, first, args.k_stride_token, args.k_stride_head, args.k_stride_batch};
  const Operand others = {args.k, dims, dims - first, args.k_stride_token, args.k_stride_head, args.k_stride_batch};
  const int v_dims = value_dim(spec);
  const Operand v = {args.v, v_dims, v_dims, args.v_stride_token, args.v_stride_head, args.v_stride_batch};
  if (auto ok = encode(maps.k, k); !ok) return ok;
  return encode(maps.v, in_parts ? others : v);
}

/// Those of rows that hold K, V and their scales (templates/kv/row_boxes.cuh): of the even tokens, and of the odd ones.
Result<void> encode_row_boxes(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion,
                              KvTensorMaps::OfWalk& maps) {
  constexpr int kUnit = 8, kBoxTokens = 16, kAlignment = 16;
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const Features& features = spec.features;
  const bool paged = features.page_size > 0;
  const KvEncoding& encoding = kv_encoding(features);
  const int row = encoding.shared_row_bytes(spec.head_dim, value_dim(spec));
  const std::int64_t bytes = encoding.stride_bytes(), token = args.k_stride_token * bytes,
                     head = args.k_stride_head * bytes, outer = args.k_stride_batch * bytes;
  const std::int64_t tokens = paged ? features.page_size : args.context_capacity;
  std::int64_t outermost = paged ? args.pool_pages : features.packed_kv ? 1 : args.batch;
  // Requests that no stride of a map reaches lie in one dimension with the heads.
  std::int64_t before_last = (args.kv_heads - 1) * head;
  if (!paged && outer % kAlignment != 0) before_last += (outermost - 1) * outer, outermost = 1;
  if (before_last / kUnit > std::numeric_limits<std::int32_t>::max() - row)
    return fail(ErrorCode::unsupported, fmt::format("rows of a cache that are up to {} bytes apart", before_last),
                "Lay requests at multiples of 16 bytes.");
  const auto promotion = l2_promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const cuuint32_t every_element[] = {1, 1, 1};
  const cuuint32_t box[] = {static_cast<cuuint32_t>((row + kAlignment - 1) / kAlignment * 2), kBoxTokens / 2, 1};
  for (const int odd : {0, 1}) {
    // One token has no odd one beside it, whose map must have rows that are there.
    const auto first =
        reinterpret_cast<std::uintptr_t>(args.k) + static_cast<std::uintptr_t>(tokens > 1 ? odd * token : 0);
    const std::uintptr_t base = first / kAlignment * kAlignment;
    // Up to the end of the last KV head's row, so that nothing behind it is read.
    const auto columns = static_cast<std::int64_t>(first - base) + before_last + row;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns / kUnit),
                                static_cast<cuuint64_t>(std::max<std::int64_t>((tokens + 1 - odd) / 2, 1)),
                                static_cast<cuuint64_t>(outermost)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(tokens > 2 ? 2 * token : kAlignment),
                                  static_cast<cuuint64_t>(outermost > 1 ? outer : kAlignment)};
    auto done = check((*api)->cuTensorMapEncodeTiled(odd == 0 ? &maps.k : &maps.v, CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 3,
                                                     reinterpret_cast<void*>(base), sizes, strides, box, every_element,
                                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                                     promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                      "cuTensorMapEncodeTiled", ErrorCode::launch_failed);
    if (!done) return done;
  }
  return {};
}

}  // namespace

Result<KvTensorMaps> encode_tensor_maps(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion) {
  const KernelLayout layout = layout_of(spec);
  KvTensorMaps maps{};
  if (layout.gathers_rows) return maps;  // nobody reads them
  Result<void> done;
  if (layout.copies_row_boxes) {
    done = encode_row_boxes(spec, args, l2_promotion, maps.walks[0]);
  } else if (layout.family->halves == nullptr) {
    done = encode_walk(spec, layout, args, l2_promotion, maps.walks[0]);
  } else {
    const auto halves = layout.family->halves(spec);
    for (std::size_t i = 0; i < halves.size() && done; ++i)
      done = encode_walk(halves[i].spec, halves[i].layout, args, l2_promotion, maps.walks[i]);
  }
  if (!done) return tl::unexpected(done.error());
  return maps;
}

}  // namespace v1
}  // namespace leanattn
