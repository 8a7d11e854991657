// attend/wgmma_roles.cuh -- one step, where O has more columns than the registers of a warpgroup hold. One warpgroup,
// the weigher, computes S = Q K^T and the online softmax, and leaves the weights P in shared memory. Two others, the
// value warpgroups, hold one half of O's columns each and compute O += P V. Query rows sit on the 64 matrix rows. The
// weigher is a step ahead of the others, so that the matrix unit multiplies while it takes exponentials.
//
// P takes the place of the step's last 64 columns of K, which are no part of V and which nobody reads once S is there.
// So a stage has everything of its step, and its two barriers are enough: `weighed` says that P is there, `empty` that
// nobody needs the stage.

constexpr int kHalfValueDim = kValueDim / 2;
constexpr int kOutTiles = kHalfValueDim / 8;  // eight-dim tiles of a value warpgroup
constexpr int kQuarterTiles = kOutTiles / 2;  // and of one of its matrix instructions
static_assert(kRows <= 64 && kWarpgroups == 2, "a warpgroup has 64 matrix rows, and there are two halves of O");
static_assert(kStepTokens == 64 && kKPanels > kVPanels, "P has 64 columns, and a panel of K holds them");

// O stays as lanes hold it: of 16 dims, position 4 c + i is dim 2c + i, and position 4 c + 2 + i is dim 8 + 2c + i.
constexpr int kSecondPair = 8;
LEAN_DEVICE int first_dim(int position) { return position / 16 * 16 + position % 16 / 2; }

// The softmax state of a step's rows.
struct StepRows {
  float max[64], sum[64];  // sum: of the segment up to this step, there only after its last one
  float factor[64];        // what O of the steps before is worth
};

// What the CTA has in shared memory beside the ring.
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][64 * 128];  // [row][64 dims], 128-byte swizzled
  StepRows rows[kStages];
};
static_assert(sizeof(Operands) == lean_role_operand_bytes(kHeadDim, kStages), "host and device must agree on them");

LEAN_DEVICE u32 weights_of(u32 stage) { return stage + (kKPanels - 1) * kPanelBytes; }

// A barrier of the weigher's warps. 3 and 4 are the value warpgroups' own.
LEAN_DEVICE void sync_weigher() { asm volatile("bar.sync 5, 128;" ::: "memory"); }

// Loads the rows of q to shared memory. To be called by the weigher.
LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Operands& shared) {
  constexpr int kColumnChunks = kHeadDim / 8, kChunksPerThread = 64 * kColumnChunks / 128;
  sync_weigher();  // all have read the rows before
#pragma unroll(kChunksPerThread % 4 == 0 ? 4 : 1)
  for (int i = 0; i < kChunksPerThread; i++) {
    const int at = i * 128 + (int)threadIdx.x % 128, index = at / kColumnChunks, column = at % kColumnChunks;
    const Row row = row_of(s.query, s.row_block, index);
    unsigned char* const to = &shared.q[column / 8][index * 128 + ((column ^ index) % 8) * 16];
    if constexpr (kRotates) {
      *(uint4*)to = row.valid ? rotated_16(args, query_row(args, s, row), column * 8, query_index(s, row))
                              : make_uint4(0, 0, 0, 0);
    } else {
      // An address must be valid even if none of its bytes are copied.
      const char* const from = row.valid ? query_row(args, s, row) + column * 16 : (const char*)args.q;
      copy_async_16(shared_address(to), from, row.valid);
    }
  }
  if constexpr (!kRotates) asm volatile("cp.async.wait_all;" ::: "memory");
  fence_async_proxy();
  sync_weigher();
}

// The weigher's state of rows g and g + 8 of the warp's 16. Maxima are in raw score units and the true running ones.
struct Softmax {
  float max[2] = {kNegInf, kNegInf};
  float sum[2] = {0.0f, 0.0f};  // of this lane's tokens
};

// The weights of a step, whose KV arrives in `stage` as the barriers from `full` on say. last: whether it is the
// segment's last one.
LEAN_DEVICE void weigh_step(const LeanDecodeArgs& args, const Segment& s, const Step& step, bool last, u32 stage,
                            u32 full, u32 parity, Operands& shared, StepRows& rows, Softmax& softmax) {
  u32 q = shared_address(shared.q);
  asm volatile("" : "+r"(q));  // lest the descriptors of all of q be kept from step to step
  float score[kStepTokens / 8][4];
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; k++) {  // 16 dims are 32 bytes of a panel's rows
    if (k % (kPartPanels * 4) == 0) {
      if (k > 0) wgmma_commit();
      wait_ring(args, full + (u32)(k / (kPartPanels * 4) * 8), parity);
      if constexpr (kGathers) fence_async_proxy();
      wgmma_begin();
    }
    wgmma_shared<0, 0>(score, matrix_descriptor<0, 1024, true>(q + (u32)(k / 4 * 64 * 128 + k % 4 * 32)),
                       matrix_descriptor<0, 1024, true>(stage + (u32)(k / 4 * kPanelBytes + k % 4 * 32)), k > 0);
  }
  wgmma_end(score);
  sync_weigher();  // nobody reads K any more

  if (step.count < kStepTokens) zero_v_rows(stage + kVOffset, step.count);
  const Holes holes = step_holes(args, s, step, stage);
  if constexpr (kSelectionBlock > 0 && !kGathers) {
    if (any_hole(holes)) zero_v_holes(stage + kVOffset, holes);
  }
  finish_scores(args, s, step, holes, 0, score);
  float factor[2];
  u32 weight[kStepTokens / 8][2];
  weigh(softmax.max, softmax.sum, score, args.scale_log2, factor, weight);

  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  float sum[2] = {softmax.sum[0], softmax.sum[1]};
  if (last) add_lanes(sum);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = warp * 16 + half * 8 + g;
#pragma unroll
    for (int tile = 0; tile < kStepTokens / 8; tile++)
      asm volatile(
          "st.shared.u32 [%0], %1;" ::"r"(weights_of(stage) + (u32)(row * 128 + (tile ^ row % 8) * 16 + c * 4)),
          "r"(weight[tile][half])
          : "memory");
    if (c == 0) rows.max[row] = softmax.max[half], rows.sum[row] = sum[half], rows.factor[row] = factor[half];
  }
  fence_async_proxy();
  __syncwarp();
}

// A value warpgroup's half of O: (row g, dim 2c) (g, 2c + 1) (g + 8, 2c) (g + 8, 2c + 1) of each eight dims, and the
// rows' state.
struct Attention {
  float out[kOutTiles][4];
  float max[2], sum[2];
};

LEAN_DEVICE void clear(Attention& a) {
#pragma unroll
  for (int d = 0; d < kOutTiles; d++) a.out[d][0] = a.out[d][1] = a.out[d][2] = a.out[d][3] = 0.0f;
  a.max[0] = a.max[1] = kNegInf, a.sum[0] = a.sum[1] = 0.0f;
}

// Adds a step to O. half: which of the value warpgroups this is.
LEAN_DEVICE void add_values(u32 stage, const StepRows& rows, int half, Attention& a) {
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const float factor[2] = {rows.factor[row], rows.factor[row + 8]};
  if (__any_sync(kFullMask, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
    for (int d = 0; d < kOutTiles; d++) {
      a.out[d][0] *= factor[0], a.out[d][1] *= factor[0];
      a.out[d][2] *= factor[1], a.out[d][3] *= factor[1];
    }
  }
  const u32 p = weights_of(stage), v = stage + kVOffset + (u32)(half * (kVPanels / 2) * kPanelBytes);
  constexpr int kQuarterBytes = kVPanels / 4 * kPanelBytes;
  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++)  // 16 tokens are two atoms of eight rows of V
#pragma unroll
    for (int part = 0; part < 2; part++)
      wgmma_values<0, 1>(*(float(*)[kQuarterTiles][4]) & a.out[part * kQuarterTiles],
                         matrix_descriptor<0, 1024, true>(p + (u32)(k * 32)),
                         matrix_descriptor<kPanelBytes, 1024, true>(v + (u32)(part * kQuarterBytes + k * 2048)), true);
  wgmma_end(a.out);
}

// Takes over the rows' state after a segment's last step, while the stage still belongs to its readers.
LEAN_DEVICE void take_state(const StepRows& rows, Attention& a) {
  const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) a.max[half] = rows.max[row + half * 8], a.sum[half] = rows.sum[row + half * 8];
}
