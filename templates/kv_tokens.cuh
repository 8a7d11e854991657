// kv_tokens.cuh -- which tokens a warp takes, and which lane holds which of them. Shared by all load paths.
//
// A segment's tokens are dealt to the warps in steps of kWarpTokens, round robin, so warps never wait for each other
// inside a segment. Within a step the order of tokens is free as long as K and V agree (softmax and the sum over tokens
// do not care). Lane (g, c) multiplies V rows 2c, 2c+1, 2c+8, 2c+9 of each 16-token block; naming those rows "quarter c
// of the step, rows 4b .. 4b+3" lets the four quarters of V sit in shared memory with a 32-byte skew, which makes every
// 16-byte fragment read free of bank conflicts.

constexpr int kRowBytes = kHeadDim * 2;
constexpr int kBlocks = kWarpTokens / 16;            // 16-token matrix blocks per step
constexpr int kQuarter = kWarpTokens / 4;            // tokens per quarter
constexpr int kKChunks = kHeadDim / 32;              // 16-byte chunks of one K row per lane
constexpr int kVWords = kHeadDim % 64 == 0 ? 4 : 2;  // 32-bit words of one V row a lane takes at a time
constexpr int kVGroups = kHeadDim / (16 * kVWords);
constexpr int kOutTiles = kVGroups * kVWords;  // 16-dim output tiles: head_dim / 16

// K rows of one 16-token block as matrix operand: [rows g and g + 8][16-byte chunks].
struct KBlock {
  uint4 row[2][kKChunks];
};
// V rows of one 16-token block: rows 2c, 2c+1, 2c+8, 2c+9 of one column group.
struct VBlock {
  u32 row[4][kVWords];
};

// Token, within a step, of matrix row g (half 0) or g + 8 (half 1) of block b.
LEAN_DEVICE int k_token(int block, int half, int g) { return (g >> 1) * kQuarter + block * 4 + half * 2 + (g & 1); }

// Where one warp's share of a segment lies.
struct WarpTokens {
  const char* k;  // row of the first token of the warp's first step
  const char* v;
  int left;  // tokens from there to the end of the segment; may be <= 0
  int steps;
};

LEAN_DEVICE i64 k_row_stride(const LeanDecodeArgs& args) { return kContiguous ? kRowBytes : args.k_stride_token * 2; }
LEAN_DEVICE i64 v_row_stride(const LeanDecodeArgs& args) { return kContiguous ? kRowBytes : args.v_stride_token * 2; }

LEAN_DEVICE WarpTokens warp_tokens(const LeanDecodeArgs& args, const Segment& s, int warp) {
  const int first = (int)(s.tile_begin * (u32)kTile) + warp * kWarpTokens;
  const int last = s.tile_end == s.tiles ? s.context_length : (int)(s.tile_end * (u32)kTile);
  WarpTokens t;
  t.left = last - first;
  t.steps = t.left > 0 ? (t.left + kWarps * kWarpTokens - 1) / (kWarps * kWarpTokens) : 0;
  t.k = (const char*)args.k + 2 * (s.request * args.k_stride_batch + s.kv_head * args.k_stride_head) +
        first * k_row_stride(args);
  t.v = (const char*)args.v + 2 * (s.request * args.v_stride_batch + s.kv_head * args.v_stride_head) +
        first * v_row_stride(args);
  return t;
}
