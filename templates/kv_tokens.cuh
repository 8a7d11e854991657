// kv_tokens.cuh -- which tokens a warp takes. Shared by all load paths but "tensor". A segment's tokens are dealt to
// the warps in steps of kStepTokens, round robin, so warps never wait for each other inside a segment.

constexpr int kKRowBytes = kHeadDim * kKvBytes;
constexpr int kVRowBytes = kValueDim * kKvBytes;
constexpr int kRoundTokens = kWarps * kStepTokens;  // from one step of a warp to its next

LEAN_DEVICE i64 k_row_stride(const LeanDecodeArgs& args) {
  return kContiguous ? kKRowBytes : args.k_stride_token * kKvBytes;
}
LEAN_DEVICE i64 v_row_stride(const LeanDecodeArgs& args) {
  return kContiguous ? kVRowBytes : args.v_stride_token * kKvBytes;
}
