// kv/block_scales.cuh -- scales of blocks of 16 columns, which a stage of a warp's ring holds beside the rows. A token
// has kBlockScaleBytes of each of K and V.

// Copies a piece of them. What has fewer bytes than 16 goes by way of L1.
LEAN_DEVICE void copy_piece_of_scales(u32 to, const char* from, bool valid) {
  if constexpr (kBlockScaleCopy == 16) {
    copy_async_16(to, from, valid);
  } else if constexpr (kBlockScaleCopy == 8) {
    copy_async_8(to, from, valid);
  } else {
    copy_async_4(to, from, valid);
  }
}

// Copies those of a step by all lanes, zeros for what is behind its tokens. v_scales_apart: bytes from a token's scales
// of K to those of V.
LEAN_DEVICE void copy_block_scales(const KvCursor& at, i64 v_scales_apart, u32 stage, int tokens, int lane) {
  constexpr int kPieces = kBlockScaleBytes / kBlockScaleCopy, kOfTensor = kStepTokens * kPieces;
  static_assert(2 * kOfTensor % 32 == 0, "all lanes copy alike");
#pragma unroll
  for (int i = 0; i < 2 * kOfTensor / 32; i++) {
    const int at_piece = i * 32 + lane, piece = at_piece % kOfTensor, token = piece / kPieces;
    const int column = piece % kPieces * kBlockScaleCopy;
    const bool keys = at_piece < kOfTensor, valid = token < tokens;
    const char* const from = at.scale(valid ? token : 0) + (keys ? 0 : v_scales_apart) + column;
    copy_piece_of_scales((keys ? k_scales_at(stage, token) : v_scales_at(stage, token)) + (u32)column, from, valid);
  }
}

// Those of the blocks that a lane holds of a row of K: of 16 bytes two, and of what is left behind the last 64 bytes
// one.
template <int kWords>
LEAN_DEVICE void read_k_scales(u32 scales, int part, int c, NibbleRow<kWords>& row) {
  constexpr int kChunks = kWords / 4;
#pragma unroll
  for (int j = 0; j < kChunks; j++) {
    const int at = part * kChunks + j;
    if (at >= kKChunks) break;
    const u32 pair = block_scales(load_shared_2(scales + (u32)(at * 8 + c * 2)));
    row.units[2 * j] = low_twice(pair), row.units[2 * j + 1] = high_twice(pair);
  }
  if constexpr (kKTail > 0) {
    static_assert(kKTail == 2 && kKParts == 1, "two words are a block");
    const u32 pair = block_scales(load_shared_1(scales + (u32)(kKChunks * 8 + c)));
    row.units[2 * kKChunks] = low_twice(pair);
  }
}

// Those of a block of V, of two tokens. block: of the columns that a lane holds a group of.
LEAN_DEVICE PairUnits read_v_scales(const StageAddress& stage, int token, int next, int block) {
  return block_scales(load_shared_1(v_scales_at(stage, token) + (u32)block) |
                      load_shared_1(v_scales_at(stage, next) + (u32)block) << 8);
}

// Whether a lane may hold a scale of V that is NaN; false where all are at least 0. To be called by all lanes.
LEAN_DEVICE bool may_be_nan(const VFragment& v) {
  u32 sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(v.units[0]), "r"(v.units[1]));
  return __any_sync(kFullMask, ((sum + 0x03ff03ffu) & 0x80008000u) != 0);  // NaN and no other number carries so far
}
// Makes scales that are NaN zeros, and gives 1 for them and 0 for others, as fp16 values.
LEAN_DEVICE u32 take_nan(PairUnits& scales) {
  const u32 nan = ((scales & 0x7fff7fffu) + 0x03ff03ffu) >> 15 & 0x00010001u;
  scales &= ~(nan * 0xffffu);
  return nan * 0x3c00u;
}
