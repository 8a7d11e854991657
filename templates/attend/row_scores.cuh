// attend/row_scores.cuh -- the scores of a step whose query rows sit on the 64 matrix rows and whose tokens sit on the
// columns: their masks and the online softmax. A warp owns 16 rows, and needs no other warp. Of each eight tokens, lane
// (g, c) holds tokens 2c and 2c + 1 of row g, then of row g + 8.

// Changes scores as the spec says. Those of tokens that a row does not see become -inf. The warpgroup's rows begin with
// row `first_row` of the output tile.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, const Holes& holes,
                               int first_row, float (&score)[kStepTokens / 8][4]) {
  const bool masked = any_hole(holes) || has_masked(s, step);
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
        const bool hole = in_hole(holes, token);
        if (masked && (hole || !(kRowsSeeAlike ? token < step.count : sees(args, s, step, token, row)))) x = kNegInf;
      }
  }
}

// Raises the rows' maxima to those of the step, and adds the step's weights to the lane's share of their sums. factor:
// what was accumulated under the old maxima is worth. weight: P, two tokens of row g, then two of g + 8. Returns
// whether a maximum rose.
LEAN_DEVICE bool weigh(float (&max)[2], float (&sum)[2], const float (&score)[kStepTokens / 8][4], float scale_log2,
                       float (&factor)[2], u32 (&weight)[kStepTokens / 8][2]) {
  bool rises = false;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float m = max[half];
#pragma unroll
    for (int tile = 0; tile < kStepTokens / 8; tile++)
      m = fmaxf(m, fmaxf(score[tile][2 * half], score[tile][2 * half + 1]));
    m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 1));
    m = fmaxf(m, __shfl_xor_sync(kFullMask, m, 2));
    // Subtracting before scaling keeps differences near the maximum exact, however large the scores are.
    const float reference = reference_of(m);
    factor[half] = exp2_approx((max[half] - reference) * scale_log2);
    rises |= m != max[half];
    max[half] = m;
    float part[2] = {0.0f, 0.0f};  // two short dependency chains instead of one long one
#pragma unroll
    for (int tile = 0; tile < kStepTokens / 8; tile++) {
      const float x = exp2_approx((score[tile][2 * half] - reference) * scale_log2),
                  y = exp2_approx((score[tile][2 * half + 1] - reference) * scale_log2);
      part[0] += x, part[1] += y;
      weight[tile][half] = Element::pack(x, y);
    }
    sum[half] = fmaf(sum[half], factor[half], part[0] + part[1]);
  }
  return rises;
}

// Adds up the lanes' shares of the row sums.
LEAN_DEVICE void add_lanes(float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sum[half] += __shfl_xor_sync(kFullMask, sum[half], 1);
    sum[half] += __shfl_xor_sync(kFullMask, sum[half], 2);
  }
}
