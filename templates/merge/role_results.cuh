// merge/role_results.cuh -- where warpgroups have roles, the results of a segment are complete in the registers of the
// value warpgroups, in columns as a lane holds them.

typedef Values Results;

// Calls body(column, state, o) for each column that this thread holds.
template <class Body>
LEAN_DEVICE void for_each_held(const Results& a, Body body) {
  const int half = threadIdx.x / 128, lane = threadIdx.x % 32;
  int first_row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  asm volatile("" : "+r"(first_row));  // lest the addresses of all columns be kept from segment to segment
  const int first_column = first_row * kRowColumns + half * (kRowColumns / 2) + lane % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = first_row + 8 * i;
    const RowState state = {a.max[i], a.sum[i]};
#pragma unroll
    for (int d = 0; d < kOutTiles; d += 2) {
      if (row < kRows)
        body(first_column + 8 * i * kRowColumns + d * 2, state,
             make_float4(a.out[d][2 * i], a.out[d][2 * i + 1], a.out[d + 1][2 * i], a.out[d + 1][2 * i + 1]));
    }
  }
}

// Writes the rows of a whole output tile.
LEAN_DEVICE void write_results(const LeanDecodeArgs& args, const Segment& segment, const Results& results) {
  for_each_held(results, [&](int column, const RowState& state, const float4& o) {
    write_output(args, output_of(args, segment, column), state, o);
  });
}

// Stores this CTA's state as its partial.
LEAN_DEVICE void store_own_partial(const LeanDecodeArgs& args, const Contributors& c, const Results& results) {
  float* mine = own_partial(args, c);
  for_each_held(results,
                [&](int column, const RowState& state, const float4& o) { store_partial(mine, column, state, o); });
}
