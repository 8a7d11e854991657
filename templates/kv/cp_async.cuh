// kv/cp_async.cuh -- load path "cp_async": every lane copies 16-byte chunks (PTX ISA, "cp.async"). Rows past the
// context arrive as zeros.

struct KvPipe {
  u32 ring;     // this warp's stages in shared memory
  KvCursor at;  // the next step to fetch
  int lane;
  int stage;        // stage of the step in hand
  int fetch_stage;  // stage of the next step to fetch
#if defined(LEAN_STAGED_SCALES)
  i64 v_scales_apart;  // bytes from a token's scales of K to those of V

  LEAN_DEVICE void copy(u32 to, const char* from, bool valid) {
    if constexpr (kCopyBytes == 16) {
      copy_async_16(to, from, valid);
    } else {
      copy_async_4(to, from, valid);
    }
  }

  // Copies the rows of K or V of the next step to `to`. row: where a token's row is; place: where it goes there. In a
  // whole step the lanes move on by as many rows with every copy, so that addresses take one addition.
  template <int kRowBytes, class Row, class Place>
  LEAN_DEVICE void copy_rows(u32 to, int tokens, i64 stride, Row row, Place place) {
    constexpr int kPieces = kRowBytes / kCopyBytes, kCopies = kStepTokens * kPieces / 32;
    static_assert(kStepTokens * kPieces % 32 == 0, "all lanes copy alike");
    // Tokens of a run, rows of one copy, and copies of a run.
    constexpr int kRun = kPageSize > 0 ? kPageRun : kStepTokens, kAtOnce = kPieces < 32 ? 32 / kPieces : 1,
                  kInRun = kRun * kPieces / 32;
    if constexpr (kPieces <= 32 && 32 % kPieces == 0 && kInRun > 0) {
      if (tokens >= kStepTokens) {
        const int token = lane / kPieces, column = lane % kPieces * kCopyBytes;
        const u32 lane_to = to + place(token) + (u32)column;
#pragma unroll
        for (int run = 0; run < kCopies / kInRun; run++) {
          const char* from = row(run * kRun + token) + column;
#pragma unroll
          for (int i = 0; i < kInRun; i++, from += kAtOnce * stride)
            copy(lane_to + place((run * kInRun + i) * kAtOnce), from, true);
        }
        return;
      }
    }
#pragma unroll 4
    for (int i = 0; i < kCopies; i++) {
      const int piece = i * 32 + lane, token = piece / kPieces, column = piece % kPieces * kCopyBytes;
      const bool valid = token < tokens;
      copy(to + place(token) + (u32)column, row(valid ? token : 0) + column, valid);
    }
  }

  // And the scales of its tokens or of their blocks.
#if defined(LEAN_BLOCK_SCALES)
  LEAN_DEVICE void copy_scales(u32 stage_base, int tokens) {
    copy_block_scales(at, v_scales_apart, stage_base, tokens, lane);
  }
#else
  LEAN_DEVICE void copy_scales(u32 stage_base, int tokens) {
#pragma unroll
    for (int i = 0; i < 2 * kStepTokens / 32; i++) {
      const int at_word = i * 32 + lane, token = at_word % kStepTokens;
      const bool valid = token < tokens;
      const char* const from = at.scale(valid ? token : 0) + (at_word < kStepTokens ? 0 : v_scales_apart);
      copy_async_4(scale_at(stage_base, at_word), from, valid);
    }
  }
#endif
#endif

  LEAN_DEVICE void init(u32 shared_base, int warp, int lane_index, const LeanDecodeArgs& args) {
    ring = shared_base + (u32)(warp * kRingBytes);
    lane = lane_index;
    at.init(args, lane_index);
#if defined(LEAN_STAGED_SCALES)
    v_scales_apart = v_scales(args, 0) - k_scales(args, 0);
#endif
    stage = fetch_stage = 0;
  }

  // Commits a group per call, even an empty one, so that groups and steps count alike. An address must be valid even if
  // none of its bytes are copied, so rows that do not count are read from where the first one is.
  LEAN_DEVICE void fetch() {
    if (!at.done()) {
#if defined(LEAN_STAGED_SCALES)
      const int tokens = at.tokens();
      const u32 to = ring + (u32)(fetch_stage * kStage.bytes);
      copy_rows<kKRowBytes>(
          to, tokens, at.k_stride, [&](int token) { return at.k_row(token); },
          [](int token) { return (u32)(token * kKRowBytes); });
      copy_rows<kVRowBytes>(
          to + (u32)kStage.v_offset, tokens, at.v_stride, [&](int token) { return at.v_row(token); },
          [](int token) { return v_row_offset(token) - (u32)kStage.v_offset; });
      copy_scales(to, tokens);
#else
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
#endif
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
#if defined(LEAN_TOKEN_SCALES)
  LEAN_DEVICE float k_scale(int block, int half) const { return read_k_scale(base(), block, half, lane); }
  LEAN_DEVICE float v_scale(int block, int half) const { return read_v_scale(base(), block, half, lane); }
#endif
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
