// attend/wgmma_prefill.cuh -- the steps of a segment with many query rows, where the matrix unit is the limit: S = Q
// K^T, online softmax, O += P V. Each warpgroup holds 64 query rows, on the matrix rows, and all take every step.
// Tokens, then dims, sit on the columns. So each warp owns 16 rows, the softmax needs no other warp, and P stays in
// registers.
//
// A warpgroup issues S of a step and behind it O += P V of the step before, so that the matrix unit works on the latter
// during the softmax (FlashAttention-3, section 3), and for the other warpgroup meanwhile. Warpgroups meet only where
// an output tile is shared with other CTAs. A stage has two parts, K and V, which become full and empty one by one.

constexpr int kStates = 1;  // softmax states of a CTA for each row
constexpr bool kHoldsResults = true;
static_assert(kRows <= 64 * kWarpgroups && kStageParts == 2, "a warpgroup holds 64 rows, and takes K before V");

// What a warpgroup has in shared memory beside the ring.
struct alignas(kLeanAtomBytes) Operands {
  unsigned char q[kKPanels][64 * 128];  // [row][64 dims], 128-byte swizzled
};
static_assert(sizeof(Operands) == lean_row_operand_bytes(kHeadDim), "host and device must agree on the operands");

// Where results wait to be written, in place of q: the bytes of a warpgroup, and a barrier of those that share them.
constexpr int kHeldBytes = sizeof(Operands);
LEAN_DEVICE void sync_held() { sync_warpgroup(threadIdx.x / 128); }

// The first row that the calling warpgroup holds.
LEAN_DEVICE int first_row() { return (int)threadIdx.x / 128 * 64; }

// Whether any of the warpgroup's rows exists.
LEAN_DEVICE bool has_rows(const Segment& s, int warpgroup) {
  return s.row_block * kRows + warpgroup * 64 < s.query.count * kGroup;
}

struct Query {};
// Asks L2 for the warpgroup's rows of q.
LEAN_DEVICE void load_query(const LeanDecodeArgs& args, const Segment& s, Query&) {
  constexpr int kLines = kHeadDim / 64;  // of a row
#pragma unroll
  for (int i = threadIdx.x % 128; i < 64 * kLines; i += 128) {
    const Row row = row_of(s.query, s.row_block, first_row() + i / kLines);
    if (row.valid)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(query_row(args, s, row) + i % kLines * 128) : "memory");
  }
}

// Loads the warpgroup's rows of q to shared memory.
LEAN_DEVICE void store_query(const LeanDecodeArgs& args, const Segment& s, Operands& shared, const Query&) {
  load_query_rows(args, s, first_row(), (int)threadIdx.x / 128, shared.q);
}

// Warpgroups take turns at issuing, the first one first, in all output tiles where more than one has rows: then one of
// them makes its weights while the matrix unit works for the others. A turn begins when the one before it has ended,
// and the turn behind an output tile is the first warpgroup's. Barrier 7 is the producer's.
constexpr int kFirstTurn = kFirstBarrier + (kWarpgroups == 2 ? 5 : 8);
LEAN_DEVICE void begin_turn(int warpgroup) {
  asm volatile("bar.sync %0, 256;" ::"r"(kFirstTurn + warpgroup) : "memory");
}
LEAN_DEVICE void pass_turn(int to) { asm volatile("bar.arrive %0, 256;" ::"r"(kFirstTurn + to) : "memory"); }
static_assert(kWarpgroups == 2 || kWarpgroups == 3, "of which there are barriers");

// The warpgroup whose turn follows.
LEAN_DEVICE int next_in_turn(const Segment& s, int warpgroup) {
  if constexpr (kWarpgroups == 2) return warpgroup ^ 1;
  return warpgroup + 1 < kWarpgroups && has_rows(s, warpgroup + 1) ? warpgroup + 1 : 0;
}

// Issues S = Q K^T of the step at `at`, as one group of instructions.
LEAN_DEVICE void issue_scores(const KvRing& ring, const RingPosition& at, u32 q, float (&score)[kStepTokens / 8][4]) {
  const u64 rows = matrix_descriptor<0, 1024, true>(q),
            tokens = matrix_descriptor<0, 1024, true>(ring.stages + at.stage * kStageBytes);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; k++)  // 16 dims are 32 bytes of a panel's rows
    wgmma_shared<0, 0>(score, operand_behind(rows, k / 4 * 64 * 128 + k % 4 * 32),
                       operand_behind(tokens, k / 4 * kPanelBytes + k % 4 * 32), k > 0);
  wgmma_commit();
}

// Issues O += P V of the step at `at`, as one group of instructions.
LEAN_DEVICE void issue_values(const KvRing& ring, const RingPosition& at, const u32 (&weight)[kStepTokens / 16][4],
                              Attention& a) {
  const u64 values = matrix_descriptor<kPanelBytes, 1024, true>(ring.stages + at.stage * kStageBytes + kVOffset);
  pin(a.out);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kStepTokens / 16; k++)  // 16 tokens are two atoms of eight rows of V
    wgmma_registers<1>(a.out, weight[k], operand_behind(values, k * 2048), true);
  wgmma_commit();
}

// Waits for K of a step, and for V of the one before.
LEAN_DEVICE void wait_for_both(const LeanDecodeArgs& args, const KvRing& ring, const RingPosition& at,
                               const RingPosition& before) {
  const u32 keys = full_barriers(ring, at), values = full_barriers(ring, before) + 8;
  const auto complete = [&] {
    const bool first = is_complete(keys, at.parity), second = is_complete(values, before.parity);
    return first && second;
  };
  if constexpr (kPdl) {
    if (!complete()) wait_for_previous_kernel();
  }
  u32 waited = 0;
  while (!complete() && goes_on_waiting(args, waited)) continue;
  if constexpr (kGathers) fence_async_proxy();
}

// Makes zeros of those rows of V of a step, which has come, that are not there: weights of 0 would not make 0 of a NaN.
LEAN_DEVICE void finish_values(const Step& step, const Holes& holes, const KvRing& ring, const RingPosition& at,
                               int warpgroup) {
  if constexpr (kGathers) return fence_async_proxy();  // such rows arrive as zeros
  const u32 values = ring.stages + at.stage * kStageBytes + kVOffset;
  const bool has_holes = kSelectionBlock > 0 && any_hole(holes);
  if (step.count == kStepTokens && !has_holes) return;
  if (step.count < kStepTokens) zero_v_rows(values, step.count);
  if (has_holes) zero_v_holes(values, holes);
  fence_async_proxy();
  sync_warpgroup(warpgroup);
}

struct StepOrder {
  RingPosition at;     // of the next step
  bool begun = false;  // whether warpgroups have taken turns
#if defined(LEAN_APPENDS_TO_STAGE)
  NewChunk fresh = {};  // of the segment's new rows, what this thread has from the start on
#endif
};

// Tells the compiler that all lanes have the same value. Then it and what is made of it, such as operands' descriptors,
// stand in uniform registers, from which matrix instructions take them.
LEAN_DEVICE int uniform(int x) { return __shfl_sync(kFullMask, x, 0); }

// Attends to a segment.
LEAN_DEVICE void attend_segment(const LeanDecodeArgs& args, const Segment& s, KvRing ring, StepOrder& order,
                                Operands& shared, Attention& a, int warpgroup) {
  u32 q = shared_address(shared.q);
  asm volatile("" : "+r"(ring.stages), "+r"(ring.full), "+r"(ring.empty), "+r"(q));  // lest every step work them out
  RingPosition& at = order.at;
  const bool signals = threadIdx.x % 32 == 0;
  at = {(u32)uniform((int)at.stage), (u32)uniform((int)at.parity)};
  const int end = uniform(end_read(s));
  int read = uniform(first_read(s));
  if (!has_rows(s, warpgroup)) {  // the warpgroup only says that it has read
#pragma unroll 1
    for (; read < end; read += kStepTokens, at.next())
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        wait_ring(args, full_barriers(ring, at) + part * 8, at.parity);
        if (signals) arrive(empty_barriers(ring, at) + part * 8);
      }
    return;
  }
  if (read >= end) return;
  const bool in_turn = has_rows(s, 1);
  if (in_turn && !order.begun) {
    if (warpgroup == 1) pass_turn(0);
    order.begun = true;
  }
  const int next = next_in_turn(s, warpgroup);
  // The query tokens of the warpgroup's rows.
  const int row = uniform(s.row_block * kRows + warpgroup * 64), first_token = kQueryMask == kTree ? 0 : row / kGroup,
            last_token = min((row + 63) / kGroup, uniform(s.query.count) - 1);
  float score[kStepTokens / 8][4], factor[2];
  u32 weight[kStepTokens / 16][4];
  Step step, before;  // whose scores are made, and the one before it, whose values are added
  Holes holes, before_holes;
  RingPosition before_at;
  bool masked;
  const auto next_step = [&] {
    step = step_at(read, end, sinks_end(s), s.visible.shift);
#if defined(LEAN_APPENDS_TO_STAGE)
    append_to_stage(args, s, step, ring, at, order.fresh, warpgroup);
#endif
  };
  const auto look_at_masks = [&] {  // while the matrix unit works
    holes = step_holes(args, s, step, ring.stages + at.stage * kStageBytes);
    masked = any_hole(holes) || has_masked(s, step, first_token, last_token);
  };
#if defined(LEAN_SCALES)
  const float k_scale = k_scale_of(args, s, 0, true);
#endif
  const auto finish = [&] {  // the scores, which are there
    pin(score);
    if (signals) arrive(empty_barriers(ring, at));
#if defined(LEAN_SCALES)
    scale_scores(score, k_scale);
#endif
    finish_scores(args, s, step, holes, masked, first_row(), score);
  };
  next_step();
  wait_ring(args, full_barriers(ring, at), at.parity);
  if constexpr (kGathers) fence_async_proxy();
  if (in_turn) begin_turn(warpgroup);
  issue_scores(ring, at, q, score);
  if (in_turn) pass_turn(next);
  look_at_masks();
  wgmma_wait<0>();
  finish();
  raise_maxima(args, score, a.max, a.sum, factor);
  weigh(args, score, a.max, a.sum, weight);
#pragma unroll 1
  for (read += kStepTokens; read < end; read += kStepTokens) {
    before = step, before_holes = holes, before_at = at;
    at.next();
    next_step();
    wait_for_both(args, ring, at, before_at);
    finish_values(before, before_holes, ring, before_at, warpgroup);
    if (in_turn) begin_turn(warpgroup);
    issue_scores(ring, at, q, score);
    issue_values(ring, before_at, weight, a);
    if (in_turn) pass_turn(next);
    look_at_masks();
    wgmma_wait<1>();
    finish();
    const bool rises = raise_maxima(args, score, a.max, a.sum, factor);
    // O += P V has had the time of that. ptxas moves a wait to the front of its basic block, and so behind the maxima.
    wgmma_wait<0>();
    pin(a.out);
    if (signals) arrive(empty_barriers(ring, before_at) + 8);
    if (rises) rescale(a, factor);
    weigh(args, score, a.max, a.sum, weight);
  }
  wait_ring(args, full_barriers(ring, at) + 8, at.parity);
  finish_values(step, holes, ring, at, warpgroup);
  issue_values(ring, at, weight, a);
  wgmma_wait<0>();
  pin(a.out);
  if (signals) arrive(empty_barriers(ring, at) + 8);
  at.next();
}
