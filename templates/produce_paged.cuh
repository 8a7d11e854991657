// produce_paged.cuh -- the producer of load path "tensor" for a paged cache. A step is made of runs of kPageRun tokens
// that never cross a page; each run of a panel is one copy, or a whole step of all panels where it is one run. Lane l
// keeps the page of run l of the next 32, so that one coalesced read of the table serves many steps and the one after
// is on its way long before it is needed.

constexpr int kStepRuns = kStepTokens / kPageRun;
constexpr int kBlockSteps = 32 / kStepRuns;         // steps that 32 runs make
constexpr int kBoxPanels = kStepRuns == 1 ? 0 : 1;  // panels a copy takes; 0: all of them
constexpr int kKCopies = kStepRuns * (kBoxPanels == 0 ? 1 : kKPanels);
constexpr int kCopies = kKCopies + kStepRuns * (kBoxPanels == 0 ? 1 : kVPanels);
static_assert(kStepRuns <= 32 && kPageRun % 8 == 0, "a run is made of swizzle atoms");

// The page of this lane's run, of the steps from `from` on; 0 where it has no tokens.
LEAN_DEVICE int read_page(const Segment& s, const int* table, int from) {
  const int lane = threadIdx.x % 32, run = lane % kStepRuns * kPageRun;
  const Step step = step_at(s, from + lane / kStepRuns * kStepTokens);
  return run < step.count ? table[(step.token + run) / kPageSize] : 0;
}

// Requests every step of this CTA's range, as stages become free. By the whole producer warp.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                         const KvRing& ring, Walk& walk) {
  const int lane = threadIdx.x % 32;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_place(s);
    if (kAppend && kPdl && holds_newest(s)) wait_for_previous_kernel();
    append_tokens(args, s, 0, 1);
    const int* table = args.page_table + s.request * args.page_table_stride;
    int page = 0, next_page = read_page(s, table, first_place(s)), block_step = kBlockSteps - 1;
#pragma unroll 1
    for (int place = first_place(s); place < end; place += kStepTokens) {
      if (++block_step == kBlockSteps) {
        block_step = 0;
        page = next_page;
        next_page = read_page(s, table, place + kBlockSteps * kStepTokens);
      }
      const Step step = step_at(s, place);
      const int runs = (step.count + kPageRun - 1) / kPageRun;
      const u32 full = writer.full(ring), stage = writer.stage(ring);
      writer.claim(ring, s, step.token);
      if (lane == 0) expect_bytes(full, (u32)(runs * kPageRun * (kHeadDim + kValueDim) * 2));
      __syncwarp();
#pragma unroll 1
      for (int first = 0; first < kCopies; first += 32) {
        const int copy = first + lane, of_operand = copy < kKCopies ? copy : copy - kKCopies,
                  run = of_operand % kStepRuns, panel = of_operand / kStepRuns;
        const int id = __shfl_sync(kFullMask, page, block_step * kStepRuns + run);
        if (copy < kCopies && run < runs)
          copy_box(stage + (copy < kKCopies ? 0 : kKStageBytes) + (u32)(panel * kPanelBytes + run * kPageRun * 128),
                   copy < kKCopies ? k_map : v_map, (step.token + run * kPageRun) % kPageSize, panel, s.kv_head, id,
                   full);
      }
      writer.at.next();
    }
  } while (next_segment(args, walk));
}
