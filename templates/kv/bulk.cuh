// kv/bulk.cuh -- load path "bulk": the copy engine fills a stage and completes on the stage's mbarrier (PTX ISA,
// "cp.async.bulk").

// Whether a step's rows are adjacent. They then travel as five copies, K and four quarters of V, and else row by row.
constexpr bool kAdjacent = kContiguous && !kLatent && (kPageSize == 0 || kPageRun == kStepTokens);

struct KvPipe {
  u32 ring;      // this warp's stages in shared memory
  u32 barriers;  // this warp's mbarriers, one for each stage
  KvCursor at;   // the next step to fetch; for adjacent rows of a dense cache at.k is where this lane's copy begins
  int lane;
  u32 piece;        // where that copy goes in a stage
  int stage;        // stage of the step in hand
  u32 parity;       // which its barrier completes with
  int fetch_stage;  // stage of the next step to fetch

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    __shared__ __align__(8) u64 full[kWarps * kStages];
    ring = shared_base + (u32)(warp * kRingBytes);
    barriers = shared_address(&full[warp * kStages]);
    lane = lane_index;
    at.init(args, lane_index);
    piece = lane == 0 ? 0 : v_row_offset((lane - 1) * kQuarter);
    stage = fetch_stage = 0;
    parity = 0;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kStages; s++) init_barrier(barriers + (u32)(s * 8), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  LEAN_DEVICE static void copy(u32 destination, const char* source, u32 bytes, u32 barrier) {
    if constexpr (kKvReadOnce) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
          "%4;" ::"r"(destination),
          "l"(source), "r"(bytes), "r"(barrier), "l"(evict_first())
          : "memory");
    } else {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
          "l"(source), "r"(bytes), "r"(barrier)
          : "memory");
    }
  }

  LEAN_DEVICE void fetch() {
    if (at.done()) return;
    const int tokens = min(at.tokens(), kStepTokens);
    const u32 base = ring + (u32)(fetch_stage * kStage.bytes), barrier = barriers + (u32)(fetch_stage * 8);
    if (lane == 0) expect_bytes(barrier, (u32)(tokens * (kKRowBytes + kVRowBytes)));
    if constexpr (kAdjacent) {
      // Lane 0 copies K, lanes 1 to 4 a quarter of V each.
      const int rows = lane == 0 ? tokens : min(tokens - (lane - 1) * kQuarter, kQuarter);
      const char* from = kPageSize > 0 && lane > 0 ? at.v + (lane - 1) * kQuarter * kVRowBytes : at.k;
      if (lane < 5 && rows > 0) copy(base + piece, from, (u32)(rows * (lane == 0 ? kKRowBytes : kVRowBytes)), barrier);
    } else {
      __syncwarp();
#pragma unroll
      for (int first = 0; first < kStepTokens; first += 32) {
        const int token = first + lane, row = min(token, kStepTokens - 1);
        const char *k = at.k_row(row), *v = at.v_row(row);
        if (token < tokens) {
          copy(base + (u32)(token * kKRowBytes), k, kKRowBytes, barrier);
          copy(base + v_row_offset(token), v, kVRowBytes, barrier);
        }
      }
    }
    at.next();
    if (++fetch_stage == kStages) fetch_stage = 0;
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    if constexpr (kAdjacent && kPageSize == 0) {
      if (lane > 0) {
        at.k = at.v + (lane - 1) * kQuarter * kVRowBytes;
        at.k_stride = at.v_stride;
      }
    }
#pragma unroll 1
    for (int i = 0; i < kStages; i++) fetch();
  }

  LEAN_DEVICE u32 base() const { return ring + (u32)(stage * kStage.bytes); }

  LEAN_DEVICE void acquire(int tokens) {
    while (!is_complete(barriers + (u32)(stage * 8), parity)) continue;
    if (tokens < kStepTokens) {
      zero_v_rows(base(), tokens, lane);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine may overwrite these zeros later
      __syncwarp();
    }
  }
  LEAN_DEVICE void read_k_fragment(int block, int part, KFragment& k) { read_k(base(), block, part, lane, k); }
  LEAN_DEVICE void k_done() {}
  LEAN_DEVICE void read_v_fragment(int block, int group, VFragment& v) { read_v(base(), block, group, lane, v); }
  LEAN_DEVICE void release() {
    __syncwarp();
    if (++stage == kStages) stage = 0, parity ^= 1;
    fetch();
  }
};

// V rows of the step in hand that lie in holes of the page table become zeros.
LEAN_DEVICE void zero_v_holes(KvPipe& kv, const Holes& holes) {
  zero_v_holes(kv.base(), holes, kv.lane);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // as in acquire
  __syncwarp();
}
