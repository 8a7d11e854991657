// kv/dense.cuh -- where a warp's steps lie in a dense cache: one pointer each for K and V, moved from step to step.

struct KvCursor {
  i64 k_stride, v_stride;  // bytes from row to row
  const char* k;           // row of the step's first token
  const char* v;
#if defined(LEAN_STAGED_SCALES)
  const char* first_scale;  // K's, of the step's first token
  i64 scale_stride;         // bytes from token to token
#endif
#if defined(LEAN_BOXES)
  int request, first;  // and its first token, where requests follow each other
#endif
  int left;  // tokens from the step to the end of the segment
  int end;   // read index of that end
  int sinks, shift;
#if defined(LEAN_WINDOW_OF_PART)
  int sink_tokens;
#endif

  LEAN_DEVICE void init(const LeanDecodeArgs& args, int) {
    k_stride = row_stride(kKRowBytes, args.k_stride_token), v_stride = row_stride(kVRowBytes, args.v_stride_token);
#if defined(LEAN_STAGED_SCALES)
    scale_stride = kScaleStrideBytes * args.kv_scale_stride_token;
#endif
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    end = end_read(s);
    const int read = first_read(s) + warp * kStepTokens;
    left = end - read;
    sinks = sinks_end(s), shift = s.visible.shift;
#if defined(LEAN_WINDOW_OF_PART)
    sink_tokens = s.sink_tokens;
#endif
    const int token = read + (kWindow > 0 && read >= sinks ? shift : 0);
#if defined(LEAN_BOXES)
#if defined(LEAN_PACKED_KV)
    request = 0, first = s.kv_first;
#else
    request = s.request, first = 0;
#endif
#endif
#if defined(LEAN_PACKED_KV)
    k = (const char*)args.k + kKvBytes * (s.kv_first * args.k_stride_batch + s.kv_head * args.k_stride_head) +
        token * k_stride;
    v = (const char*)args.v + kKvBytes * (s.kv_first * args.v_stride_batch + s.kv_head * args.v_stride_head) +
        token * v_stride;
#else
    k = (const char*)args.k + kKvBytes * (s.request * args.k_stride_batch + s.kv_head * args.k_stride_head) +
        token * k_stride;
    v = (const char*)args.v + kKvBytes * (s.request * args.v_stride_batch + s.kv_head * args.v_stride_head) +
        token * v_stride;
#endif
#if defined(LEAN_STAGED_SCALES)
    first_scale = k_scales(args, s.request * args.kv_scale_stride_batch + s.kv_head * args.kv_scale_stride_head) +
                  token * scale_stride;
#endif
  }

  LEAN_DEVICE bool done() const { return left <= 0; }
  // At least the step's tokens; without a window all that are left of the segment.
  LEAN_DEVICE int tokens() const {
#if defined(LEAN_WINDOW_OF_PART)
    return step_at(end - left, end, sinks, shift, sink_tokens).count;
#else
    if constexpr (kWindow > 0) return step_at(end - left, end, sinks, shift).count;
    return left;
#endif
  }
  // Rows of the step's tokens.
  LEAN_DEVICE const char* k_row(int token) const { return k + token * k_stride; }
  LEAN_DEVICE const char* v_row(int token) const { return v + token * v_stride; }
#if defined(LEAN_STAGED_SCALES)
  LEAN_DEVICE const char* scale(int token) const { return first_scale + token * scale_stride; }
#endif

#if defined(LEAN_BOXES)
  // Of a token of the step.
  LEAN_DEVICE TokenPlace place(int token) const {
    const int read = end - left;
    return {request, first + read + (kWindow > 0 && read >= sinks ? shift : 0) + token};
  }
#endif

  LEAN_DEVICE void next() {
    int tokens = kRoundTokens;
    if constexpr (kWindow > 0) {
      const int read = end - left;
      if (read < sinks && read + kRoundTokens >= sinks) tokens += shift;
    }
    left -= kRoundTokens;
    k += tokens * k_stride, v += tokens * v_stride;
#if defined(LEAN_STAGED_SCALES)
    first_scale += tokens * scale_stride;
#endif
  }
};
