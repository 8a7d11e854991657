// kv/elements_8bit.cuh -- KV elements of one byte. In registers they become fp16, which is exact. So do q, whose values
// beyond +-65504 do not fit, and the weights. Scales of K multiply the scores. Scales of V multiply the weights or,
// where a scale is that of a whole KV head, O.

enum { kE4m3, kE5m2, kInt8 };                             // kKvFormat
enum { kScalePerTensor, kScalePerHead, kScalePerToken };  // kKvScale
#if defined(LEAN_STAGED_SCALES)
constexpr bool kScalesTokens = true;  // scales meet the scores and the weights in attend/mma.cuh
LEAN_DEVICE float scale_of_word(u32 word) { return __uint_as_float(word); }
#else
constexpr bool kScalesTokens = kKvScale == kScalePerToken;
#endif

// Bytes 2 half and 2 half + 1 of a word as two fp16 values. e5m2 is the upper half of fp16, int8 becomes the low
// mantissa bits of 1024 + 128 + x, and e4m3 has an instruction from sm_89 on (PTX ISA, "cvt").
LEAN_DEVICE u32 expand_pair(u32 x, int half) {
  if constexpr (kKvFormat == kE5m2) return __byte_perm(x, 0, half ? 0x3424 : 0x1404);
  if constexpr (kKvFormat == kInt8) {
    u32 y = __byte_perm(x ^ 0x80808080u, 0x64646464u, half ? 0x4342 : 0x4140);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(0x64806480u));
    return y;
  }
  u32 y;
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %1; cvt.rn.f16x2.e4m3x2 %0, lo; }" : "=r"(y) : "r"(half ? x >> 16 : x));
#else
  // With sign, exponent and mantissa in their places the value is 2^8 times too small, subnormals included.
  const u32 wide = __byte_perm(x, 0, half ? 0x3424 : 0x1404);  // each byte in the upper half of a value
  y = (wide & 0x80008000u) | (wide >> 1 & 0x3f803f80u);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(0x5c005c00u));
#endif
  return y;
}

// Pair i of neighbouring elements of what a lane holds of a row.
LEAN_DEVICE u32 kv_pair(const u32* words, int i) { return expand_pair(words[i / 2], i % 2); }
LEAN_DEVICE u32 query_pair(u32 x) {
  const float2 y = Element::unpack(x);
  return Operand::pack(y.x, y.y);
}
LEAN_DEVICE uint4 query_16(const uint4& x) {  // eight elements
  return make_uint4(query_pair(x.x), query_pair(x.y), query_pair(x.z), query_pair(x.w));
}

// 1 in a hole of the page table.
LEAN_DEVICE float token_scale(const LeanDecodeArgs& args, const float* scales, const Segment& s, int token) {
  i64 at = s.kv_head * args.kv_scale_stride_head;
  if constexpr (kSelectionBlock > 0) {
    const int place = place_of_selected(args, s, token);
    if (place < 0) return 1.0f;
    at += place / kPageSize * args.kv_scale_stride_batch + place % kPageSize * args.kv_scale_stride_token;
    return scales[at];
  }
  if constexpr (kPageSize > 0) {
    constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
    const int page = page_of(args, s, token);
    if (is_hole(page, args.pool_pages)) return 1.0f;
    at += page * args.kv_scale_stride_batch + token % kPage * args.kv_scale_stride_token;
  } else {
    at += s.request * args.kv_scale_stride_batch + token * args.kv_scale_stride_token;
  }
  return scales[at];
}

LEAN_DEVICE float k_scale_of(const LeanDecodeArgs& args, const Segment& s, int token, bool valid) {
  if (args.k_scale == nullptr || !valid) return 1.0f;
  if constexpr (kKvScale == kScalePerToken) return token_scale(args, args.k_scale, s, token);
  return args.k_scale[kKvScale == kScalePerHead ? s.kv_head : 0];
}
LEAN_DEVICE float v_scale_of(const LeanDecodeArgs& args, const Segment& s, const Step& step, int offset) {
  if constexpr (kKvScale != kScalePerToken) return 1.0f;
  if (args.v_scale == nullptr || offset >= step.count) return 1.0f;
  return token_scale(args, args.v_scale, s, step.token + offset);
}
// What all of a KV head's O is multiplied by.
LEAN_DEVICE float output_scale(const LeanDecodeArgs& args, int kv_head) {
  if (kKvScale == kScalePerToken || args.v_scale == nullptr) return 1.0f;
  return args.v_scale[kKvScale == kScalePerHead ? kv_head : 0];
}

// Two values as bytes, rounded to nearest and limited to the largest finite value (PTX ISA, "cvt").
LEAN_DEVICE u32 narrow_pair(float2 x) {
  if constexpr (kKvFormat == kInt8) {
    int lo, hi;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(lo) : "f"(x.x));
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(hi) : "f"(x.y));
    return __byte_perm(lo, hi, 0x0040);
  }
#if __CUDA_ARCH__ >= 890
  unsigned short y;
  if constexpr (kKvFormat == kE4m3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  if constexpr (kKvFormat == kE5m2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(x.y), "f"(x.x));
  return y;
#else
  static_assert(!kAppend || kKvFormat == kInt8, "fp8 is written from sm_89 on");
  return 0;
#endif
}
LEAN_DEVICE u32 narrow_word(u32 pair_0, u32 pair_1, float scale) {
  const float2 x = Element::unpack(pair_0), y = Element::unpack(pair_1);
  return __byte_perm(narrow_pair(make_float2(x.x / scale, x.y / scale)),
                     narrow_pair(make_float2(y.x / scale, y.y / scale)), 0x5410);
}
// Writes eight elements of q's type as the `chunk`th eight of a row of the cache, whose elements are in units of
// `scale`.
LEAN_DEVICE void store_kv_chunk(char* row, int chunk, const uint4& x, float scale) {
  ((uint2*)row)[chunk] = make_uint2(narrow_word(x.x, x.y, scale), narrow_word(x.z, x.w, scale));
}
