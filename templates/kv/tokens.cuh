// kv/tokens.cuh -- which tokens a warp takes, on all load paths but "tensor". A segment's tokens are dealt to the warps
// in turn, a step of kStepTokens at a time, so that warps never wait for each other inside a segment.

#if defined(LEAN_NIBBLES)
constexpr int kKRowBytes = kHeadDim / 2;
constexpr int kVRowBytes = kValueDim / 2;
#else
constexpr int kKRowBytes = kHeadDim * kKvBytes;
constexpr int kVRowBytes = kValueDim * kKvBytes;
#endif
constexpr int kRoundTokens = kWarps * kStepTokens;  // from one step of a warp to its next

#if defined(LEAN_ROW_BOXES)
// A page or a request, and a token of it.
struct TokenPlace {
  int outer, token;
};
#endif

// Bytes from one token's row to the next. Where V is a part of K, its rows are as far apart as K's.
LEAN_DEVICE i64 row_stride(int row_bytes, i64 token_stride) {
  if constexpr (!kContiguous) return token_stride * kKvBytes;
  if constexpr (kLatent) return kKRowBytes;
  return row_bytes;
}
