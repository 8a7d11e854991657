// kv/row_lanes.cuh -- which rows a warp copies: an equal share of the tokens of a step. Its lanes hold
// where they lie, of as many steps as there are lanes for.

constexpr int kWarpRows = kStepTokens / kGatherWarps;
constexpr int kStepsInHand = 32 / kWarpRows;

// The number of this warp among those that copy rows, which are consecutive. Any order does.
LEAN_DEVICE int gather_warp() { return (int)threadIdx.x / 32 % kGatherWarps; }

// Of this lane: the token of a step, and which of the steps in hand.
LEAN_DEVICE int row_of_lane() { return gather_warp() * kWarpRows + (int)threadIdx.x % kWarpRows; }
LEAN_DEVICE int step_of_lane() { return (int)threadIdx.x % 32 / kWarpRows; }

// A page of a pool, and a token of it.
struct PoolRow {
  i64 page, token;
};

// Notes which rows of a stage this warp has found to be holes, a bit for each.
LEAN_DEVICE void note_holes(u32 stage, u32 holes) {
  static_assert(kWarpRows == 32 || kWarpRows == 16 || kWarpRows == 8, "a warp's holes are whole bytes of a step's");
  static_assert(sizeof(Holes) * 8 == kStepTokens, "each warp writes its bytes");
  Holes& of_stage = selected_holes().of_stage[stage];
  if constexpr (kWarpRows == 32) {
    ((u32*)&of_stage)[gather_warp()] = holes;
  } else if constexpr (kWarpRows == 16) {
    ((unsigned short*)&of_stage)[gather_warp()] = (unsigned short)holes;
  } else {
    ((unsigned char*)&of_stage)[gather_warp()] = (unsigned char)holes;
  }
}
