// attend/mma.cuh -- one warp, one step: S^T = K Q^T, online softmax, O^T += V^T P^T. Tokens sit on the 16 rows of the
// matrix instruction and query rows on its eight columns, so the usual groups of up to eight query heads cost one
// column tile, and the accumulator takes head_dim / 4 registers for each.

constexpr int kRowTiles = (kRows + 7) / 8;  // column tiles of eight query rows
constexpr int kLaneRows = 2 * kRowTiles;    // query rows of a lane's scores: row_at(j, c)
constexpr int kStates = kWarps;             // softmax states of a CTA, one a warp
LEAN_DEVICE int row_at(int j, int c) { return j / 2 * 8 + 2 * c + j % 2; }

// O stays in "fragment order": position 16 t + 2 g + i of a row is dim (t / kVWords * 8 + g) * 2 kVWords + 2 (t %
// kVWords) + i. The four values at a multiple of four are two pairs of neighbours, kSecondPair dims apart.
constexpr int kSecondPair = 2 * kVWords;
LEAN_DEVICE int first_dim(int position) {
  const int t = position / 16, g = position % 16 / 2;
  return (t / kVWords * 8 + g) * 2 * kVWords + t % kVWords * 2;
}

// The query rows of a segment as matrix operand B: lane (g, c) holds row 8 * tile + g, and of it the dims that it holds
// of K's rows, two to a word. Wide heads leave no registers for that. There each lane keeps its words in shared memory,
// where no other lane looks at them.
constexpr bool kQueryInShared = kHeadDim > kLeanQueryDims;
constexpr int kQueryBytes = lean_query_bytes(kRows, kHeadDim);  // per warp
static_assert(!kQueryInShared || kQueryBytes == kRowTiles * kKPairs * 32 * 4, "a word for each pair of dims");
struct Query {
  u32 row[kRowTiles][kQueryInShared ? 1 : kKPairs];
  u32* words;  // [row tiles][kKPairs / 2][32 lanes][2], this lane's
#if defined(LEAN_HELD_SCALE)
  float scale;  // of products with K
#endif

  LEAN_DEVICE u32& at(int tile, int i) {
    if constexpr (kQueryInShared) return words[(tile * kKPairs / 2 + i / 2) * 64 + i % 2];
    return row[tile][i];
  }
  LEAN_DEVICE uint2 pair(int tile, int i) const {
    if constexpr (kQueryInShared) return *(const uint2*)&words[(tile * kKPairs / 2 + i / 2) * 64];
    return make_uint2(row[tile][i], row[tile][i + 1]);
  }
};

// The softmax state of a warp. Maxima are in raw score units and the true running ones, so that the heaviest token has
// weight 1, which rounds to itself.
struct Attention {
  float max[kLaneRows];
  float sum[kLaneRows];                       // of this lane's tokens only, until reduce_sums
  float out[kOutTiles][kRowTiles][4];         // (dim, row) (dim, row + 1) (dim + 1, row) (dim + 1, row + 1)
  float unit[kScalesTokens ? kLaneRows : 1];  // what `out` counts in (attend/value_unit.cuh), if tokens have scales
};

// Gives q the warp's kQueryBytes of shared memory.
LEAN_DEVICE void place_query(Query& q, unsigned char* shared, int lane) {
  if constexpr (kQueryInShared) q.words = (u32*)shared + 2 * lane;
}

#if defined(LEAN_NIBBLES)
LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, int lane, Query& q) {
  const int g = lane / 4, c = lane % 4;
#if defined(LEAN_HELD_SCALE)
  q.scale = k_scale_of(args, s, 0, true);
#endif
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const Row row = row_of(s.query, s.row_block, tile * 8 + g);
    const char* from = query_row(args, s, row);
    const int index = query_index(s, row);
#pragma unroll
    for (int i = 0; i < kKPairs; i++) q.at(tile, i) = 0;
    if (row.valid) {  // one branch, within which all loads travel together
#pragma unroll
      for (int i = 0; i < kKWords; i++) {  // the words of K that this lane holds
        const uint4 x = query_pairs(rotated_16(args, from, 2 * k_byte(c, i), index));
#pragma unroll
        for (int w = 0; w < 4; w++) q.at(tile, 4 * i + w) = word(x, w);
      }
    }
  }
}
#else
LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, int lane, Query& q) {
  constexpr int kWords = 2 / kKvBytes;  // words of q to one of K
  const int g = lane / 4, c = lane % 4;
#if defined(LEAN_HELD_SCALE)
  q.scale = k_scale_of(args, s, 0, true);
#endif
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const Row row = row_of(s.query, s.row_block, tile * 8 + g);
    const char* from = query_row(args, s, row);
    const int index = query_index(s, row);
#pragma unroll
    for (int i = 0; i < kKChunks * kWords * 4; i++) q.at(tile, i) = 0;
    if (row.valid) {  // one branch, within which all loads travel together
#pragma unroll
      for (int j = 0; j < kKChunks * kWords; j++) {
        const uint4 x = rotated_16(args, from, kWords * k_byte(c, 4 * j / kWords) / 2, index);
#pragma unroll
        for (int w = 0; w < 4; w++) q.at(tile, j * 4 + w) = query_pair(word(x, w));
      }
    }
    if constexpr (kKTail > 0) {
#pragma unroll
      for (int w = 0; w < kKTail * kWords; w++) {
        const int dim = kWords * (32 * kKChunks + 2 * kKTail * c) + 2 * w;
        q.at(tile, 4 * kKChunks * kWords + w) = query_pair(row.valid ? rotated_pair(args, from, dim, index) : 0);
      }
    }
  }
}
#endif

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) a.max[j] = kNegInf, a.sum[j] = 0.0f;
  if constexpr (kScalesTokens) {
#pragma unroll
    for (int j = 0; j < kLaneRows; j++) a.unit[j] = kLeanLeastUnit;
  }
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int d = 0; d < kOutTiles; d++)
      a.out[d][tile][0] = a.out[d][tile][1] = a.out[d][tile][2] = a.out[d][tile][3] = 0.0f;
}

// Transposes an 8 x 8 matrix of 16-bit elements, one row in four lanes (PTX ISA, "movmatrix").
LEAN_DEVICE u32 transpose_8x8(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Raises the maxima to the largest scores of the step and rescales what was accumulated under the old ones. Where
// tokens have scales, O's unit takes the factor instead of O, which change_units then rescales.
LEAN_DEVICE void raise_max(Attention& a, const float (&step_max)[kLaneRows], float scale_log2) {
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) {
    float m = step_max[j];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) m = fmaxf(m, __shfl_xor_sync(kFullMask, m, distance));
    m = fmaxf(m, a.max[j]);
    const float factor = m == kNegInf ? 1.0f : exp2_approx((a.max[j] - m) * scale_log2);  // (-inf) - (-inf) is NaN
    a.max[j] = m;
    a.sum[j] *= factor;
    if constexpr (kScalesTokens) {
      a.unit[j] *= factor;
    } else {
#pragma unroll
      for (int d = 0; d < kOutTiles; d++) a.out[d][j / 2][j % 2] *= factor, a.out[d][j / 2][j % 2 + 2] *= factor;
    }
  }
}

// Makes the units fit the step's largest products of weight and scale, and rescales O.
LEAN_DEVICE void change_units(Attention& a, const float (&top)[kLaneRows]) {
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) {
    float t = top[j];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) t = fmaxf(t, __shfl_xor_sync(kFullMask, t, distance));
    const float unit = lean_value_unit(a.unit[j], t), change = lean_ratio(a.unit[j], unit);
    a.unit[j] = unit;
#pragma unroll
    for (int d = 0; d < kOutTiles; d++) a.out[d][j / 2][j % 2] *= change, a.out[d][j / 2][j % 2 + 2] *= change;
  }
}

// Whether scores still lack the scales of K when they are finished: a load of them would be waited for in each step.
#if defined(LEAN_HELD_SCALE)
constexpr bool kScalesScores = false;
#else
constexpr bool kScalesScores = kHasScales;
#endif

// Changes scores as the spec says. Those of tokens that a row does not see become -inf.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, const Holes& holes,
                               int lane, float (&score)[kTokenBlocks][kRowTiles][4]) {
  const int g = lane / 4;
  if constexpr (kChangesScores || kScalesScores) {
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int offset = k_token(block, half, g), token = step.token + offset;
        float scale = 1.0f;
        if constexpr (kScalesScores) scale = k_scale_of(args, s, token, offset < step.count);
#pragma unroll
        for (int j = 0; j < kLaneRows; j++) {
          float& x = score[block][j / 2][2 * half + j % 2];
          x *= scale;
          if constexpr (kChangesScores)
            x = change_score(args, x, score_row(args, s, row_of(s.query, s.row_block, row_at(j, lane % 4))), token);
        }
      }
  }
  if (!any_hole(holes) && !has_masked(s, step)) return;
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int offset = k_token(block, half, g);
      const bool hole = in_hole(holes, offset);
      if (kRowsSeeAlike && offset < step.count && !hole) continue;
#pragma unroll
      for (int j = 0; j < kLaneRows; j++)
        if (kRowsSeeAlike || hole || !sees(args, s, step, offset, row_of(s.query, s.row_block, row_at(j, lane % 4))))
          score[block][j / 2][2 * half + j % 2] = kNegInf;
    }
}

// Multiplies the step's weights, which stand where its scores did, by the scales of its tokens, and packs them in O's
// units. raised: whether a maximum has risen, and with it what O of the steps before is worth.
LEAN_DEVICE void scale_weights(const LeanDecodeArgs& args, const Segment& s, const Step& step, Attention& a,
                               bool raised, int lane, float (&score)[kTokenBlocks][kRowTiles][4],
                               u32 (&weight)[kTokenBlocks][kRowTiles][2]) {
  float top[kLaneRows] = {};
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float scale = v_scale_of(args, s, step, k_token(block, half, lane / 4));
#pragma unroll
      for (int j = 0; j < kLaneRows; j++) {
        float& x = score[block][j / 2][2 * half + j % 2];
        x *= scale;
        top[j] = fmaxf(top[j], fabsf(x));
      }
    }
  bool changes = raised;
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) changes |= top[j] > a.unit[j];
  if (__any_sync(kFullMask, changes)) change_units(a, top);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const float factor0 = lean_ratio(kLeanUnitWeight, a.unit[2 * tile]),
                factor1 = lean_ratio(kLeanUnitWeight, a.unit[2 * tile + 1]);
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float* x = &score[block][tile][2 * half];
        weight[block][tile][half] = transpose_8x8(Operand::pack(x[0] * factor0, x[1] * factor1));
      }
  }
}

#if defined(LEAN_BLOCK_SCALES)
// A weight of 0 does not silence a scale that is NaN. So scales of V that are NaN are not multiplied. Instead the
// results of rows that see their tokens become NaN, and no others. out: of the columns of which v are.
LEAN_DEVICE void keep_nan_in_rows(VFragment& v, const u32 (&weight)[kRowTiles][2], float (*out)[kRowTiles][4]) {
  const u32 first = take_nan(v.units[0]), second = take_nan(v.units[1]);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    float seen[4] = {};
    mma(Operand(), seen, first, first, second, second, weight[tile][0], weight[tile][1]);
#pragma unroll
    for (int w = 0; w < kVWords; w++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (seen[i] > 0.0f) out[w][tile][i] = __builtin_bit_cast(float, 0x7fffffffu);
  }
}
#endif

// One step.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, const Step& step, KvPipe& kv, const Query& q,
                        Attention& a, int lane) {
  const float scale_log2 = args.scale_log2;
  float score[kTokenBlocks][kRowTiles][4];
  kv.acquire(step.count);
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++) {
    float sum[kRowTiles][2][4] = {};  // two short dependency chains instead of one long one
#pragma unroll
    for (int part = 0; part < kKParts; part++) {
      constexpr int kPartPairs = kPartWords * kKPairs / kKWords;
      KFragment k;
      kv.read_k_fragment(block, part, k);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
        for (int j = 0; j < kPartPairs; j += 2) {
          if (part * kPartPairs + j >= kKPairs) break;
          const uint2 query = q.pair(tile, part * kPartPairs + j);
          mma(Operand(), sum[tile][j / 2 % 2], kv_pair(k.row[0], j), kv_pair(k.row[1], j), kv_pair(k.row[0], j + 1),
              kv_pair(k.row[1], j + 1), query.x, query.y);
        }
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[block][tile][i] = sum[tile][0][i] + sum[tile][1][i];
#if defined(LEAN_HELD_SCALE)
#pragma unroll
    for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) score[block][tile][i] *= q.scale;
#elif defined(LEAN_TOKEN_SCALES)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float scale = kv.k_scale(block, half);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; tile++)
        score[block][tile][2 * half] *= scale, score[block][tile][2 * half + 1] *= scale;
    }
#endif
  }
  kv.k_done();
  Holes holes = {};
  if constexpr (kPageSize > 0) {
    if (kv.at.holes) {
      holes = holes_of(args, s, step);
      zero_v_holes(kv, holes);
    }
  }
  finish_scores(args, s, step, holes, lane, score);

  float step_max[kLaneRows];
  bool raise = false;
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) {
    float m = kNegInf;
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
      m = fmaxf(m, fmaxf(score[block][j / 2][j % 2], score[block][j / 2][j % 2 + 2]));
    step_max[j] = m;
    raise |= m > a.max[j];
  }
  const bool raised = __any_sync(kFullMask, raise);
  if (raised) raise_max(a, step_max, scale_log2);

  u32 weight[kTokenBlocks][kRowTiles][2];  // P^T as matrix operand B
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    const float reference0 = reference_of(a.max[2 * tile]), reference1 = reference_of(a.max[2 * tile + 1]);
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        // Subtracting before scaling keeps differences near the maximum exact, however large the scores are.
        float* x = &score[block][tile][2 * half];
        const float p0 = exp2_approx((x[0] - reference0) * scale_log2),
                    p1 = exp2_approx((x[1] - reference1) * scale_log2);
        a.sum[2 * tile] += p0, a.sum[2 * tile + 1] += p1;
#if defined(LEAN_TOKEN_SCALES)
        // What a row does not see weighs nothing, whatever the scale is: that of a hole is another token's.
        const float scale = kv.v_scale(block, half);
        x[0] = p0 == 0.0f ? 0.0f : p0 * scale, x[1] = p1 == 0.0f ? 0.0f : p1 * scale;
#else
        if constexpr (kScalesTokens) {
          x[0] = p0, x[1] = p1;
        } else {
          weight[block][tile][half] = transpose_8x8(Operand::pack(p0, p1));
        }
#endif
      }
  }
  if constexpr (kScalesTokens) scale_weights(args, s, step, a, raised, lane, score, weight);

#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++) {
    VFragment v;
#pragma unroll
    for (int group = 0; group < kVGroups; group++) {
      kv.read_v_fragment(block, group, v);
#if defined(LEAN_BLOCK_SCALES)
      if (may_be_nan(v)) keep_nan_in_rows(v, weight[block], &a.out[group * kVWords]);
#endif
#pragma unroll
      for (int w = 0; w < kVWords; w++) {
#if defined(LEAN_NIBBLES)
        const uint4 x = value_pairs(v, w);
        const u32 a0 = x.x, a1 = x.y, a2 = x.z, a3 = x.w;
#else
        u32 x[4];
#pragma unroll
        for (int r = 0; r < 4; r++) x[r] = kv_pair(v.row[r], w);
        const u32 a0 = low_halves(x[0], x[1]), a1 = high_halves(x[0], x[1]);
        const u32 a2 = low_halves(x[2], x[3]), a3 = high_halves(x[2], x[3]);
#endif
#pragma unroll
        for (int tile = 0; tile < kRowTiles; tile++)
          mma(Operand(), a.out[group * kVWords + w][tile], a0, a1, a2, a3, weight[block][tile][0],
              weight[block][tile][1]);
      }
    }
  }
  kv.release();
}

// Adds up the lanes' shares of the row sums.
LEAN_DEVICE void reduce_sums(Attention& a) {
#pragma unroll
  for (int j = 0; j < kLaneRows; j++)
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) a.sum[j] += __shfl_xor_sync(kFullMask, a.sum[j], distance);
}

// Hands the warp's state to the merge buffer.
template <class Buffer>
LEAN_DEVICE void store_state(Buffer& buffer, int warp, int lane, const Attention& a) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int j = 0; j < kLaneRows; j++) {
    const int row = row_at(j, c);
    if (g == 0) buffer.max[warp][row] = a.max[j], buffer.sum[warp][row] = a.sum[j];
    float scale = 1.0f;
    if constexpr (kScalesTokens) scale = a.unit[j] * (1.0f / kLeanUnitWeight);
    if (row < kRows) {
#pragma unroll
      for (int d = 0; d < kOutTiles; d++)
        *(float2*)&buffer.out[warp][row][d * 16 + 2 * g] =
            make_float2(a.out[d][j / 2][j % 2] * scale, a.out[d][j / 2][j % 2 + 2] * scale);
    }
  }
}
