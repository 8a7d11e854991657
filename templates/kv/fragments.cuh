// kv/fragments.cuh -- which part of a step's K and V a lane holds, as operands of mma.m16n8k16.
//
// Both products may take their terms in any order. Over dims, a lane takes what 16-byte reads of a K row give it. Over
// tokens, K and V only have to agree: lane (g, c) multiplies V rows 2c, 2c+1, 2c+8 and 2c+9 of each 16-token block, and
// these rows are taken to be tokens 4b .. 4b+3 of quarter c of the step. In shared memory the four quarters of V are
// skewed by 32 bytes each, which makes every 16-byte read of a fragment free of bank conflicts.

constexpr int kTokenBlocks = kStepTokens / 16;  // 16-token blocks of a step
constexpr int kQuarter = kStepTokens / 4;       // tokens of a quarter

// Of a K row, lane (g, c) takes 16 of every 64 bytes, in pieces whose alignment rows have, then its share of what is
// left behind the last 64 bytes.
#if defined(LEAN_ROW_BOXES)
constexpr int kKPiece = 8;
#else
constexpr int kKPiece = 16;
#endif
constexpr int kKChunks = kKRowBytes / 64;
constexpr int kKTail = kKRowBytes % 64 / 16;  // words of that share
constexpr int kKWords = 4 * kKChunks + kKTail;
// Where word i of those of lane (g, c) begins.
LEAN_DEVICE int k_byte(int c, int i) {
  if (i >= 4 * kKChunks) return 64 * kKChunks + 4 * (kKTail * c + i - 4 * kKChunks);
  constexpr int kWords = kKPiece / 4;
  return 64 * (i / 4) + i % 4 / kWords * 4 * kKPiece + c * kKPiece + 4 * (i % kWords);
}
#if defined(LEAN_NIBBLES)
constexpr int kKPairs = kKWords * 4;  // of elements four apart
// Of a V row, a lane takes kVWords pairs of neighbouring dims at a time, each a byte.
#if defined(LEAN_ROW_BOXES)
constexpr int kVWords = 4;  // rows of V are aligned to four bytes
#else
constexpr int kVWords = kValueDim % 128 == 0 ? 8 : 4;
#endif
constexpr int kVBytes = kVWords;
#else
constexpr int kKPairs = kKWords * 2 / kKvBytes;  // of neighbouring elements
// Of a V row, a lane takes kVWords pairs of neighbouring dims at a time.
#if defined(LEAN_ROW_BOXES)
constexpr int kVWords = kValueDim % 32 == 0 ? 2 : 1;
#else
constexpr int kVWords = kKvBytes == 1 && kValueDim % 128 == 0 ? 8
                        : kValueDim % 64 == 0                 ? 4
                        : kValueDim % 32 == 0                 ? 2
                                                              : 1;
#endif
constexpr int kVBytes = 2 * kVWords * kKvBytes;
#endif
constexpr int kVGroups = kValueDim / (16 * kVWords);
constexpr int kOutTiles = kVGroups * kVWords;  // 16-dim output tiles

// K rows of a 16-token block: matrix rows g and g + 8. Rows of wide heads are read in parts, as registers allow.
constexpr int kPartWords = kKWords < 32 ? kKWords : 32;
constexpr int kKParts = (kKWords + kPartWords - 1) / kPartWords;
#if defined(LEAN_NIBBLES)
struct KFragment {
  NibbleRow<kPartWords> row[2];
};
#else
struct KFragment {
  u32 row[2][kPartWords];
};
#endif
// V rows 2c, 2c+1, 2c+8, 2c+9 of a 16-token block and one group of columns, as in memory.
constexpr int kVRaw = kVBytes < 4 ? 1 : kVBytes / 4;
struct VFragment {
  u32 row[4][kVRaw];
#if defined(LEAN_NIBBLES)
  PairUnits units[2];  // of the first two rows, and of the others
#endif
};

// The token of the step that is matrix row g (half 0) or g + 8 (half 1) of a block of K.
#if defined(LEAN_ROW_BOXES)
LEAN_DEVICE int k_token(int block, int half, int g) { return block * 16 + 2 * g + half; }  // kv/warp_ring.cuh
#elif defined(LEAN_BOXES)
// Rows follow each other, and neighbouring lanes of either product read a row of even and one of odd number.
LEAN_DEVICE int k_token(int block, int half, int g) { return block * 16 + half * 8 + (g ^ (g >> 1 & 1)); }
#else
LEAN_DEVICE int k_token(int block, int half, int g) { return (g >> 1) * kQuarter + block * 4 + half * 2 + (g & 1); }
#endif

#if defined(LEAN_NIBBLES)
// Pair w of neighbouring dims of the rows: (even dim, rows 0 and 1), (odd dim, the same), (even dim, rows 2 and 3),
// (odd dim, the same). Rows meet before their elements part, which takes a quarter of the instructions.
LEAN_DEVICE uint4 value_pairs(const VFragment& v, int w) {
  u32 x[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const u32 first = v.row[2 * r][w / 4], second = v.row[2 * r + 1][w / 4];
    x[r] = w % 4 < 2 ? low_halves(first, second) : high_halves(first, second);
  }
  const int even = w % 2 * 2;
  return make_uint4(expand_pair(x[0], even, v.units[0]), expand_pair(x[0], even + 1, v.units[0]),
                    expand_pair(x[1], even, v.units[1]), expand_pair(x[1], even + 1, v.units[1]));
}
#endif
