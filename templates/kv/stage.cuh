// kv/stage.cuh -- where rows and scales are in a stage of a warp's ring in shared memory. A stage holds kStepTokens
// rows of K, then four skewed quarters of V (shared_layout.cuh), which are read without bank conflicts, and what scales
// come with them. Where boxes bring KV (kv/boxes.cuh), it holds what these bring, as it comes.

#if defined(LEAN_ROW_BOXES)
constexpr int kRowBytes = lean_shared_row_bytes(kKRowBytes, kVRowBytes), kRowPitch = lean_round_up(kRowBytes, 16);
constexpr LeanStage kStage = {kKRowBytes + 4, 0, kStepTokens* kRowPitch};

// A stage, and where in its pitch a row of an even or an odd token begins: a copy begins at a multiple of 16 bytes.
struct StageAddress {
  u32 base, shift[2];
};
// A stage has 16 tokens at a time: those of even number, then those of odd number. So matrix row g + 8 half of a block
// is the token there (k_token of kv/fragments.cuh).
LEAN_DEVICE u32 row_at(const StageAddress& stage, int block, int half, int g) {
  return stage.base + stage.shift[half] + (u32)((block * 16 + half * 8 + g) * kRowPitch);
}
LEAN_DEVICE u32 row_of_token(const StageAddress& stage, int token) {
  return row_at(stage, token / 16, token % 2, token % 16 / 2);
}
LEAN_DEVICE u32 k_row_at(const StageAddress& stage, int block, int half, int g) {
  return row_at(stage, block, half, g);
}
// Row r of the four that lane (g, c) multiplies of a block of V.
LEAN_DEVICE u32 v_row_at(const StageAddress& stage, int block, int c, int r) {
  return row_at(stage, block, r / 2, 2 * c + r % 2) + (u32)kStage.v_offset;
}
LEAN_DEVICE u32 k_scale_at(const StageAddress& stage, int block, int half, int g) {
  return row_at(stage, block, half, g) + (u32)kKRowBytes;
}
LEAN_DEVICE u32 v_scale_at(const StageAddress& stage, int block, int half, int g) {
  return row_at(stage, block, half, g) + (u32)(kRowBytes - 4);
}
#elif defined(LEAN_BOXES)
constexpr LeanBlockBoxes kBoxes = lean_block_boxes(kKRowBytes, kVRowBytes, kBlockScaleBytes);
constexpr LeanStage kStage = {kBoxes.v_offset, 0, kStepTokens / 16 * kBoxes.bytes};

typedef u32 StageAddress;
// A stage has 16 tokens at a time: their rows of K, those of V, the scales of K and those of V.
LEAN_DEVICE u32 k_row_at(u32 stage, int block, int half, int g) {
  return stage + (u32)(block * kBoxes.bytes + k_token(0, half, g) * kKRowBytes);
}
// Row r of the four that lane (g, c) multiplies of a block of V.
LEAN_DEVICE u32 v_row_at(u32 stage, int block, int c, int r) {
  return stage + (u32)(block * kBoxes.bytes + kBoxes.v_offset + k_token(0, r / 2, 2 * c + r % 2) * kVRowBytes);
}
// Where the scales of a token's blocks are.
LEAN_DEVICE u32 k_scales_at(u32 stage, int token) {
  return stage + (u32)(token / 16 * kBoxes.bytes + kBoxes.k_scales_offset + token % 16 * kBlockScaleBytes);
}
LEAN_DEVICE u32 v_scales_at(u32 stage, int token) {
  return stage + (u32)(token / 16 * kBoxes.bytes + kBoxes.v_scales_offset + token % 16 * kBlockScaleBytes);
}
#else
typedef u32 StageAddress;
#if defined(LEAN_BLOCK_SCALES)
constexpr LeanStage kRowsOfStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
constexpr LeanStage kStage = {kRowsOfStage.v_offset, kRowsOfStage.quarter_bytes,
                              kRowsOfStage.bytes + lean_block_scale_bytes(kStepTokens, kBlockScaleBytes)};
#elif defined(LEAN_STAGED_SCALES)
constexpr LeanStage kRowsOfStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
constexpr int kScalesOffset = kRowsOfStage.bytes;  // where the scales of K begin, then those of V
constexpr LeanStage kStage = {kRowsOfStage.v_offset, kRowsOfStage.quarter_bytes,
                              kScalesOffset + lean_stage_scale_bytes(kStepTokens)};
#else
constexpr LeanStage kStage = lean_warp_stage(kStepTokens, kKRowBytes, kVRowBytes);
#endif

LEAN_DEVICE u32 v_row_offset(int token) {
  return (u32)(kStage.v_offset + token / kQuarter * kStage.quarter_bytes + token % kQuarter * kVRowBytes);
}

LEAN_DEVICE u32 k_row_at(u32 stage, int block, int half, int g) {
  return stage + (u32)(k_token(block, half, g) * kKRowBytes);
}
// Row r of the four that lane (g, c) multiplies of a block of V.
LEAN_DEVICE u32 v_row_at(u32 stage, int block, int c, int r) {
  return stage + (u32)(kStage.v_offset + c * kStage.quarter_bytes + (block * 4 + r) * kVRowBytes);
}
#if defined(LEAN_BLOCK_SCALES)
// Where the scales of a token's blocks are, behind the rows. A skew of two rows between quarters makes reads of them
// free of bank conflicts for heads of 64, 128 and 256.
LEAN_DEVICE u32 k_scales_at(u32 stage, int token) {
  return stage + (u32)(kRowsOfStage.bytes + (token + token / kQuarter * 2) * kBlockScaleBytes);
}
LEAN_DEVICE u32 v_scales_at(u32 stage, int token) {
  return k_scales_at(stage, token) + (u32)((kStepTokens + 4 * 2) * kBlockScaleBytes);
}
#elif defined(LEAN_TOKEN_SCALES)
// Where the scale of a token of K or V is, as a word.
LEAN_DEVICE u32 scale_at(u32 stage, int token) { return stage + (u32)(kScalesOffset + 4 * token); }
LEAN_DEVICE u32 k_scale_at(u32 stage, int block, int half, int g) { return scale_at(stage, k_token(block, half, g)); }
LEAN_DEVICE u32 v_scale_at(u32 stage, int block, int half, int g) {
  return scale_at(stage, kStepTokens + k_token(block, half, g));
}
#endif
#endif
constexpr int kRingBytes = kStages * kStage.bytes;  // per warp
