// kv/row_boxes.cuh -- load path "tensor" of warps, for rows that hold K, its scale, V and its scale. The copy engine
// brings 16 tokens of a KV head in two boxes, those of even and those of odd number (PTX ISA, "Tensors"). Strides of a
// tensor map are multiples of 16 bytes, which those of two tokens are where rows are aligned to eight. And a box begins
// at a multiple of 16 bytes, up to eight in front of the row.

constexpr int kBoxTokens = 16, kBoxBytes = kBoxTokens / 2 * kRowPitch, kBoxes = kStepTokens / kBoxTokens;
static_assert(kPageSize == 0 || kPageRun % kBoxTokens == 0, "a box is of one page");

struct alignas(64) LeanTensorMap {
  unsigned char opaque[128];
};  // CUtensorMap

struct KvPipe {
  u32 ring;                         // this warp's stages in shared memory
  u32 barriers;                     // this warp's mbarriers, one for each stage
  const LeanTensorMap *even, *odd;  // of tokens of even and of odd number
  // Of a segment's first token and every other one after it, and of the tokens between them: where boxes begin in their
  // map, in units of eight bytes, and rows in boxes, in bytes.
  int columns[2];
  u32 shift[2];
  int first_odd;  // whether its first token has an odd number
  KvCursor at;    // the next step to fetch
  int lane;
  int stage;        // stage of the step in hand
  u32 parity;       // which its barrier completes with
  int fetch_stage;  // stage of the next step to fetch

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args,
                        const LeanTensorMap& even_map, const LeanTensorMap& odd_map) {
    __shared__ __align__(8) u64 full[kWarps * kStages];
    ring = shared_base + (u32)(warp * kRingBytes);
    barriers = shared_address(&full[warp * kStages]);
    even = &even_map, odd = &odd_map;
    lane = lane_index;
    at.init(args, lane_index);
    stage = fetch_stage = 0;
    parity = 0;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kStages; s++) init_barrier(barriers + (u32)(s * 8), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  // pair: of tokens, in their page or request.
  LEAN_DEVICE static void copy(u32 destination, const LeanTensorMap* map, int column, int pair, int outer,
                               u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(destination),
        "l"(map), "r"(column), "r"(pair), "r"(outer), "r"(barrier)
        : "memory");
  }

  LEAN_DEVICE void fetch() {
    if (at.done()) return;
    const int boxes = min((at.tokens() + kBoxTokens - 1) / kBoxTokens, kBoxes);
    const u32 base = ring + (u32)(fetch_stage * kStage.bytes), barrier = barriers + (u32)(fetch_stage * 8);
    if (lane == 0) expect_bytes(barrier, (u32)(boxes * 2 * kBoxBytes));
    __syncwarp();
#pragma unroll
    for (int box = 0; box < kBoxes; box++) {
      const TokenPlace first = at.place(box * kBoxTokens);
      if (lane == 0 && box < boxes) {
#pragma unroll
        for (int i = 0; i < 2; i++)
          copy(base + (u32)((2 * box + i) * kBoxBytes), (i ^ first_odd) != 0 ? odd : even, columns[i],
               (first.token + i) / 2, first.outer, barrier);
      }
    }
    at.next();
    if (++fetch_stage == kStages) fetch_stage = 0;
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
    // Steps of a segment begin an even number of tokens apart, and pages with an even token.
    first_odd = kPageSize > 0 ? 0 : at.place(0).token & 1;
    int head = (int)(s.kv_head * args.k_stride_head * kKvBytes / 8);
#if !defined(LEAN_PACKED_KV)
    if constexpr (kPageSize == 0) {
      // Requests that no stride of a map reaches lie in one dimension with the heads.
      const i64 apart = args.k_stride_batch * kKvBytes;
      if (apart % 16 != 0) head += (int)(s.request * apart / 8), at.request = 0;
    }
#endif
#pragma unroll
    for (int i = 0; i < 2; i++) {
      // A map begins at a multiple of 16 bytes.
      const u64 row = (u64)args.k + (u64)((i ^ first_odd) * args.k_stride_token * kKvBytes);
      const int column = head + (int)(row / 8 % 2);
      columns[i] = column & ~1, shift[i] = (u32)(column & 1) * 8;
    }
#pragma unroll 1
    for (int i = 0; i < kStages; i++) fetch();
  }

  LEAN_DEVICE StageAddress base() const { return {ring + (u32)(stage * kStage.bytes), {shift[0], shift[1]}}; }

  LEAN_DEVICE void acquire(int tokens) {
    while (!is_complete(barriers + (u32)(stage * 8), parity)) continue;
    if (kSilencesRows && tokens < kStepTokens) {
      zero_v_rows(base(), tokens, lane);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine may overwrite these zeros later
      __syncwarp();
    }
  }
  LEAN_DEVICE float k_scale(int block, int half) const { return read_k_scale(base(), block, half, lane); }
  LEAN_DEVICE float v_scale(int block, int half) const { return read_v_scale(base(), block, half, lane); }
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
  if constexpr (!kSilencesRows) return;
  zero_v_holes(kv.base(), holes, kv.lane);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // as in acquire
  __syncwarp();
}
