// kv/elements_4bit.cuh -- KV elements of four bits, two a byte, the lower half of it first. A token of a KV head has a
// word beside its row: an fp32 scale whose last four bits are not its own but the zero point, 0 to 15. An element x is
// worth (x - zero point) * scale. In registers, differences become fp16, which is exact. So do q, whose values beyond
// +-65504 do not fit, and the weights. Scales of K multiply the scores, and scales of V the weights.

constexpr bool kScalesTokens = true;
// They meet the scores and the weights in attend/mma.cuh, where the stage is at hand.
LEAN_DEVICE float v_scale_of(const LeanDecodeArgs&, const Segment&, const Step&, int) { return 1.0f; }
LEAN_DEVICE float scale_of_word(u32 word) { return __uint_as_float(word & ~15u); }

// What is taken from pairs of elements, of the zero points of two tokens. An element becomes the low bits of 1024 + x.
// Four bits further up it becomes those of 1024 + 16 x, a sixteenth of which is 64 + x.
struct PairUnits {
  u32 low;   // 1024 + zero point, two fp16 values
  u32 high;  // -(64 + zero point)
};
LEAN_DEVICE PairUnits zero_points(u32 word_0, u32 word_1) {
  const u32 zero = low_halves(word_0, word_1) & 0x000f000fu;
  return {zero | 0x64006400u, zero * 16 + 0xd400d400u};
}

// Element `i`, 0 to 3, of each half of a word as two fp16 values. Every difference is a small whole number, and exact.
LEAN_DEVICE u32 expand_pair(u32 x, int i, const PairUnits& zero) {
  if (i >= 2) x >>= 8;
  u32 y;
  // (x & mask) | 1024 in one instruction; from the expression the compiler makes two (PTX ISA, "lop3").
  if (i % 2 == 0) {
    asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(y) : "r"(x));
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(zero.low));
  } else {
    asm("lop3.b32 %0, %1, 0x00f000f0, 0x64006400, 0xea;" : "=r"(y) : "r"(x));
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(0x2c002c00u), "r"(zero.high));
  }
  return y;
}

// What a lane holds of a row of K. The pairs of a word are elements (0, 4), (1, 5), (2, 6) and (3, 7) of its eight.
template <int kWords>
struct NibbleRow {
  u32 words[kWords];
  PairUnits zero;  // of the row's token, twice
  LEAN_DEVICE u32& operator[](int i) { return words[i]; }
};
template <int kWords>
LEAN_DEVICE u32 kv_pair(const NibbleRow<kWords>& row, int i) {
  return expand_pair(row.words[i / 4], i % 4, row.zero);
}
