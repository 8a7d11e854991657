// kv_dense.cuh -- where a warp's steps lie in a dense cache: one pointer each for K and V, moved from step to step.

struct KvCursor {
  i64 k_stride, v_stride;  // bytes from row to row
  const char* k;           // row of the step's first token
  const char* v;
  int left;  // places from the step to the end of the segment
  int end;   // which is there
  int sinks, shift;

  LEAN_DEVICE void init(const LeanDecodeArgs& args, int) {
    k_stride = k_row_stride(args), v_stride = v_row_stride(args);
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    end = end_place(s);
    const int place = first_place(s) + warp * kStepTokens;
    left = end - place;
    sinks = sink_places(s), shift = s.visible.shift;
    const int token = place + (kWindow > 0 && place >= sinks ? shift : 0);
    k = (const char*)args.k + kKvBytes * (s.request * args.k_stride_batch + s.kv_head * args.k_stride_head) +
        token * k_stride;
    v = (const char*)args.v + kKvBytes * (s.request * args.v_stride_batch + s.kv_head * args.v_stride_head) +
        token * v_stride;
  }

  LEAN_DEVICE bool done() const { return left <= 0; }
  // Tokens of the step; without a window all that are left of the segment.
  LEAN_DEVICE int tokens() const { return kWindow > 0 ? step_at(end - left, end, sinks, shift).count : left; }
  // Rows of the step's tokens.
  LEAN_DEVICE const char* k_row(int token) const { return k + token * k_stride; }
  LEAN_DEVICE const char* v_row(int token) const { return v + token * v_stride; }

  LEAN_DEVICE void next() {
    const int place = end - left;
    const bool over = kWindow > 0 && place < sinks && place + kRoundTokens >= sinks;
    left -= kRoundTokens;
    k += (kRoundTokens + (over ? shift : 0)) * k_stride;
    v += (kRoundTokens + (over ? shift : 0)) * v_stride;
  }
};
