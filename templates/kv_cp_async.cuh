// kv_cp_async.cuh -- load path "cp_async": every lane copies 16-byte chunks (PTX ISA, "cp.async"); rows past the
// context arrive as zeros.

struct KvPipe {
  u32 ring;  // this warp's stages in shared memory
  int lane;
  i64 k_stride, v_stride;
  const char* k;  // next step to fetch
  const char* v;
  int left;      // its tokens, counted to the end of the segment
  int to_fetch;  // steps not yet fetched
  int stage;     // stage of the step in hand
  int fetch_stage;

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    ring = shared_base + (u32)(warp * kRingBytes);
    lane = lane_index;
    k_stride = k_row_stride(args), v_stride = v_row_stride(args);
    stage = fetch_stage = 0;
  }

  LEAN_DEVICE static void copy_16(u32 destination, const char* source, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(valid ? 16 : 0)
                 : "memory");
  }

  // Commits one group per call, empty or not, so that groups and steps count alike.
  LEAN_DEVICE void fetch() {
    if (to_fetch > 0) {
      constexpr int kChunks = kRowBytes / 16;
      const u32 base = ring + (u32)(fetch_stage * kStageBytes);
#pragma unroll
      for (int i = 0; i < kWarpTokens * kChunks / 32; i++) {
        const int chunk = i * 32 + lane, token = chunk / kChunks, column = chunk % kChunks * 16;
        const bool valid = token < left;
        copy_16(base + (u32)(token * kRowBytes + column), k + (valid ? token * k_stride : 0) + column, valid);
      }
#pragma unroll
      for (int i = 0; i < kWarpTokens * kChunks / 32; i++) {
        const int chunk = i * 32 + lane, token = chunk / kChunks, column = chunk % kChunks * 16;
        const bool valid = token < left;
        copy_16(base + v_row_offset(token) + (u32)column, v + (valid ? token * v_stride : 0) + column, valid);
      }
      k += (i64)(kWarps * kWarpTokens) * k_stride, v += (i64)(kWarps * kWarpTokens) * v_stride;
      left -= kWarps * kWarpTokens;
      to_fetch--;
      if (++fetch_stage == kStages) fetch_stage = 0;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  LEAN_DEVICE void start(const WarpTokens& tokens) {
    k = tokens.k, v = tokens.v, left = tokens.left, to_fetch = tokens.steps;
#pragma unroll 1
    for (int i = 0; i < kStages; i++) fetch();
  }

  LEAN_DEVICE u32 base() const { return ring + (u32)(stage * kStageBytes); }

  LEAN_DEVICE void acquire(int) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    __syncwarp();
  }
  LEAN_DEVICE void read_k_block(int block, KBlock& out) { read_k(base(), block, lane, out); }
  LEAN_DEVICE void k_done() {}
  LEAN_DEVICE void read_v_block(int block, int group, VBlock& out) { read_v(base(), block, group, lane, out); }
  LEAN_DEVICE void release() {
    __syncwarp();
    if (++stage == kStages) stage = 0;
    fetch();
  }
};
