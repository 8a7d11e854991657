// attend/row_state.cuh -- what a warp accumulates of a segment whose query rows sit on the matrix rows, where it holds
// all columns of O.

// Of 16 dims, position 4 c + i of O is dim 2c + i, and position 4 c + 2 + i is dim 8 + 2c + i, as lanes hold them.
constexpr int kSecondPair = 8;
LEAN_DEVICE int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }

// The softmax state of rows g, g + 8 and so on of the warp's kRowsOfWarp. Maxima are in raw score units and the true
// running ones.
constexpr int kRowsOfLane = kRowsOfWarp / 8, kRowTilesOfWarp = kRowsOfWarp / 16;
struct Attention {
  float max[kRowsOfLane];
  float sum[kRowsOfLane];  // of this lane's tokens only, until reduce_sums
  // Of each 16 rows (row g, dim 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1) of each eight dims.
  float out[kRowTilesOfWarp * kValueDim / 8][4];
};

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int i = 0; i < kRowsOfLane; i++) a.max[i] = kNegInf, a.sum[i] = 0.0f;
#pragma unroll
  for (int d = 0; d < kRowTilesOfWarp * kValueDim / 8; d++)
    a.out[d][0] = a.out[d][1] = a.out[d][2] = a.out[d][3] = 0.0f;
}

// Adds up the lanes' shares of the row sums.
LEAN_DEVICE void reduce_sums(Attention& a) { add_lanes(a.sum); }
template <class Operands>
LEAN_DEVICE void reduce_sums(Attention& a, Operands&, int) {
  reduce_sums(a);
}

// Multiplies what the rows of the warp's `tile`th 16 have accumulated.
LEAN_DEVICE void rescale(Attention& a, const float (&factor)[2], int tile = 0) {
#pragma unroll
  for (int d = 0; d < kValueDim / 8; d++) {
    float(&x)[4] = a.out[tile * (kValueDim / 8) + d];
    x[0] *= factor[0], x[1] *= factor[0];
    x[2] *= factor[1], x[3] *= factor[1];
  }
}
