// attend/rope.cuh -- rotary position embedding of q and of new keys (RoFormer, section 3.4.2). The table is fp32, with
// one row per position: kRopeDim / 2 cosines, then as many sines. The kRopeDim dims from kFirstRopeDim on turn; the
// others stay as they are.

constexpr bool kRotates = true;
enum { kHalfSplit = 1, kInterleaved = 2 };  // kRope: dim i turns with i + kRopeDim / 2, or dim 2 i with 2 i + 1

// Two neighbouring dims of the 16-bit row at `row`, turned for `position`. `dim`, the first of them, is even.
LEAN_DEVICE u32 rotated_pair(const LeanDecodeArgs& args, const char* row, int dim, int position) {
  const u32 own = load_cached<u32>(row + 2 * dim);
  if constexpr (kFirstRopeDim > 0) {
    if (dim < kFirstRopeDim) return own;
    dim -= kFirstRopeDim, row += 2 * kFirstRopeDim;
  }
  if (dim >= kRopeDim || position < 0) return own;
  const float* table = args.rope_table + (i64)position * kRopeDim;
  const float2 x = Element::unpack(own);
  if constexpr (kRope == kInterleaved) {
    const float c = table[dim / 2], s = table[kRopeDim / 2 + dim / 2];
    return Element::pack(x.x * c - x.y * s, x.y * c + x.x * s);
  }
  const bool upper = dim >= kRopeDim / 2;
  const int turn = upper ? dim - kRopeDim / 2 : dim;
  const float2 other = Element::unpack(load_cached<u32>(row + 2 * (upper ? turn : dim + kRopeDim / 2)));
  const float c0 = table[turn], c1 = table[turn + 1], s0 = table[kRopeDim / 2 + turn],
              s1 = table[kRopeDim / 2 + turn + 1];
  const float sign = upper ? 1.0f : -1.0f;
  return Element::pack(x.x * c0 + sign * other.x * s0, x.y * c1 + sign * other.y * s1);
}

// Eight neighbouring dims of it; `dim` is a multiple of 8, so that all of them turn with eight neighbouring dims, or
// none does. What they are made of travels together.
LEAN_DEVICE uint4 rotated_16(const LeanDecodeArgs& args, const char* row, int dim, int position) {
  const uint4 own = load_cached<uint4>(row + 2 * dim);
  if constexpr (kFirstRopeDim > 0) {
    if (dim < kFirstRopeDim) return own;
    dim -= kFirstRopeDim, row += 2 * kFirstRopeDim;
  }
  if constexpr (kFirstRopeDim + kRopeDim < kHeadDim) {
    if (dim >= kRopeDim) return own;
  }
  // A query token before the context's first one has no position, and does not turn. It is chosen at the end, because a
  // branch would keep other loads behind it.
  const float* table = args.rope_table + (i64)max(position, 0) * kRopeDim;
  const bool turns = position >= 0;
  constexpr int kHalf = kRopeDim / 2;
  u32 turned[4];
  if constexpr (kRope == kInterleaved) {
    float c[4], s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) c[i] = table[dim / 2 + i], s[i] = table[kHalf + dim / 2 + i];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 x = Element::unpack(word(own, i));
      turned[i] = Element::pack(x.x * c[i] - x.y * s[i], x.y * c[i] + x.x * s[i]);
    }
    return turns ? make_uint4(turned[0], turned[1], turned[2], turned[3]) : own;
  }
  const bool upper = dim >= kHalf;
  const int turn = upper ? dim - kHalf : dim;
  const uint4 other = load_cached<uint4>(row + 2 * (upper ? turn : dim + kHalf));
  const float sign = upper ? 1.0f : -1.0f;
  float c[8], s[8];
#pragma unroll
  for (int i = 0; i < 8; i++) c[i] = table[turn + i], s[i] = table[kHalf + turn + i];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 x = Element::unpack(word(own, i)), y = Element::unpack(word(other, i));
    turned[i] = Element::pack(x.x * c[2 * i] + sign * y.x * s[2 * i], x.y * c[2 * i + 1] + sign * y.y * s[2 * i + 1]);
  }
  return turns ? make_uint4(turned[0], turned[1], turned[2], turned[3]) : own;
}
