// kv/append_rows.cuh -- how a new row is stored where rows have a format of their own (generator/kv_encoding.hpp). Each
// group of latent columns gets the scale with which its largest magnitude becomes the largest fp8 value, or in a plane
// the least power of two with which it becomes none that is larger. That is what engines store (vLLM,
// csrc/cache_kernels.cu, concat_and_cache_ds_mla_kernel; vllm/models/deepseek_v4, quantize_and_insert_k_cache), and the
// bytes are the same. Host and device compile this file.

constexpr int kGroupLanes = kRowGroup / 8;  // that have the columns of a group, eight each
static_assert(kGroupLanes >= 2 && 32 % kGroupLanes == 0, "lanes of a group are neighbours");

LEAN_DEVICE float larger_magnitude(float largest, u32 pair) {
  const float2 x = Element::unpack(pair);
  return fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
}

// The scale of the group of which this lane has the columns x. A group of zeros has the smallest normal number, or that
// of a magnitude of 1e-4, so that no value is divided by 0. All lanes of the warp call this.
LEAN_DEVICE float scale_of_group(const uint4& x) {
  constexpr float kLargestE4m3 = 448.0f;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) largest = larger_magnitude(largest, word(x, i));
#pragma unroll
  for (int distance = kGroupLanes / 2; distance > 0; distance /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, distance));
  if constexpr (kRowPlane > 0) {
    constexpr u32 kFraction = 0x007fffffu;
    return __uint_as_float((__float_as_uint(fmaxf(largest, 1e-4f) / kLargestE4m3) + kFraction) & ~kFraction);
  } else {
    constexpr float kSmallestNormal = __builtin_bit_cast(float, 0x00800000u);
    return fmaxf(largest / kLargestE4m3, kSmallestNormal);
  }
}

LEAN_DEVICE u32 quantised_four(u32 low, u32 high, float scale) {
  const float2 x = Element::unpack(low), y = Element::unpack(high);
  return e4m3_pair(x.x / scale, x.y / scale) | e4m3_pair(y.x / scale, y.y / scale) << 16;
}

// Writes a new token's row, as it is given: kHeadDim columns of q's type. outer: its page or request, which is not
// waited for before the row is asked for. To be called by all lanes of a warp.
LEAN_DEVICE void append_row(const LeanDecodeArgs& args, const Segment& s, int token, const NewRows& given, int outer) {
  constexpr int kAtOnce = 32 * 8;  // columns of a warp
  const int first = (int)threadIdx.x % 32 * 8;
#pragma unroll 1
  for (int column = first; column - first < kRowByteColumns; column += kAtOnce) {
    const bool exists = kRowByteColumns % kAtOnce == 0 || column < kRowByteColumns;
    const uint4 x = exists ? load_cached<uint4>(given.k + column * 2) : make_uint4(0, 0, 0, 0);
    const float scale = scale_of_group(x);
    if (!exists || is_nowhere(args, outer)) continue;
    char* const row = k_cache_row(args, s, outer, token);
    *(uint2*)(row + kRowFirstByte + column) =
        make_uint2(quantised_four(x.x, x.y, scale), quantised_four(x.z, x.w, scale));
    if (column % kRowGroup != 0) continue;
    if constexpr (kRowPlane > 0) {
      unsigned char* const scales = (unsigned char*)row + bytes_to_plane(token % max(kPageSize, 1));
      scales[column / kRowGroup] = (unsigned char)(__float_as_uint(scale) >> 23);
      if (column == 0) scales[kRowPlane - 1] = 0;  // belongs to no group
    } else {
      *(float*)(row + kRowScales + column / kRowGroup * 4) = scale;
    }
  }
  if (is_nowhere(args, outer)) return;
#pragma unroll 1
  for (int column = first; column < kHeadDim - kRowByteColumns; column += kAtOnce)
    *(uint4*)(k_cache_row(args, s, outer, token) + kRowRope + column * 2) =
        rotated_16(args, given.k, kRowByteColumns + column, index_of_new(s, token));
}
