// kv/elements_fp4.cuh -- KV elements of four bits, two a byte, the lower half of it first, which are floats (e2m1): a
// sign, two bits of exponent and one of mantissa, so 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Sixteen columns of a row share a
// scale of e4m3, and all rows of a KV head one of fp32. In registers products of element and block's scale become fp16,
// 2^7 times too small. That is exact: a product has six significant bits, is a multiple of 2^-10 and at most 2688, so
// that here it is a multiple of 2^-17 and at most 21. q and the weights become fp16, too, whose values beyond +-65504
// do not fit. The fp32 scale and 2^7 multiply scores and O.

enum { kScalePerTensor, kScalePerHead };  // kKvScale
constexpr bool kScalesTokens = false;
constexpr float kBlockUnit = 128.0f;  // what products count in

// The scales of two blocks, e4m3 in the low bytes of a word, by 2^7 as two fp16 values.
LEAN_DEVICE u32 block_scales(u32 bytes) {
  u32 y;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(y) : "r"(bytes));
  constexpr u32 kFactors = 0x58005800u;  // 2^7
#else
  // With sign, exponent and mantissa in their places the value is 2^8 times too small, subnormals included.
  const u32 wide = __byte_perm(bytes, 0, 0x1404);  // each byte in the upper half of a value
  y = (wide & 0x80008000u) | (wide >> 1 & 0x3f803f80u);
  constexpr u32 kFactors = 0x78007800u;  // 2^15
#endif
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(kFactors));
  return y;
}

// Element `i`, 0 to 3, of each half of a word as two fp16 values, 2^14 times too small: with the bits of the exponent
// in the low ones of fp16's it is subnormal where the element is. Behind the shift a sign is three bits below its
// place. Adding 7 there carries it up, and what 7 leaves where there is none is masked.
LEAN_DEVICE u32 fp4_pair(u32 x, int i) {
  if (i == 3) return (x & 0x80008000u) | (x >> 3 & 0x0e000e00u);
  return multiply_add(x & 0x000f000fu << 4 * i, 1u << (9 - 4 * i), 0x70007000u) & 0x8e008e00u;
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
