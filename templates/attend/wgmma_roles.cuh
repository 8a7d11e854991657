// attend/wgmma_roles.cuh -- the steps of a segment, where O has more columns than the registers of a warpgroup hold.
// Two warpgroups hold one half of O's columns each. The first one, the leader, also computes S = Q K^T and the online
// softmax. It multiplies its half of V with the weights P from its registers, and leaves P in shared memory for the
// other one, the follower. Query rows sit on the 64 matrix rows.
//
// The leader issues S of a step right behind O += P V of the step before, so that the matrix unit goes on while it
// waits (but see kReleasesFirst). P takes the place of the step's last 64 columns of K, which are no part of V and
// which nobody reads once S is there. Where all columns are V, a stage has a panel for P behind them. A stage has two
// parts, which become full and empty one by one: the columns of the leader's half of V, and all others.

// Whether the leader is done with a step before it asks for the next one. With one stage the next rows come where this
// step's are. Gathered rows take longer to come than a stage is read, so the stage should be free early. Where rows are
// converted, the warps that convert them are the limit instead. In these and all other kernels the matrix unit should
// have S of the next step to go on with.
constexpr bool kReleasesFirst = kStages == 1 || (kGathers && !kConvertsRows);
constexpr int kHalfValueDim = kValueDim / 2;
constexpr int kOutTiles = kHalfValueDim / 8;  // eight-dim tiles of a warpgroup
static_assert(kRows <= 64 && kWarpgroups == 2, "a warpgroup has 64 matrix rows, and there are two halves of O");
#if defined(LEAN_WEIGHTS_BESIDE)
static_assert(kStepTokens == 64, "P has 64 columns, and a panel holds them");
constexpr int kWeightPanel = kKPanels;
#else
static_assert(kStepTokens == 64 && kKPanels > kVPanels, "P has 64 columns, and a panel of K holds them");
constexpr int kWeightPanel = kKPanels - 1;
#endif

// O stays as lanes hold it: of 16 dims, position 4 c + i is dim 2c + i, and position 4 c + 2 + i is dim 8 + 2c + i.
constexpr int kSecondPair = 8;
LEAN_DEVICE int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }

// The softmax state of a step's rows.
struct StepRows {
  float max[64], sum[64];  // of the segment, there after its last step
  float factor[64];        // what O of the steps before is worth
};

// What the CTA has in shared memory beside the ring.
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][64 * 128];  // [row][64 dims], 128-byte swizzled
  StepRows rows[kStages];
};
static_assert(sizeof(Operands) == lean_role_operand_bytes(kHeadDim, kStages), "host and device must agree on them");

// Where results wait to be written, in place of q: the bytes of a warpgroup, and a barrier of those that share them.
constexpr int kHeldBytes = sizeof(Operands::q) / 2;
LEAN_DEVICE void sync_held() { sync_workers(); }

// `weighed` of the stages: the weights of the step are there.
LEAN_DEVICE u32 weighed_barriers() {
  __shared__ __align__(8) u64 barriers[kStages];
  return shared_address(barriers);
}
LEAN_DEVICE void init_weighed(u32 barriers) {
#pragma unroll
  for (int s = 0; s < kStages; s++) init_barrier(barriers + (u32)(s * 8), 4);  // the leader's warps
}

LEAN_DEVICE u32 weights_of(u32 stage) { return stage + kWeightPanel * kPanelBytes; }

// A warpgroup's half of O: (row g, dim 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1) of each eight dims, and the
// rows' state. Maxima are in raw score units and the true running ones.
struct Attention {
  float out[kOutTiles][4];
  float max[2], sum[2];  // sum: of this lane's tokens until the segment ends
};

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int d = 0; d < kOutTiles; d++) a.out[d][0] = a.out[d][1] = a.out[d][2] = a.out[d][3] = 0.0f;
  a.max[0] = a.max[1] = kNegInf, a.sum[0] = a.sum[1] = 0.0f;
}

LEAN_DEVICE void rescale(Attention& a, const float (&factor)[2]) {
#pragma unroll
  for (int d = 0; d < kOutTiles; d++) {
    a.out[d][0] *= factor[0], a.out[d][1] *= factor[0];
    a.out[d][2] *= factor[1], a.out[d][3] *= factor[1];
  }
}

// Issues what a part of the step in stage `at` adds to S = Q K^T, as one group of instructions, when the part is there.
LEAN_DEVICE void issue_scores(const LeanDecodeArgs& args, const KvRing& ring, const RingPosition& at, int part,
                              const Operands& shared, float (&score)[kStepTokens / 8][4]) {
  u32 q = shared_address(shared.q);
  asm volatile("" : "+r"(q));  // lest the descriptors of all of q be kept from step to step
  const u64 rows = matrix_descriptor<0, 1024, true>(q),
            tokens = matrix_descriptor<0, 1024, true>(ring.stages + at.stage * kStageBytes);
  wait_ring(args, full_barriers(ring, at) + (u32)(part * 8), at.parity);
  if constexpr (kGathers) fence_async_proxy();
  wgmma_begin();
#pragma unroll
  for (int k = first_panel(part) * 4; k < first_panel(part + 1) * 4; k++)  // 16 dims are 32 bytes of a panel's rows
    wgmma_shared<0, 0>(score, operand_behind(rows, k / 4 * 64 * 128 + k % 4 * 32),
                       operand_behind(tokens, k / 4 * kPanelBytes + k % 4 * 32), k > 0);
  wgmma_commit();
}

// Stores the weights of a step, and what O of the steps before is worth, for the follower. Nobody reads K of the step
// any more once the leader's warps have met here.
LEAN_DEVICE void store_weights(u32 stage, const u32 (&weight)[kStepTokens / 8][2], const float (&factor)[2],
                               StepRows& rows) {
  int thread = threadIdx.x % 128;
  asm volatile("" : "+r"(thread));  // lest addresses be kept from step to step
  const int warp = thread / 32, lane = thread % 32;
  sync_warpgroup(0);
  // A lane names 16 bytes of one row: of 16 rows by two pieces, the pieces of tokens 0 .. 7 and 8 .. 15.
  const int row = warp * 16 + lane % 16;
  const u32 first = weights_of(stage) + (u32)(row * 128 + (lane / 16 ^ row % 8) * 16);
#pragma unroll
  for (int tile = 0; tile < kStepTokens / 8; tile += 2)
    store_matrices(first ^ (u32)(tile * 16), weight[tile][0], weight[tile][1], weight[tile + 1][0],
                   weight[tile + 1][1]);
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; half++) rows.factor[warp * 16 + half * 8 + lane / 4] = factor[half];
  }
  fence_async_proxy();
  __syncwarp();
}

// Makes the weights of a step, and issues the leader's O += P V as one group of instructions: those of 16 tokens as
// soon as their weights are there, so that the matrix unit works while the next ones are made.
LEAN_DEVICE void issue_values(const LeanDecodeArgs& args, u32 stage, const float (&score)[kStepTokens / 8][4],
                              const float (&reference)[2], Attention& a, u32 (&weight)[kStepTokens / 8][2]) {
  const u64 values = matrix_descriptor<kPanelBytes, 1024, true>(stage + kVOffset);
  pin(a.out);
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++) {  // 16 tokens are two atoms of eight rows of V
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int tile = 2 * k + i / 2, half = i % 2;
      a.sum[half] += weigh(score[tile], half, reference[half], args.scale_log2, weight[tile][half]);
    }
    const u32 p[4] = {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0], weight[2 * k + 1][1]};
    wgmma_begin();
    wgmma_registers<1>(a.out, p, operand_behind(values, k * 2048), true);
  }
  wgmma_commit();
}

// What the leader knows of a step before its scores are there, so that little is left to do between these and P.
struct StepOutlook {
  Step step;
  bool last;   // of the segment
  bool plain;  // all tokens are there and seen by all rows, and no score changes
};
LEAN_DEVICE StepOutlook outlook(const Segment& s, int read, u32 stage) {
  StepOutlook o = {step_at(s, read)};
  o.last = !__any_sync(kFullMask, read + kStepTokens < end_read(s));
  o.plain = !__any_sync(kFullMask, kChangesScores || has_masked(s, o.step) || may_have_holes(stage));
  return o;
}

// Masks and changes the scores of a step that is not plain. Rows of V that are not there become zeros, because the
// weights of 0 would not make 0 of a NaN.
LEAN_DEVICE void finish_step(const LeanDecodeArgs& args, const Segment& s, const Step& step, u32 stage,
                             float (&score)[kStepTokens / 8][4]) {
  const Holes holes = step_holes(args, s, step, stage);
  bool zeroes = !kGathers && step.count < kStepTokens;  // where rows are gathered they arrive as zeros
  if constexpr (kSelectionBlock > 0 && !kGathers) zeroes |= any_hole(holes);
  if (zeroes) {
    sync_warpgroup(0);  // nobody reads K any more, of which V is a part
    if (step.count < kStepTokens) zero_v_rows(stage + kVOffset, step.count);
    if constexpr (kSelectionBlock > 0 && !kGathers) {
      if (any_hole(holes)) zero_v_holes(stage + kVOffset, holes);
    }
    fence_async_proxy();
    sync_warpgroup(0);
  }
  finish_scores(args, s, step, holes, any_hole(holes) || has_masked(s, step), 0, score);
}

// The segment's steps, as the leader takes them. at: the stage of the first one, then that of the next segment's.
LEAN_DEVICE void lead(const LeanDecodeArgs& args, const Segment& s, const KvRing& ring, u32 weighed, Operands& shared,
                      RingPosition& at, Attention& a) {
  const bool signals = threadIdx.x % 32 == 0;
  float score[kStepTokens / 8][4], factor[2], reference[2];
#if defined(LEAN_SCALES)
  const float k_scale = k_scale_of(args, s, 0, true);
#endif
  int read = first_read(s);
  u32 stage = ring.stages + at.stage * kStageBytes, weight[kStepTokens / 8][2];
  if (!__any_sync(kFullMask, read < end_read(s))) return;
#if defined(LEAN_APPENDS_TO_STAGE)
  const NewChunk fresh = load_new_chunk(args, s, threadIdx.x);
  append_to_stage(args, s, step_at(s, read), ring, at, fresh, 0);
#endif
#pragma unroll
  for (int part = 0; part < kStageParts; part++) issue_scores(args, ring, at, part, shared, score);
  StepOutlook known = outlook(s, read, stage);
  wgmma_wait<0>();
  pin(score);
#pragma unroll 1
  for (;;) {
#if defined(LEAN_SCALES)
    scale_scores(score, k_scale);
#endif
    if (!known.plain) finish_step(args, s, known.step, stage, score);
    bool rises = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      rises |= raise_maximum(a.max[half], score, half, args.scale_log2, reference[half], factor[half]);
      a.sum[half] *= factor[half];
    }
    if (__any_sync(kFullMask, rises)) rescale(a, factor);
    if (known.last) break;
    issue_values(args, stage, score, reference, a, weight);
    store_weights(stage, weight, factor, shared.rows[at.stage]);
    if (signals) arrive(weighed + at.stage * 8);
    const u32 empty = empty_barriers(ring, at);
    at.next();
    read += kStepTokens;
    stage = ring.stages + at.stage * kStageBytes;
    if constexpr (kReleasesFirst) {
      wgmma_wait<0>();
      if (signals) release(empty);
    }
#if defined(LEAN_APPENDS_TO_STAGE)
    append_to_stage(args, s, step_at(s, read), ring, at, fresh, 0);
#endif
#pragma unroll
    for (int part = 0; part < kStageParts; part++) {
      issue_scores(args, ring, at, part, shared, score);
      if (kReleasesFirst || part > 0) continue;
      wgmma_wait<1>();
      if (signals) release(empty);
    }
    known = outlook(s, read, stage);
    wgmma_wait<0>();
    pin(score);
    pin(a.out);
  }
  issue_values(args, stage, score, reference, a, weight);
  StepRows& rows = shared.rows[at.stage];
  add_lanes(a.sum);
  if (threadIdx.x % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
      rows.max[row] = a.max[half], rows.sum[row] = a.sum[half];
    }
  }
  store_weights(stage, weight, factor, rows);
  if (signals) arrive(weighed + at.stage * 8);
  wgmma_wait<0>();
  pin(a.out);
  if (signals) release(empty_barriers(ring, at));
  at.next();
}

// The segment's steps, as the follower takes them.
LEAN_DEVICE void follow(const LeanDecodeArgs& args, const Segment& s, const KvRing& ring, u32 weighed,
                        const Operands& shared, RingPosition& at, Attention& a) {
  const int end = end_read(s), row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll 1
  for (int read = first_read(s); read < end; read += kStepTokens) {
    const u32 stage = ring.stages + at.stage * kStageBytes, empty = empty_barriers(ring, at) + (kStageParts - 1) * 8;
    const StepRows& rows = shared.rows[at.stage];
    wait_ring(args, full_barriers(ring, at) + (kStageParts - 1) * 8, at.parity);
    wait_ring(args, weighed + at.stage * 8, at.parity);
    if constexpr (kGathers) fence_async_proxy();
    const float factor[2] = {rows.factor[row], rows.factor[row + 8]};
    if (__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) rescale(a, factor);
    at.next();
    const bool more = read + kStepTokens < end;
    const u64 weights = matrix_descriptor<0, 1024, true>(weights_of(stage)),
              values = matrix_descriptor<kPanelBytes, 1024, true>(stage + kVOffset + kVPanels / 2 * kPanelBytes);
    pin(a.out);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kStepTokens / 16; k++)
      wgmma_values<0, 1>(a.out, operand_behind(weights, k * 32), operand_behind(values, k * 2048), true);
    wgmma_end(a.out);
    if (!more) {
#pragma unroll
      for (int half = 0; half < 2; half++)
        a.max[half] = rows.max[row + half * 8], a.sum[half] = rows.sum[row + half * 8];
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) release(empty);
  }
}
