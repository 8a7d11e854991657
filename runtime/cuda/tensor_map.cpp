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

constexpr int kBoxTokens = 16, kBoxAlignment = 16;

/// A map of bytes for boxes of 16 tokens (templates/kv/boxes.cuh): columns of a unit of so many bytes, rows and what is
/// outermost. Strides count bytes.
struct BoxMap {
  std::uintptr_t base;
  int unit;
  std::int64_t columns, rows, outermost, row_stride, outer_stride;
  std::int64_t box_columns, box_rows;
};
Result<void> encode_boxes(const BoxMap& boxes, int l2_promotion, CUtensorMap& map) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const auto size = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  // The stride of a dimension of one element is never used, but it must be valid.
  const cuuint64_t sizes[] = {size(boxes.columns), size(boxes.rows), size(boxes.outermost)},
                   strides[] = {size(boxes.rows > 1 ? boxes.row_stride : kBoxAlignment),
                                size(boxes.outermost > 1 ? boxes.outer_stride : kBoxAlignment)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(boxes.box_columns), static_cast<cuuint32_t>(boxes.box_rows), 1},
                   every_element[] = {1, 1, 1};
  const auto promotion = l2_promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const auto type = boxes.unit == 8 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64 : CU_TENSOR_MAP_DATA_TYPE_INT32;
  return check((*api)->cuTensorMapEncodeTiled(&map, type, 3, reinterpret_cast<void*>(boxes.base), sizes, strides, box,
                                              every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                              promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled", ErrorCode::launch_failed);
}

/// Errors: unsupported, for a last column that kernels cannot count to.
Result<void> check_columns(std::int64_t before_last, std::int64_t row, int unit) {
  if (before_last / unit <= std::numeric_limits<std::int32_t>::max() - row) return {};
  return fail(ErrorCode::unsupported, fmt::format("rows of a cache that are up to {} bytes apart", before_last),
              "Lay requests at multiples of 16 bytes.");
}

/// Those of rows that hold K, V and their scales (templates/kv/row_boxes.cuh): of the even tokens, and of the odd ones.
Result<void> encode_row_boxes(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion,
                              KvTensorMaps& maps) {
  constexpr int kUnit = 8;
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
  if (!paged && outer % kBoxAlignment != 0) before_last += (outermost - 1) * outer, outermost = 1;
  if (auto ok = check_columns(before_last, row, kUnit); !ok) return ok;
  for (const int odd : {0, 1}) {
    // One token has no odd one beside it, whose map must have rows that are there.
    const auto first =
        reinterpret_cast<std::uintptr_t>(args.k) + static_cast<std::uintptr_t>(tokens > 1 ? odd * token : 0);
    const std::uintptr_t base = first / kBoxAlignment * kBoxAlignment;
    // Up to the end of the last KV head's row, so that nothing behind it is read.
    const auto columns = static_cast<std::int64_t>(first - base) + before_last + row;
    auto done = encode_boxes({.base = base,
                              .unit = kUnit,
                              .columns = columns / kUnit,
                              .rows = std::max<std::int64_t>((tokens + 1 - odd) / 2, 1),
                              .outermost = outermost,
                              .row_stride = 2 * token,
                              .outer_stride = outer,
                              .box_columns = (row + kBoxAlignment - 1) / kBoxAlignment * (kBoxAlignment / kUnit),
                              .box_rows = kBoxTokens / 2},
                             l2_promotion, odd == 0 ? maps.walks[0].k : maps.walks[0].v);
    if (!done) return done;
  }
  return {};
}

/// Those of pages with scales of blocks (templates/kv/block_boxes.cuh): K, V and, where tokens are adjacent, the scales
/// of K and those of V.
Result<void> encode_block_boxes(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion,
                                KvTensorMaps& maps) {
  constexpr int kMostColumns = 256;  // of a box
  struct Operand {
    const void* base;
    int unit, row;  // bytes: of a column, and of a token's row
    long long token, head, outer;
    CUtensorMap& map;
  };
  const KvEncoding& encoding = kv_encoding(spec.features);
  const bool adjacent = boxes_bring_all(spec.features, spec.layout);
  const int k_row = encoding.row_bytes(spec.head_dim), v_row = encoding.row_bytes(value_dim(spec)),
            scales = encoding.block_scale_bytes(spec.head_dim);
  auto& [rows, of_blocks] = maps.walks;
  const auto encode = [&](const Operand& operand) {
    const auto& [base, unit, row, token, head, outer, map] = operand;
    // Adjacent rows of 16 tokens are one row of a box, or as few as a box can have columns for.
    int together = 1;
    if (adjacent)
      for (together = kBoxTokens; together * row > kMostColumns * unit;) together /= 2;
    const std::int64_t before_last = (args.kv_heads - 1) * head, tokens = spec.features.page_size;
    if (auto ok = check_columns(before_last, row, unit); !ok) return ok;
    return encode_boxes({.base = reinterpret_cast<std::uintptr_t>(base),
                         .unit = unit,
                         .columns = (before_last + (adjacent ? tokens : 1) * row) / unit,
                         .rows = adjacent ? kBoxTokens / together : tokens,
                         .outermost = args.pool_pages,
                         .row_stride = together * token,
                         .outer_stride = outer,
                         .box_columns = together * row / unit,
                         .box_rows = kBoxTokens / together},
                        l2_promotion, map);
  };
  constexpr int kRowUnit = 8, kScaleUnit = 4;
  const auto scales_at = [&](const void* base, CUtensorMap& map) {
    return encode({base, kScaleUnit, scales, args.kv_scale_stride_token, args.kv_scale_stride_head,
                   args.kv_scale_stride_batch, map});
  };
  auto done = encode({args.k, kRowUnit, k_row, args.k_stride_token, args.k_stride_head, args.k_stride_batch, rows.k});
  if (done)
    done = encode({args.v, kRowUnit, v_row, args.v_stride_token, args.v_stride_head, args.v_stride_batch, rows.v});
  if (done && adjacent) done = scales_at(args.k_block_scales, of_blocks.k);
  if (done && adjacent) done = scales_at(args.v_block_scales, of_blocks.v);
  return done;
}

}  // namespace

Result<KvTensorMaps> encode_tensor_maps(const KernelSpec& spec, const LeanDecodeArgs& args, int l2_promotion) {
  const KernelLayout layout = layout_of(spec);
  KvTensorMaps maps{};
  if (layout.gathers_rows) return maps;  // nobody reads them
  Result<void> done;
  if (layout.copies_boxes) {
    done = (has_block_scales(spec.features) ? encode_block_boxes : encode_row_boxes)(spec, args, l2_promotion, maps);
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
