// kv_bulk.cuh -- load path "bulk": the copy engine fills a stage and completes on its mbarrier (PTX ISA,
// "cp.async.bulk"). Contiguous tokens travel as five copies a stage (K, four quarters of V); strided tokens as one copy
// per row.

struct KvPipe {
  u32 ring;      // this warp's stages in shared memory
  u32 barriers;  // this warp's mbarriers, one per stage
  int lane;
  i64 k_stride, v_stride;
  const char* k;  // next step to fetch; contiguous: this lane's piece of it
  const char* v;
  u32 piece;     // where that piece lies in a stage
  int left;      // its tokens, counted to the end of the segment
  int to_fetch;  // steps not yet fetched
  int stage;     // stage of the step in hand
  int fetch_stage;
  u32 phase;  // parity the stage in hand completes with

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    __shared__ __align__(8) u64 full[kWarps * kStages];
    ring = shared_base + (u32)(warp * kRingBytes);
    barriers = shared_address(&full[warp * kStages]);
    lane = lane_index;
    k_stride = k_row_stride(args), v_stride = v_row_stride(args);
    piece = lane == 0 ? 0 : v_row_offset((lane - 1) * kQuarter);
    stage = fetch_stage = 0;
    phase = 0;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kStages; s++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + (u32)(s * 8)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  LEAN_DEVICE static void copy(u32 destination, const char* source, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
  }

  LEAN_DEVICE void fetch() {
    if (to_fetch == 0) return;
    const int tokens = min(left, kWarpTokens);
    const u32 base = ring + (u32)(fetch_stage * kStageBytes), barrier = barriers + (u32)(fetch_stage * 8);
    if (lane == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(tokens * 2 * kRowBytes)
                   : "memory");
    if constexpr (kContiguous) {
      // Lane 0 copies K, lanes 1 to 4 a quarter of V each.
      const int rows = lane == 0 ? tokens : min(tokens - (lane - 1) * kQuarter, kQuarter);
      if (lane < 5 && rows > 0) copy(base + piece, k, (u32)(rows * kRowBytes), barrier);
    } else {
      __syncwarp();
      for (int token = lane; token < tokens; token += 32) {
        copy(base + (u32)(token * kRowBytes), k + token * k_stride, kRowBytes, barrier);
        copy(base + v_row_offset(token), v + token * v_stride, kRowBytes, barrier);
      }
      v += (i64)(kWarps * kWarpTokens) * v_stride;
    }
    k += (i64)(kWarps * kWarpTokens) * k_stride;
    left -= kWarps * kWarpTokens;
    to_fetch--;
    if (++fetch_stage == kStages) fetch_stage = 0;
  }

  LEAN_DEVICE void start(const WarpTokens& tokens) {
    k = tokens.k, v = tokens.v, left = tokens.left, to_fetch = tokens.steps;
    if (kContiguous && lane > 0) k = v + (lane - 1) * kQuarter * kRowBytes;
#pragma unroll 1
    for (int i = 0; i < kStages; i++) fetch();
  }

  LEAN_DEVICE u32 base() const { return ring + (u32)(stage * kStageBytes); }

  LEAN_DEVICE void acquire(int tokens) {
    const u32 barrier = barriers + (u32)(stage * 8);
    u32 done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(barrier), "r"(phase)
                   : "memory");
    if (tokens < kWarpTokens) {
      zero_v_rows(base(), tokens, lane);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine may overwrite these zeros later
      __syncwarp();
    }
  }
  LEAN_DEVICE void read_k_block(int block, KBlock& out) { read_k(base(), block, lane, out); }
  LEAN_DEVICE void k_done() {}
  LEAN_DEVICE void read_v_block(int block, int group, VBlock& out) { read_v(base(), block, group, lane, out); }
  LEAN_DEVICE void release() {
    __syncwarp();
    if (++stage == kStages) stage = 0, phase ^= 1;
    fetch();
  }
};
