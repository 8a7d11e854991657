// kv/warp_ring.cuh -- a warp's own ring of KV stages in shared memory, and reads of fragments from it without bank
// conflicts. A stage holds kStepTokens rows of K, then four skewed quarters of V (shared_layout.cuh).

#if defined(LEAN_STAGED_SCALES)
constexpr LeanStage kRowsOfStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
constexpr int kScalesOffset = kRowsOfStage.bytes;  // where the scales of K begin, then those of V
constexpr LeanStage kStage = {kRowsOfStage.v_offset, kRowsOfStage.quarter_bytes,
                              kScalesOffset + lean_stage_scale_bytes(kStepTokens)};
#else
constexpr LeanStage kStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
#endif
constexpr int kRingBytes = kStages * kStage.bytes;  // per warp
// Where rows are a multiple of 128 bytes, neighbouring rows begin at the same bank. There odd rows read the 64-byte
// halves of 128 bytes in swapped order.
constexpr int kSwapHalves = kKRowBytes % 128 == 0 ? 1 : 0;

LEAN_DEVICE u32 v_row_offset(int token) {
  return (u32)(kStage.v_offset + token / kQuarter * kStage.quarter_bytes + token % kQuarter * kVRowBytes);
}

#if defined(LEAN_STAGED_SCALES)
// Where the scale of a token of K or V is, as a word.
LEAN_DEVICE u32 k_scale_at(u32 stage, int token) { return stage + (u32)(kScalesOffset + 4 * token); }
LEAN_DEVICE u32 v_scale_at(u32 stage, int token) { return k_scale_at(stage, kStepTokens + token); }

// The scales of the tokens of which a lane has scores of this block and half.
struct TokenScales {
  float k, v;
};
LEAN_DEVICE TokenScales read_scales(u32 stage, int block, int half, int lane) {
  const int token = k_token(block, half, lane / 4);
  return {scale_of_word(load_shared_4(k_scale_at(stage, token))),
          scale_of_word(load_shared_4(v_scale_at(stage, token)))};
}
#endif

LEAN_DEVICE void read_k(u32 stage, int block, int part, int lane, KFragment& k) {
  constexpr int kPartChunks = kPartWords / 4;
  const int g = lane / 4, c = lane % 4, swap = kSwapHalves & g & 1;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const u32 row = stage + (u32)(k_token(block, half, g) * kKRowBytes);
#if defined(LEAN_NIBBLES)
    const u32 scale = load_shared_4(k_scale_at(stage, k_token(block, half, g)));
    k.row[half].zero = zero_points(scale, scale);
#endif
    uint4 chunk[kPartChunks > 0 ? kPartChunks : 1];
#pragma unroll
    for (int j = 0; j < kPartChunks; j++) {
      const int at = part * kPartChunks + j;
      if (at < kKChunks) chunk[j] = load_shared_16(row + (u32)(c * 16 + (at ^ swap) * 64));
    }
#pragma unroll
    for (int j = 0; j < kPartChunks; j++) {
      const uint4 other = chunk[kSwapHalves ? j ^ 1 : j], mine = swap ? other : chunk[j];
#pragma unroll
      for (int w = 0; w < 4; w++)
        if (part * kPartChunks + j < kKChunks) k.row[half][4 * j + w] = word(mine, w);
    }
    if constexpr (kKTail > 0) {
      if (part < kKParts - 1) continue;
      const u32 tail = row + (u32)(64 * kKChunks + c * 4 * kKTail);
      constexpr int kAt = 4 * kKChunks - (kKParts - 1) * kPartWords;
      if constexpr (kKTail == 2) {
        const uint2 x = load_shared_8(tail);
        k.row[half][kAt] = x.x, k.row[half][kAt + 1] = x.y;
      } else {
#pragma unroll
        for (int w = 0; w < kKTail; w++) k.row[half][kAt + w] = load_shared_4(tail + (u32)(4 * w));
      }
    }
  }
}

LEAN_DEVICE void read_v(u32 stage, int block, int group, int lane, VFragment& v) {
  const int g = lane / 4, c = lane % 4;
#if defined(LEAN_NIBBLES)
  const uint4 scales = load_shared_16(v_scale_at(stage, c * kQuarter + block * 4));
  v.zero[0] = zero_points(scales.x, scales.y), v.zero[1] = zero_points(scales.z, scales.w);
#endif
  const u32 row =
      stage + (u32)(kStage.v_offset + c * kStage.quarter_bytes + block * 4 * kVRowBytes + (group * 8 + g) * kVBytes);
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const u32 at = row + (u32)(r * kVRowBytes);
    if constexpr (kVBytes == 16) {
      const uint4 x = load_shared_16(at);
      v.row[r][0] = x.x, v.row[r][1] = x.y, v.row[r][2] = x.z, v.row[r][3] = x.w;
    } else if constexpr (kVBytes == 8) {
      const uint2 x = load_shared_8(at);
      v.row[r][0] = x.x, v.row[r][1] = x.y;
    } else {
      v.row[r][0] = kVBytes == 4 ? load_shared_4(at) : load_shared_2(at);
    }
  }
}

// V rows past the context become zeros, because a masked token's weight of 0 does not silence a NaN in memory.
LEAN_DEVICE void zero_v_rows(u32 stage, int tokens, int lane) {
  constexpr int kChunks = kVRowBytes / 16;
#pragma unroll 1
  for (int i = lane; i < (kStepTokens - tokens) * kChunks; i += 32)
    store_shared_zero_16(stage + v_row_offset(tokens + i / kChunks) + (u32)(i % kChunks * 16));
}

// So do V rows in holes of the page table.
LEAN_DEVICE void zero_v_holes(u32 stage, const Holes& holes, int lane) {
  constexpr int kChunks = kVRowBytes / 16;
#pragma unroll 1
  for (int i = lane; i < kStepTokens * kChunks; i += 32)
    if (in_hole(holes, i / kChunks)) store_shared_zero_16(stage + v_row_offset(i / kChunks) + (u32)(i % kChunks * 16));
}
