// attend/wgmma_tokens.cuh -- one warpgroup, one step, with operands straight from shared memory: S^T = K Q^T, online
// softmax, O^T += V^T P^T. Tokens (then dims) sit on the 64 matrix rows and query rows on the columns. A thread holds
// four scores for each eight query rows and 64 tokens.

constexpr int kRowTiles = (kRows + 7) / 8;                   // of eight query rows each
constexpr int kTokenBlocks = kStepTokens / 64;               // 64-token blocks of a step
constexpr int kSharers = kColumnsAreSplit ? 2 : 1;           // warpgroups that share q
constexpr int kOutTiles = kValueDim / 64 / kSharers;         // 64-dim output tiles of a warpgroup
constexpr int kStates = kColumnsAreSplit ? 1 : kWarpgroups;  // softmax states of a CTA for each row
static_assert(kValueDim % (64 * kSharers) == 0, "a warpgroup has whole output tiles");
constexpr bool kHoldsResults = kStates == 1;  // whether results stay in registers

// Of 16 dims, position 4 h + i of O is dim 2h + i, and position 4 h + 2 + i is dim 8 + 2h + i, in the same way as in
// the other modules of this family.
constexpr int kSecondPair = 8;
LEAN_DEVICE int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }

// What a warpgroup has in shared memory beside the ring.
struct Weights {
  unsigned char p[kRowTiles][kStepTokens * 16];        // P^T: [token][8 rows]
  float max[4][kRowTiles * 8], sum[4][kRowTiles * 8];  // of each warp's tokens
};
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][kRowTiles][8 * 128];  // [row][64 dims], 128-byte swizzled
  Weights weights[kSharers];
};
static_assert(sizeof(Operands) == lean_token_operand_bytes(kRows, kHeadDim, kStepTokens, kSharers),
              "host and device must agree on the operands");

// The 16-byte chunks of q that this thread carries to shared memory.
constexpr int kQChunks = kRowTiles * 8 * kHeadDim / 8;
constexpr int kQThreads = 128 * kSharers, kQChunksPerThread = (kQChunks + kQThreads - 1) / kQThreads;
struct Query {
  uint4 chunk[kQChunksPerThread];
};

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Query& q) {
#pragma unroll
  for (int i = 0; i < kQChunksPerThread; i++) {
    const int chunk = i * kQThreads + (int)threadIdx.x % kQThreads, column = chunk % (kHeadDim / 8);
    const Row row = row_of(s.query, s.row_block, chunk / (kHeadDim / 8));
    q.chunk[i] =
        row.valid ? rotated_16(args, query_row(args, s, row), column * 8, query_index(s, row)) : make_uint4(0, 0, 0, 0);
  }
}

LEAN_DEVICE void store_query(const LeanDecodeArgs&, const Segment&, Operands& shared, const Query& q) {
#pragma unroll
  for (int i = 0; i < kQChunksPerThread; i++) {
    const int chunk = i * kQThreads + (int)threadIdx.x % kQThreads, row = chunk / (kHeadDim / 8),
              column = chunk % (kHeadDim / 8);
    if (kQChunks % kQThreads == 0 || chunk < kQChunks)
      *(uint4*)&shared.q[column / 8][row / 8][row % 8 * 128 + ((column ^ row) % 8) * 16] = query_16(q.chunk[i]);
  }
  fence_async_proxy();
}

// The softmax state of a warpgroup. A thread holds the query rows 8 * tile + 2c and the one after. Maxima are in raw
// score units and the true running ones.
struct Attention {
  float max[kRowTiles][2];
  float sum[kRowTiles][2];             // of this lane's tokens only
  float out[kOutTiles][kRowTiles][4];  // (dim g, row) (g, row + 1) (g + 8, row) (g + 8, row + 1) of the warp's 16 dims
};

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

// Changes scores as the spec says. Those of tokens that a row does not see become -inf.
LEAN_DEVICE void finish_scores(const LeanDecodeArgs& args, const Segment& s, const Step& step, const Holes& holes,
                               float (&score)[kTokenBlocks][kRowTiles][4]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4;
  const bool masked = any_hole(holes) || has_masked(s, step);
  if (!kChangesScores && !masked) return;
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int token = block * 64 + warp * 16 + half * 8 + g;
      const bool hole = in_hole(holes, token);
#pragma unroll
      for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& x = score[block][tile][2 * half + i];
          if constexpr (kRowsSeeAlike && !kChangesScores) {
            if (hole || token >= step.count) x = kNegInf;
          } else {
            const Row row = row_of(s.query, s.row_block, tile * 8 + 2 * (lane % 4) + i);
            if constexpr (kChangesScores) x = change_score(args, x, score_row(args, s, row), step.token + token);
            if (masked && (hole || !sees(args, s, step, token, row))) x = kNegInf;
          }
        }
    }
}

// One step, whose KV is in `stage`. warpgroup: which one this is.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, const Step& step, u32 stage, Operands& shared,
                        Attention& a, int warpgroup) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  Weights& own = shared.weights[kColumnsAreSplit ? warpgroup : 0];
  const u32 q = shared_address(shared.q), weights = shared_address(own.p), v = stage + kVOffset,
            v_columns = v + (kColumnsAreSplit ? (u32)(warpgroup * kOutTiles * kPanelBytes) : 0);
  float score[kTokenBlocks][kRowTiles][4];
#if defined(LEAN_SCALES)
  const float k_scale = k_scale_of(args, s, 0, true);
#endif
  wgmma_begin();
#pragma unroll
  for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; k++)  // 16 dims are 32 bytes of a panel's rows
      wgmma_shared<0, 0>(
          score[block],
          matrix_descriptor<0, 1024, true>(stage + (u32)(k / 4 * kPanelBytes + block * 64 * 128 + k % 4 * 32)),
          matrix_descriptor<0, 1024, true>(q + (u32)(k / 4 * kRowTiles * 1024 + k % 4 * 32)), k > 0);
  wgmma_end(score);
#if defined(LEAN_SCALES)
  scale_scores(score, k_scale);
#endif

  if (step.count < kStepTokens) zero_v_rows(v, step.count);
  const Holes holes = step_holes(args, s, step, stage);
  if constexpr (kSelectionBlock > 0 && !kGathers) {
    if (any_hole(holes)) zero_v_holes(v, holes);
  }
  finish_scores(args, s, step, holes, score);

#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    float m[2] = {kNegInf, kNegInf};
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int block = 0; block < kTokenBlocks; block++)
        m[i] = fmaxf(m[i], fmaxf(score[block][tile][i], score[block][tile][i + 2]));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        m[i] = fmaxf(m[i], __shfl_xor_sync(kFullMask, m[i], distance));
    }
    if (g == 0) *(float2*)&own.max[warp][tile * 8 + 2 * c] = make_float2(m[0], m[1]);
  }
  sync_warpgroup(warpgroup);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    float m[2] = {a.max[tile][0], a.max[tile][1]};
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const float2 other = *(const float2*)&own.max[w][tile * 8 + 2 * c];
      m[0] = fmaxf(m[0], other.x), m[1] = fmaxf(m[1], other.y);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      // Subtracting before scaling keeps differences near the maximum exact, however large the scores are.
      const float reference = reference_of(m[i]), factor = exp2_approx((a.max[tile][i] - reference) * args.scale_log2);
      a.max[tile][i] = m[i];
      a.sum[tile][i] *= factor;
#pragma unroll
      for (int d = 0; d < kOutTiles; d++) a.out[d][tile][i] *= factor, a.out[d][tile][i + 2] *= factor;
#pragma unroll
      for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float& x = score[block][tile][2 * half + i];
          x = exp2_approx((x - reference) * args.scale_log2);
          a.sum[tile][i] += x;
        }
    }
#pragma unroll
    for (int block = 0; block < kTokenBlocks; block++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *(u32*)&own.p[tile][(block * 64 + warp * 16 + half * 8 + g) * 16 + c * 4] =
            Operand::pack(score[block][tile][2 * half], score[block][tile][2 * half + 1]);
  }
  fence_async_proxy();
  sync_warpgroup(warpgroup);

  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int d = 0; d < kOutTiles; d++)
#pragma unroll
    for (int k = 0; k < kStepTokens / 16; k++)  // 16 tokens are two atoms of eight
      wgmma_shared<1, 1>(a.out[d], matrix_descriptor<0, 1024, true>(v_columns + (u32)(d * kPanelBytes + k * 2048)),
                         matrix_descriptor<128, kStepTokens * 16, false>(weights + (u32)(k * 256)), true);
  wgmma_end(a.out);
}

// Adds up the lanes' and then the warps' shares of the row sums.
LEAN_DEVICE void reduce_sums(Attention& a, Operands& shared, int warpgroup) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  Weights& own = shared.weights[kColumnsAreSplit ? warpgroup : 0];
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        a.sum[tile][i] += __shfl_xor_sync(kFullMask, a.sum[tile][i], distance);
    if (g == 0) *(float2*)&own.sum[warp][tile * 8 + 2 * c] = make_float2(a.sum[tile][0], a.sum[tile][1]);
  }
  sync_warpgroup(warpgroup);
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++) {
    a.sum[tile][0] = a.sum[tile][1] = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const float2 of_warp = *(const float2*)&own.sum[w][tile * 8 + 2 * c];
      a.sum[tile][0] += of_warp.x, a.sum[tile][1] += of_warp.y;
    }
  }
}

// Hands the warpgroup's state to the merge buffer.
template <class Buffer>
LEAN_DEVICE void store_state(Buffer& buffer, const Attention& a) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kRowTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = tile * 8 + 2 * c + i;
      if (g == 0 && warp % 4 == 0)  // the same in all warps of a warpgroup
        buffer.max[warp / 4][row] = a.max[tile][i], buffer.sum[warp / 4][row] = a.sum[tile][i];
      if (row < kRows) {
#pragma unroll
        for (int d = 0; d < kOutTiles; d++) {
          float* out = &buffer.out[warp / 4][row][d * 64 + warp % 4 * 16 + g / 2 * 4 + g % 2];
          out[0] = a.out[d][tile][i], out[2] = a.out[d][tile][i + 2];
        }
      }
    }
}
