// kv/block_scales.cuh -- scales of blocks of 16 columns in a stage of a warp's ring, behind its rows: of K, then of V.
// A token has kBlockScaleBytes of each, which come in copies of kBlockScaleCopy bytes.

constexpr LeanStage kRowsOfStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
constexpr int kStageScaleBytes = lean_block_scale_bytes(kStepTokens, kBlockScaleBytes);

// Where the scales of a token's blocks are, of K or V. A skew of two rows between quarters makes reads of them free of
// bank conflicts for heads of 64, 128 and 256.
LEAN_DEVICE u32 k_scales_at(u32 stage, int token) {
  return stage + (u32)(kRowsOfStage.bytes + (token + token / kQuarter * 2) * kBlockScaleBytes);
}
LEAN_DEVICE u32 v_scales_at(u32 stage, int token) {
  return k_scales_at(stage, token) + (u32)((kStepTokens + 4 * 2) * kBlockScaleBytes);
}

// Copies a piece of them. What has fewer bytes than 16 goes by way of L1.
LEAN_DEVICE void copy_block_scales(u32 to, const char* from, bool valid) {
  if constexpr (kBlockScaleCopy == 16) {
    copy_async_16(to, from, valid);
  } else if constexpr (kBlockScaleCopy == 8) {
    copy_async_8(to, from, valid);
  } else {
    copy_async_4(to, from, valid);
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
    row.units[2 * j] = low_halves(pair, pair), row.units[2 * j + 1] = high_halves(pair, pair);
  }
  if constexpr (kKTail > 0) {
    static_assert(kKTail == 2 && kKParts == 1, "two words are a block");
    const u32 pair = block_scales(load_shared_1(scales + (u32)(kKChunks * 8 + c)));
    row.units[2 * kKChunks] = low_halves(pair, pair);
  }
}

// Those of the block of which a lane holds a group of columns of V, of two tokens that follow each other.
LEAN_DEVICE PairUnits read_v_scales(u32 stage, int token, int group, int g) {
  const u32 scales = v_scales_at(stage, token) + (u32)((group * 8 + g) * kVBytes / 8);
  return block_scales(load_shared_1(scales) | load_shared_1(scales + (u32)kBlockScaleBytes) << 8);
}

// In holes of the page table they become zeros: a row's zeros do not silence a scale that is NaN.
LEAN_DEVICE void zero_v_scales(u32 stage, const Holes& holes, int lane) {
#pragma unroll 1
  for (int i = lane; i < kStepTokens * kBlockScaleBytes / 4; i += 32) {
    const int token = i / (kBlockScaleBytes / 4), word = i % (kBlockScaleBytes / 4);
    if (in_hole(holes, token)) store_shared_zero_4(v_scales_at(stage, token) + (u32)(4 * word));
  }
}
