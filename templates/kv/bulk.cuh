// kv/bulk.cuh -- load path "bulk": the copy engine fills a stage and completes on the stage's mbarrier (PTX ISA,
// "cp.async.bulk").

// Whether a step's rows are adjacent. They then travel as five copies, K and four quarters of V, and else row by row.
constexpr bool kAdjacent = kContiguous && !kLatent && (kPageSize == 0 || kPageRun == kStepTokens);

struct KvPipe : CopiedStages<KvPipe> {
  static constexpr int kArrivals = 1;
  // For adjacent rows of a dense cache at.k is where this lane's copy begins.
  u32 piece;  // where that copy goes in a stage

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    piece = lane_index == 0 ? 0 : v_row_offset((lane_index - 1) * kQuarter);
    init_stages(shared_base, warp, lane_index, args);
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
    const u32 base = fetch_base(), barrier = fetch_barrier();
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
    fetched();
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    if constexpr (kAdjacent && kPageSize == 0) {
      if (lane > 0) {
        at.k = at.v + (lane - 1) * kQuarter * kVRowBytes;
        at.k_stride = at.v_stride;
      }
    }
    fetch_all();
  }

  LEAN_DEVICE u32 base() const { return ring + (u32)(stage * kStage.bytes); }
};
