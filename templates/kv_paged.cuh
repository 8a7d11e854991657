// kv_paged.cuh -- where a warp's steps lie in a paged cache. A step is made of runs of kPageRun tokens that never cross
// a page; lane l keeps the page of run l of the next 32, so that one coalesced read of the table serves many steps and
// the one after is on its way long before it is needed.

constexpr int kStepRuns = kStepTokens / kPageRun;  // runs a step, at most 32
constexpr int kBlockSteps = 32 / kStepRuns;        // steps that 32 runs make

struct KvCursor {
  i64 k_stride, v_stride;            // bytes from row to row
  i64 k_page_stride, v_page_stride;  // and from page to page
  const int* table;                  // the request's pages
  const char* k_head;                // the KV head's rows of page 0
  const char* v_head;
  const char* k;  // row of the step's first token; of use where a step is one run
  const char* v;
  int place, end;  // of the step, and where the segment ends
  int sinks, shift;
  int lane;
  int block_step;       // of the steps whose pages the lanes hold
  int page, next_page;  // of this lane's run in these steps, and in those after

  LEAN_DEVICE void init(const LeanDecodeArgs& args, int lane_index) {
    k_stride = k_row_stride(args), v_stride = v_row_stride(args);
    k_page_stride = args.k_stride_batch * kKvBytes, v_page_stride = args.v_stride_batch * kKvBytes;
    lane = lane_index;
  }

  LEAN_DEVICE int token_at(int at) const { return at + (kWindow > 0 && at >= sinks ? shift : 0); }

  // The page of this lane's run, of the steps from `from` on; 0 where it has no tokens.
  LEAN_DEVICE int read_page(int from) const {
    const int at = from + lane / kStepRuns * kRoundTokens, run = lane % kStepRuns * kPageRun;
    const Step step = step_at(at, end, sinks, shift);
    return run < step.count ? table[(step.token + run) / kPageSize] : 0;
  }

  // Where the step's rows are, if they are one run.
  LEAN_DEVICE void locate() {
    if constexpr (kStepRuns == 1) {
      const int id = __shfl_sync(kFullMask, page, block_step), token = token_at(place) % kPageSize;
      k = k_head + id * k_page_stride + token * k_stride;
      v = v_head + id * v_page_stride + token * v_stride;
    }
  }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s, int warp) {
    place = first_place(s) + warp * kStepTokens;
    end = end_place(s);
    sinks = sink_places(s), shift = s.visible.shift;
    table = args.page_table + s.request * args.page_table_stride;
    k_head = (const char*)args.k + kKvBytes * (s.kv_head * args.k_stride_head);
    v_head = (const char*)args.v + kKvBytes * (s.kv_head * args.v_stride_head);
    block_step = 0;
    page = read_page(place);
    next_page = read_page(place + kBlockSteps * kRoundTokens);
    locate();
  }

  LEAN_DEVICE bool done() const { return place >= end; }
  LEAN_DEVICE int tokens() const { return kWindow > 0 ? step_at(place, end, sinks, shift).count : end - place; }

  // Rows of the step's tokens. With several runs a step all lanes must ask together.
  LEAN_DEVICE const char* row(int token, const char* head, const char* first, i64 page_stride, i64 stride) const {
    if constexpr (kStepRuns == 1) return first + token * stride;
    const int id = __shfl_sync(kFullMask, page, block_step * kStepRuns + token / kPageRun);
    return head + id * page_stride + (token_at(place) + token) % kPageSize * stride;
  }
  LEAN_DEVICE const char* k_row(int token) const { return row(token, k_head, k, k_page_stride, k_stride); }
  LEAN_DEVICE const char* v_row(int token) const { return row(token, v_head, v, v_page_stride, v_stride); }

  LEAN_DEVICE void next() {
    place += kRoundTokens;
    if (++block_step == kBlockSteps) {
      block_step = 0;
      page = next_page;
      next_page = read_page(place + kBlockSteps * kRoundTokens);
    }
    locate();
  }
};
