// attend/wgmma_roles.cuh -- one step, where O has more columns than the registers of a warpgroup hold. Two warpgroups
// hold one half of O's columns each. They take steps in turn: the one whose step it is computes S = Q K^T and the
// online softmax, keeps the weights P in registers for its own half, and leaves them in shared memory for the other. So
// one of them can multiply while the other takes exponentials. Query rows sit on the 64 matrix rows.
//
// P takes the place of the step's last 64 columns of K, which are no part of V and which nobody reads once S is there.
// So a stage has everything of its step.

constexpr int kHalfValueDim = kValueDim / 2;
constexpr int kOutTiles = kHalfValueDim / 8;  // eight-dim tiles of a warpgroup
static_assert(kRows <= 64 && kWarpgroups == 2, "a warpgroup has 64 matrix rows, and there are two halves of O");
static_assert(kStepTokens == 64 && kKPanels > kVPanels, "P has 64 columns, and a panel of K holds them");

// O stays as lanes hold it: of 16 dims, position 4 c + i is dim 2c + i, and position 4 c + 2 + i is dim 8 + 2c + i.
constexpr int kSecondPair = 8;
LEAN_DEVICE int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }

// What the warpgroup of a step tells the other one of its rows.
struct StepRows {
  float max[64];     // running maximum
  float factor[64];  // what O of the steps before is worth
  float sum[64];     // of the warpgroup's steps of the segment; only with the last two steps
};

// What the CTA has in shared memory beside the ring.
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][64 * 128];  // [row][64 dims], 128-byte swizzled
  StepRows rows[kStages];
};
static_assert(sizeof(Operands) == lean_role_operand_bytes(kHeadDim, kStages), "host and device must agree on them");

LEAN_DEVICE u32 weights_of(u32 stage) { return stage + (kKPanels - 1) * kPanelBytes; }
// The first of the two rows of a lane; the other is eight further.
LEAN_DEVICE int lane_row() { return (int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4); }

// Loads the rows of q to shared memory. To be called by both warpgroups, between barriers of both.
LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Operands& shared) {
  constexpr int kColumnChunks = kHeadDim / 8, kChunksPerThread = 64 * kColumnChunks / (kWarps * 32);
  constexpr int kBatch = kRotates ? 1 : kChunksPerThread % 6 == 0 ? 6 : 2;  // loads in flight
#pragma unroll 1
  for (int first = 0; first < kChunksPerThread; first += kBatch) {
    uint4 chunk[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int at = (first + i) * (kWarps * 32) + (int)threadIdx.x;
      const Row row = row_of(s.query, s.row_block, at / kColumnChunks);
      chunk[i] = row.valid ? rotated_16(args, query_row(args, s, row), at % kColumnChunks * 8, query_index(s, row))
                           : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; i++) {
      const int at = (first + i) * (kWarps * 32) + (int)threadIdx.x, row = at / kColumnChunks,
                column = at % kColumnChunks;
      *(uint4*)&shared.q[column / 8][row * 128 + ((column ^ row) % 8) * 16] = chunk[i];
    }
  }
  static_assert(kChunksPerThread % kBatch == 0, "batches are whole");
  fence_async_proxy();
}

// A warpgroup's half of O: (row g, dim 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1) of each eight dims. The rows' state
// is there after the segment's last step.
struct Values {
  float out[kOutTiles][4];
  float max[2], sum[2];
};

// The online softmax of a warpgroup's own steps. sum: of this lane's tokens in them, under the maxima `max`.
struct Softmax {
  float max[2] = {kNegInf, kNegInf};
  float sum[2] = {0.0f, 0.0f};
};

LEAN_DEVICE void clear(Values& a) {
#pragma unroll
  for (int d = 0; d < kOutTiles; d++) a.out[d][0] = a.out[d][1] = a.out[d][2] = a.out[d][3] = 0.0f;
  a.max[0] = a.max[1] = kNegInf, a.sum[0] = a.sum[1] = 0.0f;
}

LEAN_DEVICE void rescale(Values& a, const float (&factor)[2]) {
  if (!__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int d = 0; d < kOutTiles; d++) {
    a.out[d][0] *= factor[0], a.out[d][1] *= factor[0];
    a.out[d][2] *= factor[1], a.out[d][3] *= factor[1];
  }
}

// A warpgroup's columns of V in a stage, as operand B.
LEAN_DEVICE u64 own_values(u32 stage, int warpgroup) {
  return matrix_descriptor<kPanelBytes, 1024, true>(stage + (u32)(kVOffset + warpgroup * (kVPanels / 2 * kPanelBytes)));
}

// Begins to multiply a step's q and k, whose K arrives in `stage` as the barriers from `full` on say.
LEAN_DEVICE void begin_scores(const LeanDecodeArgs& args, u32 stage, u32 full, u32 parity, const Operands& shared,
                              float (&score)[kStepTokens / 8][4]) {
  u64 q = matrix_descriptor<0, 1024, true>(shared_address(shared.q));
  asm volatile("" : "+l"(q));  // lest the descriptors of all of q be kept from step to step
  const u64 rows = matrix_descriptor<0, 1024, true>(stage);
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; k++) {  // 16 dims are 32 bytes of a panel's rows
    if (k % (kPartPanels * 4) == 0) {
      wait_ring(args, full + (u32)(k / (kPartPanels * 4) * 8), parity);
      if constexpr (kGathers) fence_async_proxy();
      wgmma_begin();
    }
    wgmma_shared<0, 0>(score, behind(q, k / 4 * 64 * 128 + k % 4 * 32), behind(rows, k / 4 * kPanelBytes + k % 4 * 32),
                       k > 0);
  }
  wgmma_commit();
}

// Begins to add a step of the other warpgroup to O.
LEAN_DEVICE void begin_values(u32 stage, int warpgroup, const StepRows& rows, Values& a) {
  const int row = lane_row();
  const float factor[2] = {rows.factor[row], rows.factor[row + 8]};
  rescale(a, factor);
  const u64 weights = matrix_descriptor<0, 1024, true>(weights_of(stage)), values = own_values(stage, warpgroup);
  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++)  // 16 tokens are two atoms of eight rows of V
    wgmma_values<0, 1>(a.out, behind(weights, k * 32), behind(values, k * 2048), true);
}

// The weights of an own step from its scores. before: the rows' maxima of all earlier steps. last: whether this is one
// of the segment's last two steps.
LEAN_DEVICE void weigh_step(const LeanDecodeArgs& args, const Segment& s, const Step& step, bool last, u32 stage,
                            StepRows& rows, const float (&before)[2], Softmax& softmax,
                            float (&score)[kStepTokens / 8][4], float (&factor)[2], u32 (&weight)[kStepTokens / 8][2]) {
  sync_warpgroup(threadIdx.x / 128);  // nobody reads K any more
  if (step.count < kStepTokens) zero_v_rows(stage + kVOffset, step.count);
  const Holes holes = step_holes(args, s, step, stage);
  if constexpr (kSelectionBlock > 0 && !kGathers) {
    if (any_hole(holes)) zero_v_holes(stage + kVOffset, holes);
  }
  finish_scores(args, s, step, holes, 0, score);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    softmax.sum[half] *= exp2_approx((softmax.max[half] - reference_of(before[half])) * args.scale_log2);
    softmax.max[half] = before[half];
  }
  weigh(softmax.max, softmax.sum, score, args.scale_log2, factor, weight);

  // Lane 8 i + r says where row r of a block of eight rows and eight tokens goes: of the warp's rows and tokens 0 .. 7,
  // rows 8 .. 15, and the same of the next eight tokens.
  const int lane = threadIdx.x % 32, c = lane % 4;
  const int place_row = (int)(threadIdx.x / 32 % 4) * 16 + lane % 16;
  const u32 place = weights_of(stage) + (u32)(place_row * 128);
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     place + (u32)((2 * k + lane / 16 ^ place_row % 8) * 16)),
                 "r"(weight[2 * k][0]), "r"(weight[2 * k][1]), "r"(weight[2 * k + 1][0]), "r"(weight[2 * k + 1][1])
                 : "memory");
  float sum[2] = {softmax.sum[0], softmax.sum[1]};
  if (last) add_lanes(sum);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane_row() + half * 8;
    if (c == 0) rows.max[row] = softmax.max[half], rows.sum[row] = sum[half], rows.factor[row] = factor[half];
  }
  fence_async_proxy();
  __syncwarp();
}

// Adds an own step, whose weights are in registers, to O.
LEAN_DEVICE void add_own_values(u32 stage, int warpgroup, const float (&factor)[2],
                                const u32 (&weight)[kStepTokens / 8][2], Values& a) {
  rescale(a, factor);
  const u64 values = own_values(stage, warpgroup);
  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++) {
    const u32 p[4] = {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0], weight[2 * k + 1][1]};
    wgmma_registers<1>(a.out, p, behind(values, k * 2048), true);
  }
  wgmma_end(a.out);
}
