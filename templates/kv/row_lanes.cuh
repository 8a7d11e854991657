// kv/row_lanes.cuh -- which rows a warp of the producer's warpgroup copies: 16 of the 64 tokens of a step. Its lanes
// hold where they lie, of one step and the one after it.

constexpr int kWarpRows = kStepTokens / 4;
static_assert(kWarpRows == 16, "lanes hold the rows of two steps");

// Of this lane: the token of a step, and which of the two steps.
LEAN_DEVICE int row_of_lane() { return (int)threadIdx.x / 32 % 4 * kWarpRows + (int)threadIdx.x % kWarpRows; }
LEAN_DEVICE int step_of_lane() { return (int)threadIdx.x % 32 / kWarpRows; }
