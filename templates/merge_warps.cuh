// merge_warps.cuh -- the warps of a CTA hand over their states through shared memory; every thread then owns float4 columns of the sum.

constexpr int kRowStride = kHeadDim + 4;              // floats; the pad keeps the 8-byte stores of a half warp on different banks
struct MergeBuffer {
  float max[kWarps][kRowTiles * 8];
  float sum[kWarps][kRowTiles * 8];
  float out[kWarps][kRows][kRowStride];               // fragment order
};

LEAN_DEVICE void store_warp_state(MergeBuffer& buffer, int warp, int lane, const Attention& a) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = tile * 8 + 2 * c + i;
      if (g == 0) {
        buffer.max[warp][row] = a.max[tile][i];
        buffer.sum[warp][row] = a.sum[tile][i];
      }
      if (row < kRows) {
#pragma unroll
        for (int d = 0; d < kOutTiles; d++) *(float2*)&buffer.out[warp][row][d * 16 + 2 * g] = make_float2(a.out[d][tile][i], a.out[d][tile][i + 2]);
      }
    }
}

// Column `column` of the CTA's result, and its row's state.
LEAN_DEVICE RowState merge_warps(const MergeBuffer& buffer, int column, float scale_log2, float4& o) {
  const int row = column / kPositions, position = column % kPositions * 4;
  RowState state = {kNegInf, 0.0f};
#pragma unroll
  for (int w = 0; w < kWarps; w++) state.max = fmaxf(state.max, buffer.max[w][row]);
  const float reference = reference_of(state.max);
  o = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const float weight = exp2_approx((buffer.max[w][row] - reference) * scale_log2);
    state.sum = fmaf(buffer.sum[w][row], weight, state.sum);
    add_scaled(o, *(const float4*)&buffer.out[w][row][position], weight);
  }
  return state;
}
