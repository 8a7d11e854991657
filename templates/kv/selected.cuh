// kv/selected.cuh -- where a warp's steps lie that are made of what a query token has selected. A step is made of runs
// of kPageRun tokens. Lane l holds the place of run l of the warp's next 32 runs (kv/selection.cuh), so that one
// coalesced read of the list serves many steps.

constexpr int kStepRuns = kStepTokens / kPageRun;  // runs of a step, at most 32
constexpr int kPageSteps = 32 / kStepRuns;         // steps whose runs a warp holds
static_assert(kPageSize % kPageRun == 0 && kSelectionBlock % kPageRun == 0 && kStepTokens % kPageRun == 0,
              "runs cross neither pages nor blocks nor steps");

struct KvCursor {
  i64 k_stride, v_stride;            // bytes from row to row
  i64 k_page_stride, v_page_stride;  // and from page to page
  const char* k_head;                // the KV head's rows of page 0
  const char* v_head;
  const char* k;  // row of the step's first token, where a step is one run
  const char* v;
#if defined(LEAN_STAGED_SCALES)
  const char* scale_head;  // the KV head's scales of K in page 0
  const char* first_scale;
  i64 scale_stride, scale_page_stride;
#endif
  int read, end;  // read indices of the step and of the segment's end
  int lane;
  int page_step;         // which of the steps whose runs the lanes hold
  int place;             // of this lane's run in those steps, in tokens of the pool; 0 for a hole
  i64 k_apart, v_apart;  // bytes to the second cache
  SelectedRuns runs;
  bool holes;  // whether the segment has had one

  LEAN_DEVICE void init(const LeanDecodeArgs& args, int lane_index) {
    k_stride = row_stride(kKRowBytes, args.k_stride_token), v_stride = row_stride(kVRowBytes, args.v_stride_token);
    k_page_stride = args.k_stride_batch * kKvBytes, v_page_stride = args.v_stride_batch * kKvBytes;
#if defined(LEAN_STAGED_SCALES)
    scale_stride = kScaleStrideBytes * args.kv_scale_stride_token;
    scale_page_stride = kScaleStrideBytes * args.kv_scale_stride_batch;
#endif
    lane = lane_index;
    k_apart = to_second_k(args), v_apart = to_second_v(args);
  }

  // The row of token `inner` of the run at `run`, a place as above.
  LEAN_DEVICE const char* row_at(const char* head, i64 page_stride, i64 stride, i64 apart, int run, int inner) const {
    const u32 at = token_of_pool(run);
    return head + to_cache(run, apart) + (i64)(at / kPageSize) * page_stride + (i64)(at % kPageSize + inner) * stride;
  }

  // The read index of this lane's run, of the steps from read index `from` on.
  LEAN_DEVICE int run_at(int from) const {
    return from + lane / kStepRuns * kRoundTokens + lane % kStepRuns * kPageRun;
  }

  // Of a hole, rows of page 0 travel, which nobody looks at.
  LEAN_DEVICE void take_runs() {
    place = runs.take(0);
    runs.look_up(run_at(read + kPageSteps * kRoundTokens), run_at(read + 2 * kPageSteps * kRoundTokens));
    holes = runs.holes;
  }

  LEAN_DEVICE void locate() {
    if constexpr (kStepRuns == 1) {
      const int at = __shfl_sync(kFullMask, place, page_step);
      k = row_at(k_head, k_page_stride, k_stride, k_apart, at, 0);
      v = row_at(v_head, v_page_stride, v_stride, v_apart, at, 0);
#if defined(LEAN_STAGED_SCALES)
      first_scale = row_at(scale_head, scale_page_stride, scale_stride, 0, at, 0);
#endif
    }
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    read = first_read(s) + warp * kStepTokens;
    end = end_read(s);
    k_head = (const char*)args.k + kKvBytes * (s.kv_head * args.k_stride_head);
    v_head = (const char*)args.v + kKvBytes * (s.kv_head * args.v_stride_head);
#if defined(LEAN_STAGED_SCALES)
    scale_head = k_scales(args, s.kv_head * args.kv_scale_stride_head);
#endif
    page_step = 0;
    runs.start(args, s, run_at(read), run_at(read + kPageSteps * kRoundTokens));
    take_runs();
    locate();
  }

  LEAN_DEVICE bool done() const { return read >= end; }
  // At least the step's tokens: all that are left of the segment.
  LEAN_DEVICE int tokens() const { return end - read; }

  // A row of the step. Where a step has several runs, all lanes must ask together.
  LEAN_DEVICE const char* row(int token, const char* head, const char* first, i64 page_stride, i64 stride,
                              i64 apart) const {
    if constexpr (kStepRuns == 1) return first + token * stride;
    const int at = __shfl_sync(kFullMask, place, page_step * kStepRuns + token / kPageRun);
    return row_at(head, page_stride, stride, apart, at, token % kPageRun);
  }
  LEAN_DEVICE const char* k_row(int token) const { return row(token, k_head, k, k_page_stride, k_stride, k_apart); }
  LEAN_DEVICE const char* v_row(int token) const { return row(token, v_head, v, v_page_stride, v_stride, v_apart); }
#if defined(LEAN_STAGED_SCALES)
  LEAN_DEVICE const char* scale(int token) const {
    return row(token, scale_head, first_scale, scale_page_stride, scale_stride, 0);
  }
#endif

  LEAN_DEVICE void next() {
    read += kRoundTokens;
    if (++page_step == kPageSteps) {
      page_step = 0;
      take_runs();
    }
    locate();
  }
};
