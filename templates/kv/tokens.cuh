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

#if defined(LEAN_BOXES)
// A page or a request, and a token of it.
struct TokenPlace {
  int outer, token;
};
#endif

// Scales that come with the rows, `at` such units behind the first in which their strides count, and bytes of a unit.
#if defined(LEAN_BLOCK_SCALES)
LEAN_DEVICE const char* k_scales(const LeanDecodeArgs& args, i64 at) { return (const char*)args.k_block_scales + at; }
LEAN_DEVICE const char* v_scales(const LeanDecodeArgs& args, i64 at) { return (const char*)args.v_block_scales + at; }
constexpr int kScaleStrideBytes = 1;
#elif defined(LEAN_STAGED_SCALES)
LEAN_DEVICE const char* k_scales(const LeanDecodeArgs& args, i64 at) { return (const char*)(args.k_scale + at); }
LEAN_DEVICE const char* v_scales(const LeanDecodeArgs& args, i64 at) { return (const char*)(args.v_scale + at); }
constexpr int kScaleStrideBytes = 4;
#endif

// Bytes from one token's row to the next. Where V is a part of K, its rows are as far apart as K's.
LEAN_DEVICE i64 row_stride(int row_bytes, i64 token_stride) {
  if constexpr (!kContiguous) return token_stride * kKvBytes;
  if constexpr (kLatent) return kKRowBytes;
  return row_bytes;
}
