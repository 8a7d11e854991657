// attend/wgmma_rows.cuh -- one warpgroup, one step, with more than 32 query rows: S = Q K^T, online softmax, O += P V.
// Query rows sit on the 64 matrix rows and tokens (then dims) on the columns. So each warp owns 16 rows, the softmax
// needs no other warp, and P stays in registers (FlashAttention-3, section 3.2). Each warpgroup holds all rows, and
// they take steps in turn.

constexpr int kRowTiles = (kRows + 7) / 8;
constexpr int kStates = kWarpgroups;          // softmax states of a CTA for each row
constexpr bool kHoldsResults = kStates == 1;  // whether results stay in registers
static_assert(kRows <= 64, "a warpgroup holds 64 rows");

// What a warpgroup has in shared memory beside the ring.
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][64 * 128];  // [row][64 dims], 128-byte swizzled
};
static_assert(sizeof(Operands) == lean_row_operand_bytes(kHeadDim), "host and device must agree on the operands");

// Where results wait to be written, in place of q: the bytes of a warpgroup, and a barrier of those that share them.
constexpr int kHeldBytes = sizeof(Operands::q);
LEAN_DEVICE void sync_held() { sync_workers(); }

LEAN_DEVICE int first_row() { return 0; }  // that the calling warpgroup holds

// The 16-byte chunks of q that this thread carries to shared memory.
constexpr int kQColumns = kHeadDim / 8;
constexpr int kQChunksPerThread = 64 * kQColumns / 128;
struct Query {
  uint4 chunk[kQChunksPerThread];
};

LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Query& q) {
#pragma unroll
  for (int i = 0; i < kQChunksPerThread; i++) {
    const int chunk = i * 128 + (int)threadIdx.x % 128;
    const Row row = row_of(s.query, s.row_block, chunk / kQColumns);
    q.chunk[i] = row.valid ? rotated_16(args, query_row(args, s, row), chunk % kQColumns * 8, query_index(s, row))
                           : make_uint4(0, 0, 0, 0);
  }
}

LEAN_DEVICE void store_query(const LeanDecodeArgs&, const Segment&, Operands& shared, const Query& q) {
#pragma unroll
  for (int i = 0; i < kQChunksPerThread; i++) {
    const int chunk = i * 128 + (int)threadIdx.x % 128, row = chunk / kQColumns, column = chunk % kQColumns;
    *(uint4*)&shared.q[column / 8][row * 128 + ((column ^ row) % 8) * 16] = query_16(q.chunk[i]);
  }
  fence_async_proxy();
}

// One step, whose KV is in `stage`.
LEAN_DEVICE void attend(const LeanDecodeArgs& args, const Segment& s, const Step& step, u32 stage, Operands& shared,
                        Attention& a, int warpgroup) {
  constexpr int kTokenTiles = kStepTokens / 8;
  const u32 q = shared_address(shared.q), v = stage + kVOffset;
  float score[kTokenTiles][4];
#if defined(LEAN_SCALES)
  const float k_scale = k_scale_of(args, s, 0, true);
#endif
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; k++)  // 16 dims are 32 bytes of a panel's rows
    wgmma_shared<0, 0>(score, matrix_descriptor<0, 1024, true>(q + (u32)(k / 4 * 64 * 128 + k % 4 * 32)),
                       matrix_descriptor<0, 1024, true>(stage + (u32)(k / 4 * kPanelBytes + k % 4 * 32)), k > 0);
  wgmma_end(score);
#if defined(LEAN_SCALES)
  scale_scores(score, k_scale);
#endif

  if (step.count < kStepTokens) {
    zero_v_rows(v, step.count);
    fence_async_proxy();
    sync_warpgroup(warpgroup);
  }
  const Holes holes = step_holes(args, s, step, stage);
  if constexpr (kSelectionBlock > 0 && !kGathers) {
    if (any_hole(holes)) {
      zero_v_holes(v, holes);
      fence_async_proxy();
      sync_warpgroup(warpgroup);
    }
  }
  finish_scores(args, s, step, holes, any_hole(holes) || has_masked(s, step), 0, score);

  float factor[2];
  u32 weight[kTokenTiles][2];
  bool rescales = false;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float reference, sum = 0.0f;
    rescales |= raise_maximum(a.max[half], score, half, args.scale_log2, reference, factor[half]);
#pragma unroll
    for (int tile = 0; tile < kTokenTiles; tile++)
      sum += weigh(score[tile], half, reference, args.scale_log2, weight[tile][half]);
    a.sum[half] = fmaf(a.sum[half], factor[half], sum);
  }
  if (__any_sync(kFullMask, rescales)) rescale(a, factor);

  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++) {  // 16 tokens are two atoms of eight
    const u32 p[4] = {weight[2 * k][0], weight[2 * k][1], weight[2 * k + 1][0], weight[2 * k + 1][1]};
    wgmma_registers<1>(a.out, p, matrix_descriptor<kPanelBytes, 1024, true>(v + (u32)(k * 2048)), true);
  }
  wgmma_end(a.out);
}

// Hands the warpgroup's state to the merge buffer.
template <class Buffer>
LEAN_DEVICE void store_state(Buffer& buffer, const Attention& a) {
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4,
            c = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = warp * 16 + half * 8 + g;
    if (row >= kRows) continue;
    if (c == 0) buffer.max[warpgroup][row] = a.max[half], buffer.sum[warpgroup][row] = a.sum[half];
#pragma unroll
    for (int d = 0; d < kValueDim / 8; d++)
      *(float2*)&buffer.out[warpgroup][row][d / 2 * 16 + 4 * c + d % 2 * 2] =
          make_float2(a.out[d][2 * half], a.out[d][2 * half + 1]);
  }
}
