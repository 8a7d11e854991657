// attend/row_scores.cuh -- the scores of a step whose query rows sit on the matrix rows and whose tokens sit on the
// columns: their masks and the online softmax. A warp owns kRowsOfWarp rows, and needs no other warp. Of each 16 rows
// and eight tokens, lane (g, c) holds tokens 2c and 2c + 1 of row g, then of row g + 8.

// Changes scores as the spec says, and if `masked`, those of tokens that a row does not see become -inf. The rows are
// the `tile`th 16 of the warp, and those of its four warps begin with row `first_row` of the output tile.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, const Holes& holes,
                               bool masked, int first_row, float (&score)[kStepTokens / 8][4], int tile = 0) {
  if (!kChangesScores && !masked) return;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const Row row = row_of(s.query, s.row_block, first_row + warp * kRowsOfWarp + tile * 16 + half * 8 + g);
    const ScoreRow of_row = score_row(args, s, row);
#pragma unroll
    for (int eight = 0; eight < kStepTokens / 8; eight++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int token = eight * 8 + 2 * c + i;
        float& x = score[eight][2 * half + i];
        if constexpr (kChangesScores) x = change_score(args, x, of_row, step.token + token);
        const bool seen = kRowsSeeAlike ? token < step.count : sees(args, s, step, token, row);
        if (masked & (in_hole(holes, token) | !seen)) x = kNegInf;  // by selection: branches would take longer
      }
  }
}

// Raises the maximum of row g, or with half = 1 of row g + 8, to that of the step. reference: what the step's scores
// are measured from. factor: what was accumulated under the old maximum is worth. Returns whether the maximum rose.
LEAN_DEVICE bool raise_maximum(float& max, const float (&score)[kStepTokens / 8][4], int half, float scale_log2,
                               float& reference, float& factor) {
  float m = max;
#pragma unroll
  for (int tile = 0; tile < kStepTokens / 8; tile++)
    m = fmaxf(m, fmaxf(score[tile][2 * half], score[tile][2 * half + 1]));
  m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 1));
  m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 2));
  reference = reference_of(m);
  factor = exp2_approx((max - reference) * scale_log2);
  const bool rises = m != max;
  max = m;
  return rises;
}

// Makes the weights of the two tokens that this lane has of a row, of each eight, and packs them into `weight`. Returns
// their sum.
LEAN_DEVICE float weigh(const float (&score)[4], int half, float reference, float scale_log2, u32& weight) {
  // Subtracting before scaling keeps differences near the maximum exact, however large the scores are.
  const float x = exp2_approx((score[2 * half] - reference) * scale_log2),
              y = exp2_approx((score[2 * half + 1] - reference) * scale_log2);
  weight = Operand::pack(x, y);
  return x + y;
}

// Raises the maxima of rows g and g + 8 to those of the step. factor: what the sums, which it multiplies, and O of the
// steps before are worth, where the warp has a row whose maximum rose; returns whether it has. Only then do the lanes
// of a row tell each other their maxima. Several chains of dependent instructions go side by side: this is what a
// warpgroup does while the matrix unit works for the other one, and it must not take longer.
LEAN_DEVICE bool raise_maxima(const LeanDecodeArgs& args, const float (&score)[kStepTokens / 8][4], float* max,
                              float* sum, float (&factor)[2]) {
  float m[4];  // of each half, the even and the odd tokens
#pragma unroll
  for (int i = 0; i < 4; i++) m[i] = score[0][i];
#pragma unroll
  for (int tile = 1; tile < kStepTokens / 8; tile++)
#pragma unroll
    for (int i = 0; i < 4; i++) m[i] = fmaxf(m[i], score[tile][i]);
#pragma unroll
  for (int half = 0; half < 2; half++) m[half] = fmaxf(m[2 * half], m[2 * half + 1]);
  const bool rises = __any_sync(kFullMask, m[0] > max[0] || m[1] > max[1]);
  if (rises) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      m[half] = fmaxf(m[half], max[half]);
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2)
        m[half] = fmaxf(m[half], __shfl_xor_sync(kFullMask, m[half], distance));
      factor[half] = exp2_approx((max[half] - reference_of(m[half])) * args.scale_log2);
      max[half] = m[half];
      sum[half] *= factor[half];
    }
  }
  return rises;
}

// Turns the scores of rows g and g + 8 into weights, packs these as matrix operand A, and adds them to the sums.
LEAN_DEVICE void weigh(const LeanDecodeArgs& args, const float (&score)[kStepTokens / 8][4], const float* max,
                       float* sum, u32 (&weight)[kStepTokens / 16][4]) {
  const float base[2] = {-reference_of(max[0]) * args.scale_log2, -reference_of(max[1]) * args.scale_log2};
  float added[4] = {};
#pragma unroll
  for (int tile = 0; tile < kStepTokens / 8; tile++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float x = exp2_approx(fmaf(score[tile][2 * half], args.scale_log2, base[half])),
                  y = exp2_approx(fmaf(score[tile][2 * half + 1], args.scale_log2, base[half]));
      added[2 * half] += x, added[2 * half + 1] += y;
      weight[tile / 2][tile % 2 * 2 + half] = Operand::pack(x, y);
    }
#pragma unroll
  for (int half = 0; half < 2; half++) sum[half] += added[2 * half] + added[2 * half + 1];
}

// Adds up the lanes' shares of the row sums.
template <int kCount>
LEAN_DEVICE void add_lanes(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) {
    sum[i] += __shfl_xor_sync(kFullMask, sum[i], 1);
    sum[i] += __shfl_xor_sync(kFullMask, sum[i], 2);
  }
}
