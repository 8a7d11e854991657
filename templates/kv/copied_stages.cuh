// kv/copied_stages.cuh -- a warp's ring whose stages the copy engine fills, each of which has an mbarrier that its
// copies complete on (PTX ISA, "mbarrier"). Pipe is the load path that requests them: fetch() a step, by kArrivals
// arrivals at the barrier, and base() is the stage of the step in hand.

template <class Pipe>
struct CopiedStages {
  u32 ring;      // this warp's stages in shared memory
  u32 barriers;  // this warp's mbarriers, one for each stage
  KvCursor at;   // the next step to fetch
  int lane;
  int stage;        // stage of the step in hand
  u32 parity;       // which its barrier completes with
  int fetch_stage;  // stage of the next step to fetch

  LEAN_DEVICE Pipe& pipe() { return *static_cast<Pipe*>(this); }

  LEAN_DEVICE void init_stages(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    __shared__ __align__(8) u64 full[kWarps * kStages];
    ring = shared_base + (u32)(warp * kRingBytes);
    barriers = shared_address(&full[warp * kStages]);
    lane = lane_index;
    at.init(args, lane_index);
    stage = fetch_stage = 0;
    parity = 0;
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kStages; s++) init_barrier(barriers + (u32)(s * 8), Pipe::kArrivals);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  // Where the next step goes, and the barrier that its copies complete on.
  LEAN_DEVICE u32 fetch_base() const { return ring + (u32)(fetch_stage * kStage.bytes); }
  LEAN_DEVICE u32 fetch_barrier() const { return barriers + (u32)(fetch_stage * 8); }
  LEAN_DEVICE void fetched() {
    at.next();
    if (++fetch_stage == kStages) fetch_stage = 0;
  }
  LEAN_DEVICE void fetch_all() {
#pragma unroll 1
    for (int i = 0; i < kStages; i++) pipe().fetch();
  }

  LEAN_DEVICE void acquire(int tokens) {
    while (!is_complete(barriers + (u32)(stage * 8), parity)) continue;
    if (kSilencesRows && tokens < kStepTokens) {
      zero_v_rows(pipe().base(), tokens, lane);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine may overwrite these zeros later
      __syncwarp();
    }
  }
  LEAN_DEVICE void read_k_fragment(int block, int part, KFragment& k) { read_k(pipe().base(), block, part, lane, k); }
  LEAN_DEVICE void k_done() {}
  LEAN_DEVICE void read_v_fragment(int block, int group, VFragment& v) { read_v(pipe().base(), block, group, lane, v); }
  LEAN_DEVICE void release() {
    __syncwarp();
    if (++stage == kStages) stage = 0, parity ^= 1;
    pipe().fetch();
  }
};

// V rows of the step in hand that lie in holes of the page table become zeros.
template <class Pipe>
LEAN_DEVICE void zero_v_holes(CopiedStages<Pipe>& kv, const Holes& holes) {
  if constexpr (!kSilencesRows) return;
  zero_v_holes(kv.pipe().base(), holes, kv.lane);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // as in acquire
  __syncwarp();
}
