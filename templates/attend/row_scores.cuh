// attend/row_scores.cuh -- the scores of a step whose query rows sit on the 64 matrix rows and whose tokens sit on the
// columns: their masks and the online softmax. A warp owns 16 rows, and needs no other warp. Of each eight tokens, lane
// (g, c) holds tokens 2c and 2c + 1 of row g, then of row g + 8.

// Changes scores as the spec says, and if `masked`, those of tokens that a row does not see become -inf. The
// warpgroup's rows begin with row `first_row` of the output tile.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, const Holes& holes,
                               bool masked, int first_row, float (&score)[kStepTokens / 8][4]) {
  if (!kChangesScores && !masked) return;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const Row row = row_of(s.query, s.row_block, first_row + warp * 16 + half * 8 + g);
    const ScoreRow of_row = score_row(args, s, row);
#pragma unroll
    for (int tile = 0; tile < kStepTokens / 8; tile++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int token = tile * 8 + 2 * c + i;
        float& x = score[tile][2 * half + i];
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

// Adds up the lanes' shares of the row sums.
LEAN_DEVICE void add_lanes(float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sum[half] += __shfl_xor_sync(kFullMask, sum[half], 1);
    sum[half] += __shfl_xor_sync(kFullMask, sum[half], 2);
  }
}
