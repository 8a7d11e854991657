// kv/shared_ring.cuh -- one ring of KV stages, which all warps of a CTA fill and read together. Each warp copies its
// share of a step's rows, 16 bytes a lane (PTX ISA, "cp.async"); where these lie, its lanes hold for several steps. A
// stage holds K, then V, as panels of [kStepTokens][64 dims]. Of row r, the 16-byte piece p lies at p ^ r % 8, so that
// neighbouring rows lie on different banks. Rows of holes, and of tokens behind the last one, arrive as zeros.
// ---
// A barrier of the CTA begins each step: what has arrived for each warp is then there for all, and what all have read
// is free for the step that is kStages - 1 steps ahead.

constexpr int kKPanels = (kHeadDim + 63) / 64, kVPanels = (kValueDim + 63) / 64;
constexpr int kPanelBytes = kStepTokens * 128;
constexpr int kVOffset = kKPanels * kPanelBytes;  // where V of a stage begins
constexpr int kStageBytes = lean_warpgroup_stage_bytes(kStepTokens, 64 * (kKPanels + kVPanels));
static_assert(kStageBytes == kVOffset + kVPanels * kPanelBytes, "a stage is made of panels");
constexpr int kQueriesBytes = kWarps * kRowsOfWarp * kKPanels * 128;
static_assert(kQueriesBytes + kStages * kStageBytes == kSharedBytes, "host and device must agree on shared memory");
static_assert(kStages > 1, "one stage is read while others are filled");
constexpr int kRowsAtOnce = 4;  // of a warp's copies: eight lanes a row
constexpr int kRowTurns = kWarpRows / kRowsAtOnce;
static_assert(kPageRun == 1 && kWarpRows % kRowsAtOnce == 0, "each warp copies whole rows, one by one");

LEAN_DEVICE unsigned char* walk_shared() {
  extern __shared__ __align__(128) unsigned char shared[];
  return shared;
}

// The ring lies behind the queries.
LEAN_DEVICE u32 first_stage() { return shared_address(walk_shared()) + kQueriesBytes; }
LEAN_DEVICE u32 stage_behind(u32 stage) {
  return stage == first_stage() + (kStages - 1) * kStageBytes ? first_stage() : stage + kStageBytes;
}
LEAN_DEVICE u32 stage_before(u32 stage) {
  return stage == first_stage() ? stage + (kStages - 1) * kStageBytes : stage - kStageBytes;
}

// Whether the CTA's range has had a hole of the page table. A warp notes one before its step arrives, and all ask
// behind the barrier with which the step begins.
LEAN_DEVICE u32 hole_note() {
  __shared__ u32 note;
  return shared_address(&note);
}

// The holes of a step. To be called by a whole warp.
LEAN_DEVICE Holes step_holes(const LeanDecodeArgs& args, const Segment& s, const Step& step) {
  Holes holes = {};
  if constexpr (kPageSize == 0) return holes;
  if (!__any_sync(kFullMask, load_shared_4(hole_note()) != 0)) return holes;
#pragma unroll
  for (int first = 0; first < kStepTokens; first += 32) {
    const int token = first + (int)threadIdx.x % 32;
    const bool hole = token < step.count && is_hole(page_of(args, s, step.token + token), args.pool_pages);
    holes.tokens[first / 64] |= (u64)__ballot_sync(kFullMask, hole) << first % 64;
  }
  return holes;
}

LEAN_DEVICE void note_hole(int lane) {
  if (lane == 0) asm volatile("st.shared.u32 [%0], %1;" ::"r"(hole_note()), "r"(1) : "memory");
}

// The ring and what this warp knows of it. Steps are named by their read indices.
struct KvPipe {
  u32 stage;  // where the step in hand lies
  TokenPlaces places;
  int place;  // of this lane's token of the steps in hand; below 0 in a hole
  int turn;   // which of these is requested next

  // A barrier must stand behind it.
  LEAN_DEVICE void init() {
    stage = first_stage();
    if constexpr (kPageSize > 0) {
      if (threadIdx.x == 0) asm volatile("st.shared.u32 [%0], %1;" ::"r"(hole_note()), "r"(0) : "memory");
    }
  }

  // Requests the first steps of a segment. Of the segment before, only the last step may still be read.
  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    const int end = end_read(s);
    places.start(args, s);
    turn = kStepsInHand;
    u32 to = stage;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; i++, to = stage_behind(to))
      request(args, s, first_read(s) + i * kStepTokens, end, to);
  }

  // Requests the step `read`, if there is one. Commits a group in any case, so that groups and steps count alike.
  LEAN_DEVICE void request(const LeanDecodeArgs& args, const Segment& s, int read, int end, u32 stage) {
    if (read < end) {
      const int lane = threadIdx.x % 32, column = lane % 8;
      if (turn == kStepsInHand) {
        place = places.take(s, read), turn = 0;
        if (kPageSize > 0 && __any_sync(kFullMask, place < 0)) note_hole(lane);
      }
      const Step step = step_at(s, read);
      const i64 k_head = 2 * (s.kv_head * args.k_stride_head) + column * 16,
                v_head = 2 * (s.kv_head * args.v_stride_head) + column * 16;
#pragma unroll
      for (int t = 0; t < kRowTurns; t++) {
        const int of_warp = t * kRowsAtOnce + lane / 8, row = gather_warp() * kWarpRows + of_warp;
        const int at = __shfl_sync(kFullMask, place, turn * kWarpRows + of_warp);
        const bool valid = at >= 0 && row < step.count;
        // An address must be valid even if none of its bytes are copied.
        const PoolRow from = valid ? pool_row(at, step.token + row) : PoolRow{0, 0};
        const u32 to = stage + (u32)(row * 128 + (column ^ row % 8) * 16);
        const char* const k =
            k_cache(args, at) + k_head + from.page * (2 * args.k_stride_batch) + from.token * (2 * args.k_stride_token);
        const char* const v =
            v_cache(args, at) + v_head + from.page * (2 * args.v_stride_batch) + from.token * (2 * args.v_stride_token);
#pragma unroll
        for (int panel = 0; panel < kKPanels; panel++)
          if (kHeadDim % 64 == 0 || panel * 8 + column < kHeadDim / 8)
            copy_async_16(to + (u32)(panel * kPanelBytes), k + panel * 128, valid);
#pragma unroll
        for (int panel = 0; panel < kVPanels; panel++)
          if (kValueDim % 64 == 0 || panel * 8 + column < kValueDim / 8)
            copy_async_16(to + (u32)(kVOffset + panel * kPanelBytes), v + panel * 128, valid);
      }
      turn++;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Waits until the step `read` is there, which then is the one in hand, and requests another one in the place of the
  // one before it. To be called by all warps.
  LEAN_DEVICE void acquire(const LeanDecodeArgs& args, const Segment& s, int read, int end) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();
    request(args, s, read + (kStages - 1) * kStepTokens, end, stage_before(stage));
  }
  LEAN_DEVICE void release() { stage = stage_behind(stage); }
};
