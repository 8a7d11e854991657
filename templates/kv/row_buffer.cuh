// kv/row_buffer.cuh -- rows of bytes, with a format of their own (generator/kv_encoding.hpp) or with elements of one
// byte, wait as they are in a buffer beside the ring, and become in a stage what a swizzled tensor copy of a 16-bit
// cache would bring: panels of [kStepTokens][64 columns]. Each warp that copies rows has its own rows of the buffer and
// its own tokens of a step, and needs none of the others. Host and device compile this file.
//
// Rows of holes, and of tokens behind the last one, are zeros. Scales of a plane wait behind their row, with those of
// the token beside it, because copies are multiples of 16 bytes.

constexpr int kBytePanels = kRowByteColumns / 64;    // of columns of one byte
constexpr int kRowPairs = kBytePanels / 2;           // of these panels
constexpr bool kOddPanel = kBytePanels % 2 != 0;     // whether one is left over
constexpr int kRopePanels = kKPanels - kBytePanels;  // of columns of two bytes
constexpr int kRowTurns = kWarpRows / 4;             // eight lanes take a row, and each fourth one after it
constexpr int kRowPitch = kRowBytes + 2 * kRowPlane;
static_assert(kLatent && kRowByteColumns % 64 == 0, "V is the first columns of K");
static_assert(kRowGroup % 16 == 0 && kRowScales % 4 == 0, "sixteen columns have one scale");
static_assert(kRowPlane == 0 || kRowPlane == 8, "two tokens of a plane are a copy");
static_assert(kRowBytes % 16 == 0 && kRowFirstByte % 16 == 0 && kRowRope % 16 == 0,
              "a row is copied and read by 16 bytes");
static_assert(kStageParts == 1, "a stage arrives as one");

// Of a warp's rows of a step, a bit for each: whether it exists, and whether the second one of two tokens' scales are
// its own.
struct RowBits {
  u32 exist, second;
};

// Requests this warp's rows of a step. row: where that of each lane lies, in bytes from k_head, or below 0, and
// to_scales: how many bytes behind it its scales do in a plane (RowPlaces). turn: which of the steps in `row` it is.
LEAN_DEVICE RowBits request_rows(const char* k_head, i64 row, int to_scales, int turn, u32 buffer) {
  RowBits bits = {__ballot_sync(kFullMask, row >= 0) >> turn * kWarpRows & ((1u << kWarpRows) - 1), 0};
  if constexpr (kRowPlane > 0) bits.second = __ballot_sync(kFullMask, (to_scales & kRowPlane) != 0) >> turn * kWarpRows;
  if (threadIdx.x % 32 == 0) expect_bytes(row_barrier(), (u32)(__popc(bits.exist) * kRowPitch));
  __syncwarp();
  if (step_of_lane() == turn && row >= 0) {
    const u32 to = buffer + (u32)(row_of_lane() * kRowPitch);
    copy_row(to, k_head + row, row_barrier());
    if constexpr (kRowPlane > 0)
      copy_row<2 * kRowPlane>(to + kRowBytes, k_head + row + (to_scales & ~kRowPlane), row_barrier());
  }
  return bits;
}

// The scale of a column's group. from: the row in the buffer.
LEAN_DEVICE float scale_in_buffer(u32 from, bool second, int column) {
  const int group = column / kScaleColumns;
  if constexpr (kRowPlane > 0)
    return scale_of((unsigned char)load_shared_1(from + (u32)(kRowBytes + (second ? kRowPlane : 0) + group)));
  return __uint_as_float(load_shared_4(from + (u32)(kRowScales + group * 4)));
}

// What a lane converts of a step: of each of its rows, sixteen columns of each pair of panels with their scale, eight
// of a panel that is left over, and eight of each panel of columns of two bytes. Lanes 4 to 7 of a row have the second
// panel of a pair.
struct LaneRows {
  uint4 pair[kRowTurns][kRowPairs];
  float scale[kRowTurns][kRowPairs];
  uint2 odd[kRowTurns];
  float odd_scale[kRowTurns];
  uint4 rope[kRowTurns][kRopePanels > 0 ? kRopePanels : 1];
};
LEAN_DEVICE int row_of_turn(int turn) { return turn * 4 + (int)threadIdx.x % 32 / 8; }  // of the warp's

// bits: as request_rows said.
LEAN_DEVICE void load_rows(u32 buffer, RowBits bits, LaneRows& rows) {
  const int lane = threadIdx.x % 8;
#pragma unroll
  for (int turn = 0; turn < kRowTurns; turn++) {
    const int row = row_of_turn(turn);
    const bool exists = (bits.exist >> row & 1) != 0;
    [[maybe_unused]] const bool second = (bits.second >> row & 1) != 0;  // where rows have scales
    const u32 from = buffer + (u32)((gather_warp() * kWarpRows + row) * kRowPitch);
#pragma unroll
    for (int pair = 0; pair < kRowPairs; pair++) {
      const int column = pair * 128 + lane * 16;
      rows.pair[turn][pair] = exists ? load_shared_16(from + (u32)(kRowFirstByte + column)) : make_uint4(0, 0, 0, 0);
      rows.scale[turn][pair] = 1.0f;
      if constexpr (kRowGroup > 0) rows.scale[turn][pair] = exists ? scale_in_buffer(from, second, column) : 0.0f;
    }
    if constexpr (kOddPanel) {
      const int column = kRowPairs * 128 + lane * 8;
      rows.odd[turn] = exists ? load_shared_8(from + (u32)(kRowFirstByte + column)) : make_uint2(0, 0);
      rows.odd_scale[turn] = 1.0f;
      if constexpr (kRowGroup > 0) rows.odd_scale[turn] = exists ? scale_in_buffer(from, second, column) : 0.0f;
    }
#pragma unroll
    for (int panel = 0; panel < kRopePanels; panel++)
      rows.rope[turn][panel] =
          exists ? load_shared_16(from + (u32)(kRowRope + panel * 128 + lane * 16)) : make_uint4(0, 0, 0, 0);
  }
}

// Lanes with the second panel begin with their last eight columns, so that the lanes of a row write to all banks.
LEAN_DEVICE void store_rows(u32 stage, const LaneRows& rows) {
  const int lane = threadIdx.x % 8, second = lane / 4;
#pragma unroll
  for (int turn = 0; turn < kRowTurns; turn++) {
    const int token = gather_warp() * kWarpRows + row_of_turn(turn);
    const u32 to = stage + (u32)(token * 128);
#pragma unroll
    for (int pair = 0; pair < kRowPairs; pair++) {
      const uint4 bytes = rows.pair[turn][pair];
      const float scale = rows.scale[turn][pair];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int half = i ^ second, chunk = lane % 4 * 2 + half;
        store_shared_16(to + (u32)((2 * pair + second) * kPanelBytes + (chunk ^ token % 8) * 16),
                        operands_of_eight(half ? bytes.z : bytes.x, half ? bytes.w : bytes.y, scale));
      }
    }
    if constexpr (kOddPanel)
      store_shared_16(to + (u32)(2 * kRowPairs * kPanelBytes + (lane ^ token % 8) * 16),
                      operands_of_eight(rows.odd[turn].x, rows.odd[turn].y, rows.odd_scale[turn]));
#pragma unroll
    for (int panel = 0; panel < kRopePanels; panel++)
      store_shared_16(to + (u32)((kBytePanels + panel) * kPanelBytes + (lane ^ token % 8) * 16),
                      rows.rope[turn][panel]);
  }
}
