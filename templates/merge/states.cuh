// merge/states.cuh -- the warps (or warpgroups) of a CTA hand over their softmax states through shared memory. Every
// thread then owns columns of the sum.

constexpr int kRowStride = kValueDim + 4;  // floats; the pad keeps the 8-byte stores of a half warp on different banks
struct MergeBuffer {
  float max[kStates][kRowTiles * 8];
  float sum[kStates][kRowTiles * 8];
  float out[kStates][kRows][kRowStride];  // in the order of first_dim
};
static_assert(sizeof(MergeBuffer) == lean_merge_bytes(kStates, kRows, kValueDim),
              "host and device must agree on the merge buffer");

// A column of the CTA's result, and the state of its row.
LEAN_DEVICE RowState merge_states(const MergeBuffer& buffer, int column, float scale_log2, float4& o) {
  const int row = column / kRowColumns, position = column % kRowColumns * 4;
  RowState state = {kNegInf, 0.0f};
#pragma unroll
  for (int i = 0; i < kStates; i++) state.max = fmaxf(state.max, buffer.max[i][row]);
  const float reference = reference_of(state.max);
  o = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kStates; i++) {
    const float weight = exp2_approx((buffer.max[i][row] - reference) * scale_log2);
    state.sum = fmaf(buffer.sum[i][row], weight, state.sum);
    add_scaled(o, *(const float4*)&buffer.out[i][row][position], weight);
  }
  return state;
}
