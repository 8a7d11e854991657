// kv/row_panels.cuh -- rows with a format of their own (generator/row_format.hpp) become what a swizzled tensor copy of
// a bf16 cache would bring: panels of [kStepTokens][64 columns]. Each warp of the producer has 16 tokens of a step and
// needs none of the others. Host and device compile this file.
//
// The bytes travel to where their values will be. The 128 latent columns of a pair of panels wait in the second panel
// of the pair: its 128 bytes of a token are as many columns. A warp reads those of a token into registers before it
// writes the token's columns of the pair, so that neither a second buffer nor a barrier is needed. The rotated columns
// lie where they belong from the start. Scales have shared memory of their own. Rows of holes, and of tokens behind the
// last one, are zeros.

constexpr int kRowPairs = kRowLatentColumns / 128;  // of panels
constexpr int kRowGroups = kRowLatentColumns / kRowGroup;
static_assert(kLatent && kValueDim == kRowLatentColumns && kRowLatentColumns % 128 == 0, "V is the latent columns");
static_assert(128 % kRowGroup == 0 && kRowGroup % 16 == 0 && kRowGroups % 4 == 0, "16 columns have one scale");

// Requests this warp's rows of the step that is to lie in `stage`, the at_stage-th of the ring. row: where that of each
// lane lies, in bytes from k_head, or below 0 (RowPlaces::take). turn: which of the two steps in `row` it is.
LEAN_DEVICE void request_rows(const char* k_head, i64 row, int turn, u32 stage, u32 at_stage) {
  const int lane = threadIdx.x % 32, first = (int)threadIdx.x / 32 % 4 * kWarpRows;
  // The latent columns of a row: 128 for eight lanes.
#pragma unroll 2
  for (int i = 0; i < kWarpRows; i++) {
    const i64 from = __shfl_sync(kFullMask, row, turn * kWarpRows + i);
    const char* const latent = k_head + (from < 0 ? 0 : from) + kRowLatent + lane % 8 * 16;
    const u32 to = stage + (u32)(kPanelBytes + (first + i) * 128 + lane % 8 * 16);
#pragma unroll
    for (int pair = lane / 8; pair < kRowPairs; pair += 4)
      copy_async_16(to + (u32)(2 * pair * kPanelBytes), latent + pair * 128, from >= 0);
  }
  // The rotated columns: 64 for eight lanes.
#pragma unroll
  for (int i = 0; i < kWarpRows; i += 4) {
    const int token = first + i + lane / 8, column = lane % 8;
    const i64 from = __shfl_sync(kFullMask, row, turn * kWarpRows + i + lane / 8);
    const char* const rope = k_head + (from < 0 ? 0 : from) + kRowRope + column * 16;
    const u32 to = stage + (u32)(kVPanels * kPanelBytes + token * 128 + (column ^ token % 8) * 16);
#pragma unroll
    for (int panel = 0; panel < kKPanels - kVPanels; panel++)
      copy_async_16(to + (u32)(panel * kPanelBytes), rope + panel * 128, from >= 0);
  }
  const i64 from = __shfl_sync(kFullMask, row, turn * kWarpRows + lane % kWarpRows);
  if (lane < kWarpRows) {
#pragma unroll
    for (int i = 0; i < kRowGroups; i += 4)
      copy_async_16(shared_address(&row_buffers().scales[at_stage][first + lane][i]),
                    k_head + (from < 0 ? 0 : from) + kRowScales + i * 4, from >= 0);
  }
  arrive_with_copies(arrived_barrier(at_stage));
}

// Eight neighbouring columns, the bytes of two words.
LEAN_DEVICE uint4 scaled_eight(u32 low, u32 high, float scale) {
  return make_uint4(scaled_pair(low, scale), scaled_pair(low >> 16, scale), scaled_pair(high, scale),
                    scaled_pair(high >> 16, scale));
}

// Converts this warp's rows of the step in `stage`, whose bytes are there, and says so of each part of the stage at its
// barrier. Of 128 columns, lane (r, c) takes columns 16 c ... 16 c + 15 of each fourth row from r on.
LEAN_DEVICE void convert_rows(u32 stage, u32 at_stage, u32 full) {
  constexpr int kAtOnce = 2;  // rows of a lane
  const int lane = threadIdx.x % 32, c = lane % 8, first = (int)threadIdx.x / 32 % 4 * kWarpRows + lane / 8;
  u32 panel = stage;  // the first of the pair
  int part = 0;       // the next one to be complete
#pragma unroll 1
  for (int pair = 0; pair < kRowPairs; pair++) {
#pragma unroll 1
    for (int row = first; row < first + kWarpRows; row += 4 * kAtOnce) {
      uint4 bytes[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        bytes[i] = load_shared_16(panel + (u32)(kPanelBytes + (row + i * 4) * 128 + c * 16));
      __syncwarp();  // all have read these rows of the second panel
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int token = row + i * 4;
        const float scale = row_buffers().scales[at_stage][token][(pair * 128 + c * 16) / kRowGroup];
        const uint4 low = scaled_eight(bytes[i].x, bytes[i].y, scale),
                    high = scaled_eight(bytes[i].z, bytes[i].w, scale);
        // Lanes of the second panel write their eights the other way round, so that eight lanes write to all banks.
        const bool swap = c >= 4;
        const u32 to = panel + (u32)(c / 4 * kPanelBytes + token * 128);
        const int chunk = c % 4 * 2;
        store_shared_16(to + (u32)(((chunk + swap) ^ token % 8) * 16), swap ? high : low);
        store_shared_16(to + (u32)(((chunk + !swap) ^ token % 8) * 16), swap ? low : high);
      }
    }
    panel += (u32)(2 * kPanelBytes);
    while (part < kStageParts && (pair + 1 == kRowPairs || (part + 1) * kPartPanels <= 2 * (pair + 1)))
      arrive_for_warp(full + (u32)(part++ * 8));
  }
}
