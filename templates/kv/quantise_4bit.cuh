// kv/quantise_4bit.cuh -- a row of four-bit elements as vLLM stores it (v1/attention/ops/int4_per_token_head.py): the
// range of the row becomes 0 to 15. The quantiser divides by the whole scale, of which readers have all but the last
// four bits. Rounding is half away from zero.

struct RowUnit {
  float inverse, zero;  // of the scale; the zero point, 0 to 15
  u32 word;             // the scale with the zero point in its last four bits
};
// NaN becomes 0.
LEAN_DEVICE int nearest_nibble(float x) { return (int)(fminf(fmaxf(x, 0.0f), 15.0f) + 0.5f); }
LEAN_DEVICE RowUnit unit_of(float least, float largest) {
  const float scale = fmaxf((largest - least) / 15.0f, 1e-6f);
  const int zero = nearest_nibble(-least / scale);
  return {1.0f / scale, (float)zero, (__float_as_uint(scale) & ~15u) | (u32)zero};
}
// Eight elements are a word.
LEAN_DEVICE void store_quantised(char* row, int chunk, const uint4& x, const RowUnit& unit) {
  u32 elements = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = Element::unpack(word(x, i));
    elements |= (u32)nearest_nibble(fmaf(pair.x, unit.inverse, unit.zero)) << 8 * i |
                (u32)nearest_nibble(fmaf(pair.y, unit.inverse, unit.zero)) << (8 * i + 4);
  }
  ((u32*)row)[chunk] = elements;
}
