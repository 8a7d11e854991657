// kv/elements_fp4.cuh -- KV elements of four bits, two a byte, the lower half of it first, which are floats (e2m1): a
// sign, two bits of exponent and one of mantissa, so 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Sixteen columns of a row share a
// scale of e4m3, and all rows of a KV head one of fp32. In registers products of element and block's scale become fp16,
// 2^14 times too small. That is exact: a product has six significant bits, is a multiple of 2^-10 and at most 2688, so
// that here it is a multiple of 2^-24, the least fp16 number, and at most 0.17. q and the weights become fp16, too,
// whose values beyond +-65504 do not fit. The fp32 scale and 2^14 multiply scores and O.

enum { kScalePerTensor, kScalePerHead };  // kKvScale
constexpr bool kScalesTokens = false;
constexpr float kBlockUnit = 16384.0f;  // what products count in

// The scales of two blocks, e4m3 in the low bytes of a word, as two fp16 values.
LEAN_DEVICE u32 block_scales(u32 bytes) {
  u32 y;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(y) : "r"(bytes));
#else
  // With sign, exponent and mantissa in their places the value is 2^8 times too small, subnormals included.
  const u32 wide = __byte_perm(bytes, 0, 0x1404);  // each byte in the upper half of a value
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"((wide & 0x80008000u) | (wide >> 1 & 0x3f803f80u)), "r"(0x5c005c00u));
#endif
  return y;
}

// Element `i`, 0 to 3, of each half of a word as two fp16 values, 2^14 times too small: with the bits of the exponent
// in the low ones of fp16's it is subnormal where the element is. Behind a multiplication that shifts, a sign is three
// bits below its place. Adding 7 there carries it up, and what 7 leaves where there is none is masked. The last element
// of a half has its sign in place. Two pairs share a mask; what is of the other one lands where nothing is looked at.
LEAN_DEVICE u32 fp4_pair(u32 x, int i) {
  constexpr u32 kPlaces = 0x8e008e00u;
  const u32 even = x & 0x0f0f0f0fu, odd = x & 0xf0f0f0f0u;
  if (i == 3) return masked_or(odd, odd >> 3, kPlaces);
  return multiply_add(i == 1 ? odd : even, 1u << (9 - 4 * i), 0x70007000u) & kPlaces;
}

// A value of a pair, twice. As halves of registers it is taken by multiplications as it is.
LEAN_DEVICE u32 low_twice(u32 pair) {
  u32 y;
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {lo, lo}; }" : "=r"(y) : "r"(pair));
  return y;
}
LEAN_DEVICE u32 high_twice(u32 pair) {
  u32 y;
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; mov.b32 %0, {hi, hi}; }" : "=r"(y) : "r"(pair));
  return y;
}

// And times scales, those of its block.
typedef u32 PairUnits;  // two fp16 values
LEAN_DEVICE u32 expand_pair(u32 x, int i, PairUnits scales) {
  u32 y = fp4_pair(x, i);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(scales));
  return y;
}

// What a lane holds of a row of K. The pairs of a word are elements (0, 4), (1, 5), (2, 6) and (3, 7) of its eight, and
// two words are a block.
template <int kWords>
struct NibbleRow {
  u32 words[kWords];
  PairUnits units[kWords / 2];  // each the scale of a block, twice
  LEAN_DEVICE u32& operator[](int i) { return words[i]; }
};
template <int kWords>
LEAN_DEVICE u32 kv_pair(const NibbleRow<kWords>& row, int i) {
  return expand_pair(row.words[i / 4], i % 4, row.units[i / 8]);
}

LEAN_DEVICE float kv_scale(const float* scales, int kv_head) {
  return scales == nullptr ? 1.0f : scales[kKvScale == kScalePerHead ? kv_head : 0];
}
LEAN_DEVICE float k_scale_of(const LeanDecodeArgs& args, const Segment& s, int, bool) {
  return kv_scale(args.k_scale, s.kv_head) * kBlockUnit;
}
LEAN_DEVICE float v_scale_of(const LeanDecodeArgs&, const Segment&, const Step&, int) { return 1.0f; }
// What all of a KV head's O is multiplied by.
LEAN_DEVICE float output_scale(const LeanDecodeArgs& args, int kv_head) {
  return kv_scale(args.v_scale, kv_head) * kBlockUnit;
}
