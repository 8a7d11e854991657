// attend/row_state.cuh -- what a warpgroup accumulates of a segment whose query rows sit on the matrix rows, where it
// holds all columns of O.

// The softmax state of rows g and g + 8 of the warp's 16. Maxima are in raw score units and the true running ones.
struct Attention {
  float max[2];
  float sum[2];                 // of this lane's tokens only, until reduce_sums
  float out[kValueDim / 8][4];  // (row g, dim 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1) of each eight dims
};

LEAN_DEVICE void clear(Attention& a) {
  a.max[0] = a.max[1] = kNegInf;
  a.sum[0] = a.sum[1] = 0.0f;
#pragma unroll
  for (int d = 0; d < kValueDim / 8; d++) a.out[d][0] = a.out[d][1] = a.out[d][2] = a.out[d][3] = 0.0f;
}

// Adds up the lanes' shares of the row sums.
template <class Operands>
LEAN_DEVICE void reduce_sums(Attention& a, Operands&, int) {
  add_lanes(a.sum);
}
