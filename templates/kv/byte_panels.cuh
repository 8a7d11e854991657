// kv/byte_panels.cuh -- rows of one-byte elements become what a swizzled tensor copy of a 16-bit cache would bring:
// panels of [kStepTokens][64 columns]. Host and device compile this file.
//
// The bytes travel to where their values will be. The 128 columns of a pair of panels wait in the second panel of the
// pair: its 128 bytes of a token are as many columns. The 64 columns of a panel that is left over wait in that panel. A
// warp reads those of a token into registers before it writes the token's columns of the pair, so that neither a second
// buffer nor a barrier is needed.

// Of a warp's rows of a step, how many this CTA converts, and which is the first of them.
constexpr int kOwnRows = kWarpRows / kConvertingCtas;
LEAN_DEVICE int first_own_row() { return kConvertingCtas == 1 ? 0 : (int)cta_of_cluster() * kOwnRows; }

// Copies sixteen of each 128 columns of a row, and of the last 64 where an odd number of panels ends with those. to:
// the lane's place in the row's first panel. from: the lane's place in the row's first 128 bytes. pairs: whether all
// but the last 64 are wanted.
template <int kColumns>
LEAN_DEVICE void copy_bytes(u32 to, const char* from, bool there, bool pairs = true) {
  if (pairs) {
#pragma unroll
    for (int pair = 0; pair < kColumns / 128; pair++)
      copy_async_16(to + (u32)((2 * pair + 1) * kPanelBytes), from + pair * 128, there);
  }
  if constexpr (kColumns % 128 != 0) {
    if (threadIdx.x % 8 < 4)
      copy_async_16(to + (u32)(kColumns / 128 * 2 * kPanelBytes), from + kColumns / 128 * 128, there);
  }
}

// What a lane converts at a time: of each of several rows, eight columns of either panel of a pair and their scales.
// Lanes of odd rows begin with the second panel, so that half a warp reads from all banks.
constexpr int kAtOnce = (kOwnRows < 16 ? kOwnRows : 16) / 4;  // rows, each the fourth from the one before
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
        bytes.scale[i][half] = scale_of(row_buffers().scales[at_stage][token][column / kScaleColumns]);
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

// The columns of a panel that is left over. group: which of a row's groups they are.
LEAN_DEVICE void convert_odd_panel(u32 panel, u32 at_stage, int group, int row) {
  const int c = threadIdx.x % 8;
  uint2 eight[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) eight[i] = load_shared_8(panel + (u32)((row + i * 4) * 128 + c * 8));
  __syncwarp();  // all have read it
#pragma unroll
  for (int i = 0; i < kAtOnce; i++) {
    const int token = row + i * 4;
    float scale = 1.0f;
    if constexpr (kRowGroup > 0) scale = scale_of(row_buffers().scales[at_stage][token][group]);
    store_shared_16(panel + (u32)(token * 128 + (c ^ token % 8) * 16),
                    operands_of_eight(eight[i].x, eight[i].y, scale));
  }
}

// Converts columns of this warp's rows, from row `first` of the step on, whose bytes are there. Of 128 columns, lane
// (r, c) takes eight of each panel, from 8 c on, of each fourth row from r on. The bytes of rows are in registers
// before their columns are written. full: the barrier of the stage's first part.
template <int kColumns>
LEAN_DEVICE void convert_bytes(u32 panel, u32 at_stage, int first, u32 full) {
  LaneBytes bytes;
#pragma unroll 1
  for (int row = first + (int)threadIdx.x % 32 / 8; row < first + kOwnRows; row += 4 * kAtOnce) {
    u32 columns = panel;
#pragma unroll 1
    for (int pair = 0; pair < kColumns / 128; pair++) {
      load_bytes(columns, at_stage, pair, row, bytes);
      __syncwarp();  // all have read the second panel
      store_values(columns, row, bytes, full + (u32)(2 * pair < first_panel(1) ? 0 : 8));
      columns += (u32)(2 * kPanelBytes);
    }
    if constexpr (kColumns % 128 != 0) convert_odd_panel(columns, at_stage, kColumns / 128 * 128 / kScaleColumns, row);
  }
}
