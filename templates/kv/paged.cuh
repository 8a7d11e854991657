// kv/paged.cuh -- where a warp's steps lie in a paged cache. A step is made of runs of kPageRun tokens, which never
// cross a page. Lane l holds the page of run l of the warp's next 32 runs, so that one coalesced read of the page table
// serves many steps. The pages of the 32 runs after those are requested one such read ahead.

constexpr int kStepRuns = kStepTokens / kPageRun;  // runs of a step, at most 32
constexpr int kPageSteps = 32 / kStepRuns;         // steps whose pages a warp holds
static_assert(kPageSize % kPageRun == 0 && kStepTokens % kPageRun == 0, "runs cross neither pages nor steps");

struct KvCursor {
  i64 k_stride, v_stride;            // bytes from row to row
  i64 k_page_stride, v_page_stride;  // and from page to page
  const int* table;                  // the request's pages
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
  int sinks, shift;
#if defined(LEAN_WINDOW_OF_PART)
  int sink_tokens;
#endif
  int lane;
  int page_step;        // which of the steps whose pages the lanes hold
  int page, next_page;  // of this lane's run in those steps, and in the steps after; 0 for a hole in those steps
  int pool_pages;
  bool holes;  // whether the segment has had one

  LEAN_DEVICE void init(const LeanDecodeArgs& args, int lane_index) {
    k_stride = row_stride(kKRowBytes, args.k_stride_token), v_stride = row_stride(kVRowBytes, args.v_stride_token);
    k_page_stride = args.k_stride_batch * kKvBytes, v_page_stride = args.v_stride_batch * kKvBytes;
#if defined(LEAN_STAGED_SCALES)
    scale_stride = kScaleStrideBytes * args.kv_scale_stride_token;
    scale_page_stride = kScaleStrideBytes * args.kv_scale_stride_batch;
#endif
    lane = lane_index;
    pool_pages = args.pool_pages;
  }

  LEAN_DEVICE int token_at(int at) const { return at + (kWindow > 0 && at >= sinks ? shift : 0); }

  // What the page table has for this lane's run, of the steps from read index `from` on; 0 for a run without tokens.
  LEAN_DEVICE int read_page(int from) const {
    const int at = from + lane / kStepRuns * kRoundTokens, run = lane % kStepRuns * kPageRun;
#if defined(LEAN_WINDOW_OF_PART)
    const Step step = step_at(at, end, sinks, shift, sink_tokens);
#else
    const Step step = step_at(at, end, sinks, shift);
#endif
    return run < step.count ? table[(step.token + run) / kPageSize] : 0;
  }

  // Takes over what read_page has found. Of a hole, rows of page 0 travel, which nobody looks at (attend/score.cuh).
  LEAN_DEVICE void take_pages(int found) {
    const bool hole = is_hole(found, pool_pages);
    holes |= __any_sync(kFullMask, hole);
    page = hole ? 0 : found;
  }

  LEAN_DEVICE void locate() {
    if constexpr (kStepRuns == 1) {
      const int id = __shfl_sync(kFullMask, page, page_step), token = token_at(read) % kPageSize;
      k = k_head + id * k_page_stride + token * k_stride;
      v = v_head + id * v_page_stride + token * v_stride;
#if defined(LEAN_STAGED_SCALES)
      first_scale = scale_head + id * scale_page_stride + token * scale_stride;
#endif
    }
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    read = first_read(s) + warp * kStepTokens;
    end = end_read(s);
    sinks = sinks_end(s), shift = s.visible.shift;
#if defined(LEAN_WINDOW_OF_PART)
    sink_tokens = s.sink_tokens;
#endif
    table = args.page_table + s.request * args.page_table_stride;
    k_head = (const char*)args.k + kKvBytes * (s.kv_head * args.k_stride_head);
    v_head = (const char*)args.v + kKvBytes * (s.kv_head * args.v_stride_head);
#if defined(LEAN_STAGED_SCALES)
    scale_head = k_scales(args, s.kv_head * args.kv_scale_stride_head);
#endif
    page_step = 0;
    holes = false;
    take_pages(read_page(read));
    next_page = read_page(read + kPageSteps * kRoundTokens);
    locate();
  }

  LEAN_DEVICE bool done() const { return read >= end; }
  // At least the step's tokens; without a window all that are left of the segment.
#if defined(LEAN_WINDOW_OF_PART)
  LEAN_DEVICE int tokens() const { return step_at(read, end, sinks, shift, sink_tokens).count; }
#else
  LEAN_DEVICE int tokens() const { return kWindow > 0 ? step_at(read, end, sinks, shift).count : end - read; }
#endif

  // A row of the step. Where a step has several runs, all lanes must ask together.
  LEAN_DEVICE const char* row(int token, const char* head, const char* first, i64 page_stride, i64 stride) const {
    if constexpr (kStepRuns == 1) return first + token * stride;
    const int id = __shfl_sync(kFullMask, page, page_step * kStepRuns + token / kPageRun);
    return head + id * page_stride + (token_at(read) + token) % kPageSize * stride;
  }
  LEAN_DEVICE const char* k_row(int token) const { return row(token, k_head, k, k_page_stride, k_stride); }
  LEAN_DEVICE const char* v_row(int token) const { return row(token, v_head, v, v_page_stride, v_stride); }
#if defined(LEAN_STAGED_SCALES)
  LEAN_DEVICE const char* scale(int token) const {
    return row(token, scale_head, first_scale, scale_page_stride, scale_stride);
  }
#endif

#if defined(LEAN_BOXES)
  // Of a token of the step. All lanes must ask together.
  LEAN_DEVICE TokenPlace place(int token) const {
    const int id = __shfl_sync(kFullMask, page, page_step * kStepRuns + token / kPageRun);
    return {id, (token_at(read) + token) % kPageSize};
  }
#endif

  LEAN_DEVICE void next() {
    read += kRoundTokens;
    if (++page_step == kPageSteps) {
      page_step = 0;
      take_pages(next_page);
      next_page = read_page(read + kPageSteps * kRoundTokens);
    }
    locate();
  }
};
