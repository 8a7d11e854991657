// kv/row_panels.cuh -- rows of bytes, with a format of their own (generator/row_format.hpp) or with elements of one
// byte, become what a swizzled tensor copy of a 16-bit cache would bring: panels of [kStepTokens][64 columns]. Each
// warp that copies rows has its own tokens of a step and needs none of the others. Host and device compile this file.
//
// The bytes travel to where their values will be. The 128 columns of a pair of panels wait in the second panel of the
// pair: its 128 bytes of a token are as many columns. The 64 columns of a panel that is left over wait in that panel. A
// warp reads those of a token into registers before it writes the token's columns of the pair, so that neither a second
// buffer nor a barrier is needed. Columns that are 16-bit in memory lie where they belong from the start. Scales have
// shared memory of their own. Rows of holes, and of tokens behind the last one, are zeros.
//
// Where an even number of row blocks go in step and columns have scales, two CTAs that need the same rows are a cluster
// and share the work (kConvertingCtas). Each converts half of a warp's rows, and stores their values in the stages of
// both.

constexpr int kBytePanels = kRowByteColumns / 64;  // of columns of one byte
constexpr int kRowPairs = kBytePanels / 2;         // of these panels
constexpr bool kOddPanel = kBytePanels % 2 != 0;   // whether one is left over
constexpr int kRowGroups = kRowGroup > 0 ? kRowByteColumns / kScaleColumns : 0;
static_assert(kLatent && kValueDim <= kRowByteColumns && kValueDim % 128 == 0, "V is the first pairs of panels");
static_assert(kRowByteColumns % 64 == 0 && (kRowGroup == 0 || !kOddPanel), "there are whole panels");
static_assert(kRowGroup == 0 || (128 % kScaleColumns == 0 && kRowGroup % 8 == 0 && kRowGroups % 4 == 0),
              "eight columns have one scale");
static_assert(kRowBytes % 16 == 0, "a row is copied by 16 bytes");

// Of a warp's rows of a step, how many this CTA converts, and which is the first of them.
constexpr int kOwnRows = kWarpRows / kConvertingCtas;
LEAN_DEVICE int first_own_row() { return kConvertingCtas == 1 ? 0 : (int)cta_of_cluster() * kOwnRows; }
static_assert(kConvertingCtas == 1 || (kValueDim == kRowByteColumns && kValueDim % 256 == 0),
              "what is shared is V, and both panels of a pair are in one part of the stage");

// Requests this warp's rows of the step that is to lie in `stage`, the at_stage-th of the ring. row: where that of each
// lane lies, in bytes from k_head, or below 0 (RowPlaces::take). turn: which of the steps in `row` it is.
LEAN_DEVICE void request_rows(const char* k_head, i64 row, int turn, u32 stage, u32 at_stage) {
  const int lane = threadIdx.x % 32, first = gather_warp() * kWarpRows;
  const u32 exists = __ballot_sync(kFullMask, row >= 0) >> turn * kWarpRows;  // of each of the warp's rows, a bit
  const auto row_at = [&](int i) {
    const i64 at = __shfl_sync(kFullMask, row, turn * kWarpRows + i);
    return k_head + (at < 0 ? 0 : at);
  };
  // Eight lanes copy a row, and then the fourth row after it: together 128 columns of one byte, or 64 of two.
  const int piece = lane % 8;
#pragma unroll
  for (int four = 0; four < kWarpRows; four += 4) {
    const int i = four + lane / 8;
    const char* const bytes = row_at(i) + kRowFirstByte + piece * 16;
    const bool there = (exists >> i & 1) != 0;
    const u32 to = stage + (u32)((first + i) * 128 + piece * 16);
    if (kConvertingCtas == 1 || four / kOwnRows == (int)cta_of_cluster()) {
#pragma unroll
      for (int pair = 0; pair < kRowPairs; pair++)
        copy_async_16(to + (u32)((2 * pair + 1) * kPanelBytes), bytes + pair * 128, there);
    }
    if constexpr (kOddPanel) {
      if (piece < 4) copy_async_16(to + (u32)(2 * kRowPairs * kPanelBytes), bytes + kRowPairs * 128, there);
    }
#pragma unroll
    for (int panel = kBytePanels; panel < kKPanels; panel++)
      copy_async_16(stage + (u32)(panel * kPanelBytes + (first + i) * 128 + (piece ^ (first + i) % 8) * 16),
                    bytes + (kRowRope - kRowFirstByte) + (panel - kBytePanels) * 128, there);
  }
  if constexpr (kRowGroup > 0) {
    const char* const scales = row_at(lane % kWarpRows) + kRowScales;
    if (lane < kWarpRows) {
#pragma unroll
      for (int i = 0; i < kRowGroups; i += 4)
        copy_async_16(shared_address(&row_buffers().scales[at_stage][first + lane][i]), scales + i * 4,
                      exists >> lane & 1);
    }
  }
  arrive_with_copies(arrived_barrier(at_stage));
}

// Eight neighbouring columns, the bytes of two words.
LEAN_DEVICE uint4 operands_of_eight(u32 low, u32 high, float scale) {
  return make_uint4(operands_of_two(low, scale), operands_of_two(low >> 16, scale), operands_of_two(high, scale),
                    operands_of_two(high >> 16, scale));
}

// What a lane converts at a time: of each of several rows, eight columns of either panel of a pair and their scales.
// Lanes of odd rows begin with the second panel, so that half a warp reads from all banks.
constexpr int kAtOnce = kOwnRows / 4;  // rows, each the fourth from the one before
constexpr int kPairScales =
    kRowGroup > 0 && kRowGroup < 128 ? 2 : 1;  // that a row has for the lane's columns of a pair
struct LaneBytes {
  uint2 eight[kAtOnce][2];
  float scale[kAtOnce][kPairScales];
};
LEAN_DEVICE int first_panel_of_lane() { return (int)threadIdx.x % 16 / 8; }

// row: the lane's first one. panel: where the pair begins.
LEAN_DEVICE void load_bytes(u32 panel, u32 at_stage, int pair, int row, LaneBytes& bytes) {
  const int c = threadIdx.x % 8, begin = first_panel_of_lane();
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) {
    const int token = row + i * 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
      bytes.eight[i][half] = load_shared_8(panel + (u32)(kPanelBytes + token * 128 + (half ^ begin) * 64 + c * 8));
#pragma unroll
    for (int half = 0; half < kPairScales; half++) {
      bytes.scale[i][half] = 1.0f;
      if constexpr (kRowGroup > 0) {
        const int column = pair * 128 + (kPairScales > 1 ? (half ^ begin) * 64 + c * 8 : 0);
        bytes.scale[i][half] = row_buffers().scales[at_stage][token][column / kScaleColumns];
      }
    }
  }
}

// full: the barrier of the pair's part of the stage.
LEAN_DEVICE void store_values(u32 panel, int row, const LaneBytes& bytes, u32 full) {
  const int c = threadIdx.x % 8, begin = first_panel_of_lane();
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) {
    const int token = row + i * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const u32 to = panel + (u32)((half ^ begin) * kPanelBytes + token * 128 + (c ^ token % 8) * 16);
      const uint4 values = operands_of_eight(bytes.eight[i][half].x, bytes.eight[i][half].y,
                                             bytes.scale[i][half < kPairScales ? half : 0]);
      store_shared_16(to, values);
      if constexpr (kConvertingCtas > 1) store_at_peer_16(to, values, full);
    }
  }
}

// The columns of a panel that is left over, without scales.
LEAN_DEVICE void convert_odd_panel(u32 panel, int row) {
  const int c = threadIdx.x % 8;
  uint2 eight[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) eight[i] = load_shared_8(panel + (u32)((row + i * 4) * 128 + c * 8));
  __syncwarp();  // all have read it
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) {
    const int token = row + i * 4;
    store_shared_16(panel + (u32)(token * 128 + (c ^ token % 8) * 16), operands_of_eight(eight[i].x, eight[i].y, 1.0f));
  }
}

// Expects what the other CTA's warp of this number stores in each part of the stage.
LEAN_DEVICE void expect_rows_of_peer(u32 full) {
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int part = 0; part < kStageParts; part++)
      expect_from_peer(full + (u32)(part * 8),
                       (u32)((min(first_panel(part + 1), kVPanels) - first_panel(part)) * kOwnRows * 128));
  }
}

// Converts this warp's rows of the step in `stage`, whose bytes are there, and says so at the barriers of the stage's
// parts, all together: a fence for each part would take longer than readers gain by an earlier first part. Of 128
// columns, lane (r, c) takes eight of each panel, from 8 c on, of each fourth row from r on. The bytes of rows are in
// registers before their columns are written.
LEAN_DEVICE void convert_rows(u32 stage, u32 at_stage, u32 full) {
  const int first = gather_warp() * kWarpRows + first_own_row() + (int)threadIdx.x % 32 / 8;
  u32 panel = stage;  // the first of the pair
  LaneBytes bytes;
#pragma unroll 1
  for (int pair = 0; pair < kRowPairs; pair++) {
    load_bytes(panel, at_stage, pair, first, bytes);
    __syncwarp();  // all have read the second panel
    store_values(panel, first, bytes, full + (u32)(2 * pair < first_panel(1) ? 0 : 8));
    panel += (u32)(2 * kPanelBytes);
  }
  if constexpr (kOddPanel) convert_odd_panel(panel, first);
  publish_rows();
  if constexpr (kConvertingCtas > 1) expect_rows_of_peer(full);
  arrive_for_warp(full);
}
