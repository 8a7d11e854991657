#include "runtime/tensor_map.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/driver.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr int kPanelDims = 64;  // 128 bytes: the widest swizzle
constexpr std::int64_t kElementBytes = 2;

/// Asked for 128 bytes, L2 may fetch their neighbours too. That hides latency where a launch is all latency, and costs
/// a tenth of the rate where memory is the limit: on an H200 16 MB of KV took 7.9 against 8.3 us, 1 GB 261 against 238.
constexpr std::int64_t kSmallCacheBytes = 24 << 20;

}  // namespace

Result<KvTensorMaps> encode_tensor_maps(const KernelSpec& spec, const LeanDecodeArgs& args) {
  const auto api = driver();
  if (!api) return tl::unexpected(api.error());
  const std::int64_t cache_bytes =
      2 * kElementBytes * spec.head_dim * args.batch * std::int64_t{args.kv_heads} * args.context_capacity;
  const auto promotion =
      cache_bytes <= kSmallCacheBytes ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const auto type = spec.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint64_t sizes[] = {kPanelDims, static_cast<cuuint64_t>(args.context_capacity),
                              static_cast<cuuint64_t>(spec.head_dim / kPanelDims),
                              static_cast<cuuint64_t>(args.kv_heads), static_cast<cuuint64_t>(args.batch)};
  const cuuint32_t box[] = {kPanelDims, static_cast<cuuint32_t>(step_tokens(spec)),
                            static_cast<cuuint32_t>(spec.head_dim / kPanelDims), 1, 1};
  const cuuint32_t every_element[] = {1, 1, 1, 1, 1};

  const auto encode = [&](CUtensorMap& map, const void* base, long long token, long long head, long long batch) {
    // A dimension of one element is never stepped along; its stride need only be legal.
    const auto bytes = [](long long stride, long long extent) {
      return static_cast<cuuint64_t>(extent > 1 ? stride * kElementBytes : 16);
    };
    const cuuint64_t strides[] = {bytes(token, args.context_capacity), kPanelDims * kElementBytes,
                                  bytes(head, args.kv_heads), bytes(batch, args.batch)};
    constexpr cuuint64_t kStrideLimit = cuuint64_t{1} << 40;
    if (const cuuint64_t longest = *std::max_element(std::begin(strides), std::end(strides)); longest >= kStrideLimit)
      return Result<void>(fail(ErrorCode::unsupported, fmt::format("a KV stride of {} bytes", longest),
                               "Load path tensor takes strides below 2^40 bytes."));
    return check(
        (*api)->cuTensorMapEncodeTiled(&map, type, 5, const_cast<void*>(base), sizes, strides, box, every_element,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled", ErrorCode::launch_failed);
  };
  KvTensorMaps maps;
  if (auto ok = encode(maps.k, args.k, args.k_stride_token, args.k_stride_head, args.k_stride_batch); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = encode(maps.v, args.v, args.v_stride_token, args.v_stride_head, args.v_stride_batch); !ok)
    return tl::unexpected(ok.error());
  return maps;
}

}  // namespace v1
}  // namespace leanattn
