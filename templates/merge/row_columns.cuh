// merge/row_columns.cuh -- the columns that a thread holds where query rows sit on the matrix rows and one warp has
// a row's whole state.

// A warp holds kHeldTiles tiles of eight dims of kRowsOfWarp rows, from this row and dim on.
constexpr int kHeldTiles = kValueDim / 8;
LEAN_DEVICE int first_row_of_warp() { return first_row() + (int)threadIdx.x / 32 % 4 * kRowsOfWarp; }
LEAN_DEVICE int first_dim_of_warp() { return 0; }

// The row of the first column that this thread holds. The compiler must not know it, lest it keep the addresses of all
// columns from segment to segment.
LEAN_DEVICE int first_held_row() {
  int row = first_row() + threadIdx.x / 32 % 4 * kRowsOfWarp + threadIdx.x % 32 / 4;
  asm volatile("" : "+r"(row));
  return row;
}
LEAN_DEVICE int first_held_column(int first_row) { return column_at(first_row, threadIdx.x % 4); }

// Calls body(offset, state, o) for each of them. offset: how far it lies behind the first one.
template <class Body>
LEAN_DEVICE void for_each_held(const Attention& a, int first_row, Body body) {
#pragma unroll
  for (int i = 0; i < kRowsOfLane; i++) {
    const RowState state = {a.max[i], a.sum[i]};
    if (first_row + 8 * i >= kRows) continue;
#pragma unroll
    for (int d = 0; d < kValueDim / 8; d += 2) {
      const float(&x)[4] = a.out[i / 2 * kHeldTiles + d], (&y)[4] = a.out[i / 2 * kHeldTiles + d + 1];
      const int half = i % 2;
      body(8 * i * kRowColumns + d / 2 * kFourFurther, state,
           make_float4(x[2 * half], x[2 * half + 1], y[2 * half], y[2 * half + 1]));
    }
  }
}
