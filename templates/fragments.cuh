// fragments.cuh -- which part of a step of K and V a lane holds, as operands of mma.m16n8k16. Within a step the order
// of tokens is free as long as K and V agree (softmax and the sum over tokens do not care). Lane (g, c) multiplies V
// rows 2c, 2c+1, 2c+8, 2c+9 of each 16-token block; naming those rows "quarter c of the step, rows 4b .. 4b+3" lets the
// four quarters of V sit in shared memory with a 32-byte skew, which makes every 16-byte fragment read free of bank
// conflicts. The order of dims in a product is free as well: a lane takes what 16-byte reads of a row give it.

constexpr int kBlocks = kStepTokens / 16;  // 16-token matrix blocks per step
constexpr int kQuarter = kStepTokens / 4;  // tokens per quarter

// K: lane (g, c) takes 16 bytes of a row at 64 j + 16 c, then its share of what is left behind the last 64 bytes.
constexpr int kKChunks = kKRowBytes / 64;
constexpr int kKTail = kKRowBytes % 64 / 16;  // words of that share
constexpr int kKWords = 4 * kKChunks + kKTail;
// V: lane (g, c) takes kVWords pairs of neighbouring dims of a row at a time.
constexpr int kVWords = kKvBytes == 1 && kValueDim % 128 == 0 ? 8
                        : kValueDim % 64 == 0                 ? 4
                        : kValueDim % 32 == 0                 ? 2
                                                              : 1;
constexpr int kVBytes = 2 * kVWords * kKvBytes;
constexpr int kVGroups = kValueDim / (16 * kVWords);
constexpr int kOutTiles = kVGroups * kVWords;  // 16-dim output tiles

// Words of memory as the matrix unit takes them: two elements each.
constexpr int kKPairs = kKWords * 2 / kKvBytes;

// K rows of one 16-token block as matrix operand: rows g and g + 8; of wide heads a part at a time, as registers allow.
constexpr int kPartWords = kKWords < 32 ? kKWords : 32;
constexpr int kKParts = (kKWords + kPartWords - 1) / kPartWords;
struct KBlock {
  u32 row[2][kPartWords];
};
// V rows of one 16-token block: rows 2c, 2c+1, 2c+8, 2c+9 of one column group, as in memory.
constexpr int kVRaw = kVBytes < 4 ? 1 : kVBytes / 4;
struct VBlock {
  u32 row[4][kVRaw];
};

// Token, within a step, of matrix row g (half 0) or g + 8 (half 1) of block b.
LEAN_DEVICE int k_token(int block, int half, int g) { return (g >> 1) * kQuarter + block * 4 + half * 2 + (g & 1); }
