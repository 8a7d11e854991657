// merge/role_columns.cuh -- the columns that a thread holds where warpgroups have roles.

// A warp holds kHeldTiles tiles of eight dims of 16 rows, from this row and dim on.
constexpr int kHeldTiles = kOutTiles;
LEAN_DEVICE int first_row_of_warp() { return (int)threadIdx.x / 32 % 4 * 16; }
LEAN_DEVICE int first_dim_of_warp() { return (int)threadIdx.x / 128 * kHalfValueDim; }

// The row of the first column that this thread holds. The compiler must not know it, lest it keep the addresses of all
// columns from segment to segment.
LEAN_DEVICE int first_held_row() {
  int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  asm volatile("" : "+r"(row));
  return row;
}
LEAN_DEVICE int first_held_column(int first_row) {
  return column_at(first_row, threadIdx.x / 128 * (kRowColumns / 2) + threadIdx.x % 4);
}

// Calls body(offset, state, o) for each of them. offset: how far it lies behind the first one. Whether a row exists is
// asked for each column: without these branches ptxas works on so many columns at a time that it spills.
template <class Body>
LEAN_DEVICE void for_each_held(const Attention& a, int first_row, Body body) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const RowState state = {a.max[i], a.sum[i]};
#pragma unroll
    for (int d = 0; d < kOutTiles; d += 2) {
      if (first_row + 8 * i < kRows)
        body(8 * i * kRowColumns + d / 2 * kFourFurther, state,
             make_float4(a.out[d][2 * i], a.out[d][2 * i + 1], a.out[d + 1][2 * i], a.out[d + 1][2 * i + 1]));
    }
  }
}
