// kv_shared.cuh -- one warp's private ring of KV stages in shared memory, and conflict-free fragment reads from it.
// A stage holds kWarpTokens rows of K back to back, then four skewed quarters of V.

constexpr int kQuarterBytes = (kQuarter * kRowBytes + 127) / 128 * 128 + 32;  // a quarter of V and its skew
constexpr int kVOffset = kWarpTokens * kRowBytes;
constexpr int kStageBytes = (kVOffset + 4 * kQuarterBytes + 127) / 128 * 128;
constexpr int kRingBytes = kStages * kStageBytes;  // per warp
// Rows that start on the same bank twice in a row (row bytes a multiple of 128): odd rows read their 64-byte halves
// swapped.
constexpr int kSwapHalves = kRowBytes % 128 == 0 ? 1 : 0;

LEAN_DEVICE u32 v_row_offset(int token) {
  return (u32)(kVOffset + token / kQuarter * kQuarterBytes + token % kQuarter * kRowBytes);
}

LEAN_DEVICE void read_k(u32 stage, int block, int lane, KBlock& k) {
  const int g = lane / 4, c = lane % 4, swap = kSwapHalves & g;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const u32 row = stage + (u32)(k_token(block, half, g) * kRowBytes + c * 16);
    uint4 chunk[kKChunks];
#pragma unroll
    for (int j = 0; j < kKChunks; j++) chunk[j] = load_shared_16(row + (u32)((j ^ (swap & 1)) * 64));
#pragma unroll
    for (int j = 0; j < kKChunks; j++) {
      const uint4 other = chunk[kSwapHalves ? j ^ 1 : j];
      k.row[half][j] = swap & 1 ? other : chunk[j];
    }
  }
}

LEAN_DEVICE void read_v(u32 stage, int block, int group, int lane, VBlock& v) {
  const int g = lane / 4, c = lane % 4;
  const u32 row = stage + (u32)(kVOffset + c * kQuarterBytes + block * 4 * kRowBytes + (group * 8 + g) * kVWords * 4);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    if constexpr (kVWords == 4) {
      const uint4 x = load_shared_16(row + (u32)(r * kRowBytes));
      v.row[r][0] = x.x, v.row[r][1] = x.y, v.row[r][2] = x.z, v.row[r][3] = x.w;
    } else {
      const uint2 x = load_shared_8(row + (u32)(r * kRowBytes));
      v.row[r][0] = x.x, v.row[r][1] = x.y;
    }
  }
}

// Bytes past the context are never trusted: a masked token has weight 0, and 0 * NaN is NaN.
LEAN_DEVICE void zero_v_rows(u32 stage, int tokens, int lane) {
  constexpr int kChunks = kRowBytes / 16;
#pragma unroll 1
  for (int i = lane; i < (kWarpTokens - tokens) * kChunks; i += 32)
    store_shared_zero_16(stage + v_row_offset(tokens + i / kChunks) + (u32)(i % kChunks * 16));
}
