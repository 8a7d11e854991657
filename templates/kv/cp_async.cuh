// kv/cp_async.cuh -- load path "cp_async": every lane copies 16-byte chunks (PTX ISA, "cp.async"). Rows past the
// context arrive as zeros.

struct KvPipe {
  u32 ring;     // this warp's stages in shared memory
  KvCursor at;  // the next step to fetch
  int lane;
  int stage;        // stage of the step in hand
  int fetch_stage;  // stage of the next step to fetch

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    ring = shared_base + (u32)(warp * kRingBytes);
    lane = lane_index;
    at.init(args, lane_index);
    stage = fetch_stage = 0;
  }

  // Commits a group per call, even an empty one, so that groups and steps count alike. An address must be valid even if
  // none of its bytes are copied, so rows that do not count are read from where the first one is.
  LEAN_DEVICE void fetch() {
    if (!at.done()) {
      constexpr int kKRowChunks = kKRowBytes / 16, kVRowChunks = kVRowBytes / 16;
      constexpr int kKCopies = (kStepTokens * kKRowChunks + 31) / 32, kVCopies = (kStepTokens * kVRowChunks + 31) / 32;
      constexpr int kMost = 16;  // copies whose addresses fit registers beside everything else
      const u32 base = ring + (u32)(fetch_stage * kStage.bytes);
      const int tokens = at.tokens();
#pragma unroll(kKCopies <= kMost ? kKCopies : 4)
      for (int i = 0; i < kKCopies; i++) {
        const int chunk = i * 32 + lane, token = chunk / kKRowChunks, column = chunk % kKRowChunks * 16;
        const bool valid = token < tokens;
        const char* row = at.k_row(valid ? token : 0);
        if (kStepTokens * kKRowChunks % 32 == 0 || token < kStepTokens)
          copy_async_16(base + (u32)(token * kKRowBytes + column), row + column, valid);
      }
#pragma unroll(kVCopies <= kMost ? kVCopies : 4)
      for (int i = 0; i < kVCopies; i++) {
        const int chunk = i * 32 + lane, token = chunk / kVRowChunks, column = chunk % kVRowChunks * 16;
        const bool valid = token < tokens;
        const char* row = at.v_row(valid ? token : 0);
        if (kStepTokens * kVRowChunks % 32 == 0 || token < kStepTokens)
          copy_async_16(base + v_row_offset(token) + (u32)column, row + column, valid);
      }
      at.next();
      if (++fetch_stage == kStages) fetch_stage = 0;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    at.start(args, s, warp);
#pragma unroll 1
    for (int i = 0; i < kStages; i++) fetch();
  }

  LEAN_DEVICE u32 base() const { return ring + (u32)(stage * kStage.bytes); }

  LEAN_DEVICE void acquire(int) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    __syncwarp();
  }
  LEAN_DEVICE void read_k_fragment(int block, int part, KFragment& k) { read_k(base(), block, part, lane, k); }
  LEAN_DEVICE void k_done() {}
  LEAN_DEVICE void read_v_fragment(int block, int group, VFragment& v) { read_v(base(), block, group, lane, v); }
  LEAN_DEVICE void release() {
    __syncwarp();
    if (++stage == kStages) stage = 0;
    fetch();
  }
};

// V rows of the step in hand that lie in holes of the page table become zeros.
LEAN_DEVICE void zero_v_holes(KvPipe& kv, const Holes& holes) {
  zero_v_holes(kv.base(), holes, kv.lane);
  __syncwarp();
}
