// kv/produce_paged.cuh -- the producer for a paged cache. A step is made of runs of kPageRun tokens, which never
// cross a page; each run of a panel is a copy of its own. Lane l holds the page of run l of the next 32 runs, so that
// one coalesced read of the page table serves many steps. The next 32 are requested one such read ahead.
// ---
// Where a step is one run, a copy takes all panels of a part.

constexpr int kStepRuns = kStepTokens / kPageRun;
constexpr int kPageSteps = 32 / kStepRuns;    // steps whose pages the warp holds
constexpr bool kWholeParts = kStepRuns == 1;  // a copy takes all panels of a part, not one of them
LEAN_DEVICE constexpr int copies_of(int panels) { return kStepRuns * (kWholeParts ? panels > 0 : panels); }
static_assert(kPageSize % kPageRun == 0 && kStepTokens % kPageRun == 0, "runs cross neither pages nor steps");
static_assert(kStepRuns <= 32 && kPageRun % 8 == 0, "a run is made of swizzle atoms");

// What the page table has for this lane's run, of the steps from read index `from` on; 0 for a run without tokens.
LEAN_DEVICE int read_page(const Segment& s, const int* table, int from) {
  const int lane = threadIdx.x % 32, run = lane % kStepRuns * kPageRun;
  const Step step = step_at(s, from + lane / kStepRuns * kStepTokens);
  return run < step.count ? table[(step.token + run) / kPageSize] : 0;
}

// Requests every step of this CTA's range as stages become free. To be called by the whole producer warp.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                         const KvRing& ring, Walk& walk) {
  const int lane = threadIdx.x % 32;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    const int* table = args.page_table + s.request * args.page_table_stride;
    int page = 0, next_page = read_page(s, table, first_read(s)), page_step = kPageSteps - 1;
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      if (++page_step == kPageSteps) {
        page_step = 0;
        page = next_page;  // the copies of a hole lie outside the pool and bring zeros
        if (__any_sync(kFullMask, is_hole(page, args.pool_pages)) && lane == 0) note_hole();
        next_page = read_page(s, table, read + kPageSteps * kStepTokens);
      }
      const Step step = step_at(s, read);
      const int runs = (step.count + kPageRun - 1) / kPageRun;
      const u32 full = full_barriers(ring, writer.at), stage = writer.stage(ring);
      wait_for_tokens(s, step.token);
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        if (kPartProducers > 1 && !produces_part(part)) continue;
        writer.claim(args, ring, part);
        if (lane == 0) expect_bytes(full + part * 8, (u32)(runs * kPageRun * (part_bytes(part) / kStepTokens)));
        __syncwarp();
        const int kKCopies = copies_of(k_panels(part)), kCopies = kKCopies + copies_of(v_panels(part));
#pragma unroll 1
        for (int first = 0; first < kCopies; first += 32) {
          const int copy = first + lane, of_operand = copy < kKCopies ? copy : copy - kKCopies,
                    run = of_operand % kStepRuns,
                    panel = of_operand / kStepRuns * (kWholeParts ? kKPanels : 1) +
                            (copy < kKCopies ? first_panel(part) : 0);
          const int id = __shfl_sync(kFullMask, page, page_step * kStepRuns + run);
          if (copy < kCopies && run < runs)
            copy_box(stage + (copy < kKCopies ? 0 : kKStageBytes) + (u32)(panel * kPanelBytes + run * kPageRun * 128),
                     copy < kKCopies && part == 0 ? k_map : v_map, (step.token + run * kPageRun) % kPageSize, panel, s,
                     id, full + part * 8);
        }
      }
      if constexpr (kPrefetches && kWholeParts) {
        const int id =
            __shfl_sync(kFullMask, page_step + 1 < kPageSteps ? page : next_page, (page_step + 1) % kPageSteps);
        if (lane == 0 && read + kStepTokens < end)
          prefetch_part(s, k_map, v_map, step_at(s, read + kStepTokens).token % kPageSize, id);
      }
      writer.next();
    }
  } while (next_segment(args, walk));
  writer.finish(args, ring);
}
