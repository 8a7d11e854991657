// kv/warp_ring.cuh -- reads of fragments from a stage of a warp's own ring (kv/stage.cuh).

// Where rows are a multiple of 128 bytes, neighbouring rows begin at the same bank. There odd rows read the 64-byte
// halves of 128 bytes in swapped order.
#if defined(LEAN_ROW_BOXES)
constexpr int kSwapHalves = 0;
#else
constexpr int kSwapHalves = kKRowBytes % 128 == 0 ? 1 : 0;
#endif

#if defined(LEAN_TOKEN_SCALES)
// The scale of the token of which a lane has scores of this block and half.
LEAN_DEVICE float read_k_scale(const StageAddress& stage, int block, int half, int lane) {
  return scale_of_word(load_shared_4(k_scale_at(stage, block, half, lane / 4)));
}
LEAN_DEVICE float read_v_scale(const StageAddress& stage, int block, int half, int lane) {
  return scale_of_word(load_shared_4(v_scale_at(stage, block, half, lane / 4)));
}
#endif

LEAN_DEVICE void read_k(const StageAddress& stage, int block, int part, int lane, KFragment& k) {
  constexpr int kPartChunks = kPartWords / 4;
  const int g = lane / 4, c = lane % 4, swap = kSwapHalves & g & 1;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const u32 row = k_row_at(stage, block, half, g);
#if defined(LEAN_BLOCK_SCALES)
    read_k_scales(k_scales_at(stage, k_token(block, half, g)), part, c, k.row[half]);
#elif defined(LEAN_NIBBLES)
    const u32 scale = load_shared_4(k_scale_at(stage, block, half, g));
    k.row[half].zero = zero_points(scale, scale);
#endif
    uint4 chunk[kPartChunks > 0 ? kPartChunks : 1];
#pragma unroll
    for (int j = 0; j < kPartChunks; j++) {
      const int at = part * kPartChunks + j;
      if (at >= kKChunks) continue;
      if constexpr (kKPiece == 16) {
        chunk[j] = load_shared_16(row + (u32)(c * 16 + (at ^ swap) * 64));
      } else {
        const uint2 x = load_shared_8(row + (u32)k_byte(c, 4 * at)),
                    y = load_shared_8(row + (u32)k_byte(c, 4 * at + 2));
        chunk[j] = make_uint4(x.x, x.y, y.x, y.y);
      }
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

LEAN_DEVICE void read_v(const StageAddress& stage, int block, int group, int lane, VFragment& v) {
  const int g = lane / 4, c = lane % 4;
#if defined(LEAN_BLOCK_SCALES)
#pragma unroll
  for (int half = 0; half < 2; half++)
    v.units[half] = read_v_scales(stage, k_token(block, half, 2 * c), k_token(block, half, 2 * c + 1),
                                  (group * 8 + g) * kVBytes / 8);
#elif defined(LEAN_NIBBLES)
#if defined(LEAN_ROW_BOXES)
#pragma unroll
  for (int half = 0; half < 2 && group == 0; half++)
    v.units[half] = zero_points(load_shared_4(v_scale_at(stage, block, half, 2 * c)),
                                load_shared_4(v_scale_at(stage, block, half, 2 * c + 1)));
#else
  const uint4 scales = load_shared_16(scale_at(stage, kStepTokens + c * kQuarter + block * 4));
  v.units[0] = zero_points(scales.x, scales.y), v.units[1] = zero_points(scales.z, scales.w);
#endif
#endif
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const u32 at = v_row_at(stage, block, c, r) + (u32)((group * 8 + g) * kVBytes);
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

// V rows past the context become zeros, because a masked token's weight of 0 does not silence a NaN in memory. Elements
// of four bits are none, so that of theirs the scales of blocks do, and those of tokens need not.
#if defined(LEAN_NIBBLES) && !defined(LEAN_BLOCK_SCALES)
constexpr bool kSilencesRows = false;
#else
constexpr bool kSilencesRows = true;
#endif
#if defined(LEAN_BLOCK_SCALES)
constexpr int kZeroPieces = kBlockScaleBytes / 4;
LEAN_DEVICE void zero_v_row(const StageAddress& stage, int token, int piece) {
  store_shared_zero_4(v_scales_at(stage, token) + (u32)(4 * piece));
}
#elif defined(LEAN_ROW_BOXES)
constexpr int kZeroPieces = kVRowBytes / 4;
LEAN_DEVICE void zero_v_row(const StageAddress& stage, int token, int piece) {
  store_shared_zero_4(row_of_token(stage, token) + (u32)(kStage.v_offset + 4 * piece));
}
#else
constexpr int kZeroPieces = kVRowBytes / 16;
LEAN_DEVICE void zero_v_row(u32 stage, int token, int piece) {
  store_shared_zero_16(stage + v_row_offset(token) + (u32)(16 * piece));
}
#endif
LEAN_DEVICE void zero_v_rows(const StageAddress& stage, int tokens, int lane) {
#pragma unroll 1
  for (int i = lane; i < (kStepTokens - tokens) * kZeroPieces; i += 32)
    zero_v_row(stage, tokens + i / kZeroPieces, i % kZeroPieces);
}

// So do V rows in holes of the page table.
LEAN_DEVICE void zero_v_holes(const StageAddress& stage, const Holes& holes, int lane) {
#pragma unroll 1
  for (int i = lane; i < kStepTokens * kZeroPieces; i += 32)
    if (in_hole(holes, i / kZeroPieces)) zero_v_row(stage, i / kZeroPieces, i % kZeroPieces);
}
