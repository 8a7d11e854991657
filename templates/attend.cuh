// attend.cuh -- one warp, one step: S^T = K Q^T, online softmax, O^T += V^T P^T. Tokens sit on the matrix rows and
// query rows on its eight columns, so a group of 8 wastes nothing and the accumulator needs head_dim / 4 registers per
// eight query rows.

constexpr int kRowTiles = (kRows + 7) / 8;  // eight query rows each

constexpr int kStates = kWarps;  // softmax states of a CTA: one per warp

// O stays in "fragment order": position 16 t + 2 g + i of a row is dim (t / kVWords * 8 + g) * 2 kVWords + 2 (t %
// kVWords) + i. The four values at a multiple of four are two pairs of neighbours, kSecondPair dims apart.
constexpr int kSecondPair = 2 * kVWords;
LEAN_DEVICE int first_dim(int position) {
  const int t = position / 16, g = position % 16 / 2;
  return (t / kVWords * 8 + g) * 2 * kVWords + t % kVWords * 2;
}

// The query rows of one segment as matrix operand B: lane (g, c) holds row 8 * tile + g, dims 32 j + 8 c .. + 7.
struct Query {
  uint4 row[kRowTiles][kKChunks];
};

// Running softmax state of one warp. Rows are 8 * tile + 2c (+ 1); max is in raw score units. It is the true running
// maximum: the heaviest token then has weight 1, which rounds to itself.
struct Attention {
  float max[kRowTiles][2];
  float sum[kRowTiles][2];             // this lane's tokens only, until reduce_sums
  float out[kOutTiles][kRowTiles][4];  // (dim, row) (dim, row + 1) (dim + 1, row) (dim + 1, row + 1)
};

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, int lane, Query& q) {
  const int g = lane / 4, c = lane % 4;
  const char* base =
      (const char*)args.q +
      2 * (s.request * args.q_stride_batch + (s.kv_head * kGroup + s.row_block * kRows) * args.q_stride_head + 8 * c);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const int row = tile * 8 + g;
    const bool valid = row < kRows && s.row_block * kRows + row < kGroup;
#pragma unroll
    for (int j = 0; j < kKChunks; j++)
      q.row[tile][j] = valid ? load_query_16(base + 2 * row * args.q_stride_head + j * 64) : make_uint4(0, 0, 0, 0);
  }
}

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    a.max[tile][0] = a.max[tile][1] = kNegInf;
    a.sum[tile][0] = a.sum[tile][1] = 0.0f;
#pragma unroll
    for (int d = 0; d < kOutTiles; d++)
      a.out[d][tile][0] = a.out[d][tile][1] = a.out[d][tile][2] = a.out[d][tile][3] = 0.0f;
  }
}

// Moves the maxima up to the largest score of this step and rescales what was accumulated under the old ones.
LEAN_DEVICE void raise_max(Attention& a, float (&step_max)[kRowTiles][2], float scale_log2) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float m = step_max[tile][i];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) m = fmaxf(m, __shfl_xor_sync(kFullMask, m, distance));
      m = fmaxf(m, a.max[tile][i]);
      const float factor =
          m == kNegInf ? 1.0f : exp2_approx((a.max[tile][i] - m) * scale_log2);  // (-inf) - (-inf) is NaN
      a.max[tile][i] = m;
      a.sum[tile][i] *= factor;
#pragma unroll
      for (int d = 0; d < kOutTiles; d++) a.out[d][tile][i] *= factor, a.out[d][tile][i + 2] *= factor;
    }
}

// One step of `tokens` (1 .. kWarpTokens) tokens.
LEAN_DEVICE void attend(KvPipe& kv, const Query& q, Attention& a, int tokens, float scale_log2, int lane) {
  const int g = lane / 4;
  float score[kBlocks][kRowTiles][4];
  kv.acquire(tokens);
#pragma unroll
  for (int block = 0; block < kBlocks; block++) {
    KBlock k;
    kv.read_k_block(block, k);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile++) {
      float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};  // two short dependency chains instead of one long one
#pragma unroll
      for (int j = 0; j < kKChunks; j++) {
        const uint4 lo = k.row[0][j], hi = k.row[1][j], query = q.row[tile][j];
        mma(even, lo.x, hi.x, lo.y, hi.y, query.x, query.y);
        mma(odd, lo.z, hi.z, lo.w, hi.w, query.z, query.w);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) score[block][tile][i] = even[i] + odd[i];
    }
  }
  kv.k_done();

  if (tokens < kWarpTokens) {
#pragma unroll
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (k_token(block, half, g) >= tokens) {
#pragma unroll
          for (int tile = 0; tile < kRowTiles; tile++)
            score[block][tile][2 * half] = score[block][tile][2 * half + 1] = kNegInf;
        }
  }

  float step_max[kRowTiles][2];
  bool raise = false;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float m = kNegInf;
#pragma unroll
      for (int block = 0; block < kBlocks; block++)
        m = fmaxf(m, fmaxf(score[block][tile][i], score[block][tile][i + 2]));
      step_max[tile][i] = m;
      raise |= m > a.max[tile][i];
    }
  if (__any_sync(kFullMask, raise)) raise_max(a, step_max, scale_log2);

  u32 weight[kBlocks][kRowTiles][2];  // P^T as matrix operand B
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    // Subtract, then scale: near the maximum the difference is exact, however large the scores are.
    const float reference0 = reference_of(a.max[tile][0]), reference1 = reference_of(a.max[tile][1]);
#pragma unroll
    for (int block = 0; block < kBlocks; block++) {
      float(&s)[4] = score[block][tile];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float p0 = exp2_approx((s[2 * half] - reference0) * scale_log2),
                    p1 = exp2_approx((s[2 * half + 1] - reference1) * scale_log2);
        a.sum[tile][0] += p0, a.sum[tile][1] += p1;
        weight[block][tile][half] = transpose_8x8(pack_pair(p0, p1));
      }
    }
  }

#pragma unroll
  for (int block = 0; block < kBlocks; block++)
#pragma unroll
    for (int group = 0; group < kVGroups; group++) {
      VBlock v;
      kv.read_v_block(block, group, v);
#pragma unroll
      for (int w = 0; w < kVWords; w++) {
        const u32 a0 = low_halves(v.row[0][w], v.row[1][w]), a1 = high_halves(v.row[0][w], v.row[1][w]);
        const u32 a2 = low_halves(v.row[2][w], v.row[3][w]), a3 = high_halves(v.row[2][w], v.row[3][w]);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; tile++)
          mma(a.out[group * kVWords + w][tile], a0, a1, a2, a3, weight[block][tile][0], weight[block][tile][1]);
      }
    }
  kv.release();
}

// Adds up the lanes' shares of the row sums.
LEAN_DEVICE void reduce_sums(Attention& a) {
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        a.sum[tile][i] += __shfl_xor_sync(kFullMask, a.sum[tile][i], distance);
}

// Hands the warp's state to the merge buffer.
template <class Buffer>
LEAN_DEVICE void store_state(Buffer& buffer, int warp, int lane, const Attention& a) {
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
        for (int d = 0; d < kOutTiles; d++)
          *(float2*)&buffer.out[warp][row][d * 16 + 2 * g] = make_float2(a.out[d][tile][i], a.out[d][tile][i + 2]);
      }
    }
}
