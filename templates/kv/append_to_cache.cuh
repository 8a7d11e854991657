// kv/append_to_cache.cuh -- new rows where the warp that requests a step first writes those of its rows that are new,
// and then reads them from the cache like any other. How a row is stored says kv/append_elements.cuh or
// kv/append_rows.cuh.

// Tokens that go to one warp before the next warp has its turn.
constexpr int kTurnTokens = kStepTokens / (kGathers ? kGatherWarps : 1);

// Writes those of a segment's new tokens that warp `warp` of `warps` reads. To be called by all lanes of that warp,
// which may then request them, by the copy engine too.
LEAN_DEVICE void append_tokens(const LeanDecodeArgs& args, const Segment& s, int warp, int warps) {
  if (!holds_newest(s)) return;
  const int begin = first_read(s), end = end_read(s);
#pragma unroll 1
  for (int query = first_new(s, 0); query < s.query.count; query++) {
    const int token = new_token(s, query), read = token - s.visible.shift;
    if (token < 0 || read < begin || read >= end || (read - begin) / kTurnTokens % warps != warp) continue;
    append_row(args, s, token, given_rows(args, s, query), outer_of(args, s, token));
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kCopyEngineReads) asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
  __syncwarp();
}
