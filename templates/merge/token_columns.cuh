// merge/token_columns.cuh -- the columns that a thread holds where dims sit on the matrix rows. The results of two
// neighbouring rows lie in a lane's registers, each for every second dim of what two lanes hold. So the two lanes
// trade, and the one with the even g has the first row.

// The row of the first of them. The compiler must not know it, lest it keep the addresses of all columns from segment
// to segment.
LEAN_DEVICE int first_held_row() {
  int row = threadIdx.x % 4 * 2 + threadIdx.x / 4 % 2;
  asm volatile("" : "+r"(row));
  return row;
}
LEAN_DEVICE int first_held_column(int first_row) {
  const int warp = threadIdx.x / 32, half = kColumnsAreSplit ? warp / 4 : 0;
  return column_at(first_row, half * (kRowColumns / 2) + warp % 4 * 4 + threadIdx.x % 32 / 8);
}

// Calls body(offset, state, o) for each of them. offset: how far it lies behind the first one. To be called by whole
// warps.
template <class Body>
LEAN_DEVICE void for_each_held(const Attention& a, int first_row, Body body) {
  const bool odd = threadIdx.x / 4 % 2 != 0;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const RowState state = {odd ? a.max[tile][1] : a.max[tile][0], odd ? a.sum[tile][1] : a.sum[tile][0]};
#pragma unroll
    for (int d = 0; d < kOutTiles; d++) {
      const float(&x)[4] = a.out[d][tile];
      const float low = __shfl_xor_sync(kFullMask, odd ? x[0] : x[1], 4),
                  high = __shfl_xor_sync(kFullMask, odd ? x[2] : x[3], 4);
      const float4 o = odd ? make_float4(low, x[1], high, x[3]) : make_float4(x[0], low, x[2], high);
      if (tile * 8 + first_row < kRows) body(tile * 8 * kRowColumns + d * 4 * kFourFurther, state, o);
    }
  }
}
