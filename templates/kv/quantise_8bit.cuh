// kv/quantise_8bit.cuh -- a row of one-byte elements as vLLM stores it
// (v1/attention/ops/triton_reshape_and_cache_flash.py): its largest magnitude becomes the largest of the format.

struct RowUnit {
  float inverse;  // of the scale
  u32 word;       // the scale
};
LEAN_DEVICE RowUnit unit_of(float least, float largest) {
  constexpr float kLargest = kKvFormat == kE4m3 ? 448.0f : kKvFormat == kE5m2 ? 57344.0f : 127.0f;
  const float scale = fmaxf(fmaxf(largest, -least) / kLargest, 1e-6f);
  return {1.0f / scale, __float_as_uint(scale)};
}
// Rounds half away from zero.
LEAN_DEVICE u32 nearest_int8(float x) {
  return (u32)(int)(fminf(fmaxf(x, -128.0f), 127.0f) + copysignf(0.5f, x)) & 0xffu;
}
LEAN_DEVICE u32 quantised_pair(float2 x, float inverse) {
  x = make_float2(x.x * inverse, x.y * inverse);
  if constexpr (kKvFormat == kInt8) return nearest_int8(x.x) | nearest_int8(x.y) << 8;
  return narrow_pair(x);
}
// Rows are multiples of 4 bytes apart.
LEAN_DEVICE void store_quantised(char* row, int chunk, const uint4& x, const RowUnit& unit) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    ((u32*)row)[2 * chunk + i] = quantised_pair(Element::unpack(word(x, 2 * i)), unit.inverse) |
                                 quantised_pair(Element::unpack(word(x, 2 * i + 1)), unit.inverse) << 16;
}
