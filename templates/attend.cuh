// attend.cuh -- one warp, one step: S^T = K Q^T, online softmax, O^T += V^T P^T. Tokens sit on the matrix rows and
// query rows on its eight columns, so a group of 8 wastes nothing and the accumulator needs head_dim / 4 registers per
// eight query rows.

constexpr int kRowTiles = (kRows + 7) / 8;  // eight query rows each

constexpr int kStates = kWarps;  // softmax states of a CTA: one per warp
constexpr int kSumsPerState = 1;

// O stays in "fragment order": position 16 t + 2 g + i of a row is dim (t / kVWords * 8 + g) * 2 kVWords + 2 (t %
// kVWords) + i. The four values at a multiple of four are two pairs of neighbours, kSecondPair dims apart.
constexpr int kSecondPair = 2 * kVWords;
LEAN_DEVICE int first_dim(int position) {
  const int t = position / 16, g = position % 16 / 2;
  return (t / kVWords * 8 + g) * 2 * kVWords + t % kVWords * 2;
}

// The query rows of one segment as matrix operand B: lane (g, c) holds row 8 * tile + g, and of it the dims that it
// holds of K's rows, two to a word. Wide heads leave no registers for that: there each lane keeps its words in shared
// memory, where no other looks at them.
constexpr bool kQueryInShared = kHeadDim > 256;
constexpr int kQueryBytes = kQueryInShared ? kRowTiles * kKPairs * 32 * 4 : 0;  // per warp
struct Query {
  u32 row[kRowTiles][kQueryInShared ? 1 : kKPairs];
  u32* words;  // [row tiles][kKPairs / 2][32 lanes][2], this lane's

  LEAN_DEVICE u32& at(int tile, int i) {
    return kQueryInShared ? words[(tile * kKPairs / 2 + i / 2) * 64 + i % 2] : row[tile][kQueryInShared ? 0 : i];
  }
  LEAN_DEVICE uint2 pair(int tile, int i) const {
    if constexpr (kQueryInShared) return *(const uint2*)&words[(tile * kKPairs / 2 + i / 2) * 64];
    return make_uint2(row[tile][i], row[tile][i + 1]);
  }
};

// Running softmax state of one warp. Rows are 8 * tile + 2c (+ 1); max is in raw score units. It is the true running
// maximum: the heaviest token then has weight 1, which rounds to itself.
struct Attention {
  float max[kRowTiles][2];
  float sum[kRowTiles][2];             // this lane's tokens only, until reduce_sums
  float out[kOutTiles][kRowTiles][4];  // (dim, row) (dim, row + 1) (dim + 1, row) (dim + 1, row + 1)
};

// Gives q the warp's kQueryBytes of shared memory.
LEAN_DEVICE void place_query(Query& q, unsigned char* shared, int lane) { q.words = (u32*)shared + 2 * lane; }

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, int lane, Query& q) {
  constexpr int kWords = 2 / kKvBytes;  // words of q to one of K
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const Row row = row_of(s.query, s.row_block, tile * 8 + g);
    const char* from = query_row(args, s, row);
    const int position = query_position(s, row);
#pragma unroll
    for (int j = 0; j < kKChunks; j++)
#pragma unroll
      for (int h = 0; h < kWords; h++) {
        const int dim = (kWords * (64 * j + 16 * c) + 16 * h) / 2;
        const uint4 x = row.valid ? rotated_16(args, from, dim, position) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < 4; w++) q.at(tile, (j * kWords + h) * 4 + w) = query_pair(word(x, w));
      }
#pragma unroll
    for (int w = 0; w < kKTail * kWords; w++)
      q.at(tile, 4 * kKChunks * kWords + w) = query_pair(
          row.valid ? rotated_pair(args, from, kWords * (32 * kKChunks + 2 * kKTail * c) + 2 * w, position) : 0);
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

// Transposes an 8 x 8 matrix of 16-bit elements held one row per four lanes (PTX ISA, "movmatrix").
LEAN_DEVICE u32 transpose_8x8(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
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

// Scores of the tokens that rows do not see become -inf; the others change as the spec says.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, int lane,
                               float (&score)[kBlocks][kRowTiles][4]) {
  const int g = lane / 4, c = lane % 4;
  if constexpr (kChangesScores || kKvBytes == 1) {
#pragma unroll
    for (int block = 0; block < kBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int token = step.token + k_token(block, half, g);
        const float scale = k_scale_of(args, s, token, k_token(block, half, g) < step.count);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
          for (int i = 0; i < 2; i++) {
            float& x = score[block][tile][2 * half + i];
            x *= scale;
            if constexpr (kChangesScores)
              x = change_score(args, x, score_row(args, s, row_of(s.query, s.row_block, tile * 8 + 2 * c + i)), token);
          }
      }
  }
  if (!has_masked(s, step)) return;
#pragma unroll
  for (int block = 0; block < kBlocks; block++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int token = k_token(block, half, g);
      if constexpr (kRowsSeeAlike) {
        if (token >= step.count) {
#pragma unroll
          for (int tile = 0; tile < kRowTiles; tile++)
            score[block][tile][2 * half] = score[block][tile][2 * half + 1] = kNegInf;
        }
      } else {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
          for (int i = 0; i < 2; i++)
            if (!sees(args, s, step, token, row_of(s.query, s.row_block, tile * 8 + 2 * c + i)))
              score[block][tile][2 * half + i] = kNegInf;
      }
    }
}

// One step.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, const Step& step, KvPipe& kv, const Query& q,
                        Attention& a, int lane) {
  const float scale_log2 = args.scale_log2;
  float score[kBlocks][kRowTiles][4];
  kv.acquire(step.count);
#pragma unroll
  for (int block = 0; block < kBlocks; block++) {
    float sum[kRowTiles][2][4] = {};  // two short dependency chains instead of one long one
#pragma unroll
    for (int part = 0; part < kKParts; part++) {
      constexpr int kPartPairs = kPartWords * kKPairs / kKWords;
      KBlock k;
      kv.read_k_block(block, part, k);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
        for (int j = 0; j < kPartPairs; j += 2) {
          if (part * kPartPairs + j >= kKPairs) break;
          const uint2 query = q.pair(tile, part * kPartPairs + j);
          Operand::mma(sum[tile][j / 2 % 2], kv_pair(k.row[0], j), kv_pair(k.row[1], j), kv_pair(k.row[0], j + 1),
                       kv_pair(k.row[1], j + 1), query.x, query.y);
        }
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[block][tile][i] = sum[tile][0][i] + sum[tile][1][i];
  }
  kv.k_done();
  finish_scores(args, s, step, lane, score);

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
      float(&x)[4] = score[block][tile];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float p0 = exp2_approx((x[2 * half] - reference0) * scale_log2),
                    p1 = exp2_approx((x[2 * half + 1] - reference1) * scale_log2);
        a.sum[tile][0] += p0, a.sum[tile][1] += p1;
        const float scale = v_scale_of(args, s, step, k_token(block, half, lane / 4));
        weight[block][tile][half] = transpose_8x8(Operand::pack(p0 * scale, p1 * scale));
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
        u32 x[4];
#pragma unroll
        for (int r = 0; r < 4; r++) x[r] = kv_pair(v.row[r], w);
        const u32 a0 = low_halves(x[0], x[1]), a1 = high_halves(x[0], x[1]);
        const u32 a2 = low_halves(x[2], x[3]), a3 = high_halves(x[2], x[3]);
#pragma unroll
        for (int tile = 0; tile < kRowTiles; tile++)
          Operand::mma(a.out[group * kVWords + w][tile], a0, a1, a2, a3, weight[block][tile][0],
                       weight[block][tile][1]);
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
