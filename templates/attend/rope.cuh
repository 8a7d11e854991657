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

// Eight neighbouring dims of it.
LEAN_DEVICE uint4 rotated_16(const LeanDecodeArgs& args, const char* row, int dim, int position) {
  if constexpr (kFirstRopeDim > 0) {
    if (dim + 8 <= kFirstRopeDim) return load_cached<uint4>(row + 2 * dim);
  }
  return make_uint4(rotated_pair(args, row, dim, position), rotated_pair(args, row, dim + 2, position),
                    rotated_pair(args, row, dim + 4, position), rotated_pair(args, row, dim + 6, position));
}
