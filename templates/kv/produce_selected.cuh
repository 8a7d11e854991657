// kv/produce_selected.cuh -- the producer of load path "tensor" for what query tokens have selected. A step is made of
// runs of kPageRun tokens. Each run of a panel is a copy of its own; where a step is one run, a copy takes all panels
// of a part. Lane l holds the place of run l of the next 32 runs (kv/selection.cuh).

constexpr int kStepRuns = kStepTokens / kPageRun;
constexpr int kPageSteps = 32 / kStepRuns;    // steps whose runs the warp holds
constexpr bool kWholeParts = kStepRuns == 1;  // a copy takes all panels of a part, not one of them
LEAN_DEVICE constexpr int copies_of(int panels) { return kStepRuns * (kWholeParts ? panels > 0 : panels); }
static_assert(kPageSize % kPageRun == 0 && kSelectionBlock % kPageRun == 0 && kStepTokens % kPageRun == 0,
              "runs cross neither pages nor blocks nor steps");
static_assert(kStepRuns <= 32 && kPageRun % 8 == 0, "a run is made of swizzle atoms");

// Requests every step of this CTA's range as stages become free. To be called by the whole producer warp.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap& k_map, const LeanTensorMap& v_map,
                         const KvRing& ring, Walk& walk) {
  constexpr int kHole = -kPageSize;  // a copy from it lies outside the pool and brings zeros
  const int lane = threadIdx.x % 32;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    const auto run_at = [&](int from) { return from + lane * kPageRun; };
    SelectedRuns runs;
    runs.start(args, s, run_at(first_read(s)), run_at(first_read(s) + kPageSteps * kStepTokens));
    int place = 0, page_step = kPageSteps - 1;
    u32 holes = 0, cut = 0;  // of the 32 runs, one bit each
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      if (++page_step == kPageSteps) {
        page_step = 0;
        place = runs.take(kHole);
        holes = __ballot_sync(kFullMask, place < 0);
        cut = __ballot_sync(kFullMask, runs.count < kPageRun) & ~holes;
        runs.look_up(run_at(read + kPageSteps * kStepTokens), run_at(read + 2 * kPageSteps * kStepTokens));
      }
      const Step step = step_at(s, read);
      const int step_runs = (step.count + kPageRun - 1) / kPageRun;
      const u32 full = full_barriers(ring, writer.at), stage = writer.stage(ring);
      wait_for_tokens(s, step.token);
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        if (kPartProducers > 1 && !produces_part(part)) continue;
        writer.claim(args, ring, part);
        if (part == 0 && lane == 0) {
          constexpr u32 kOfStep = kFullMask >> (32 - kStepRuns);
          const int first = page_step * kStepRuns;
          selected_holes().of_stage[writer.at.stage] = {holes >> first & kOfStep, cut >> first & kOfStep, runs.left()};
        }
        if (lane == 0) expect_bytes(full + part * 8, (u32)(step_runs * kPageRun * (part_bytes(part) / kStepTokens)));
        __syncwarp();
        const int kKCopies = copies_of(k_panels(part)), kCopies = kKCopies + copies_of(v_panels(part));
#pragma unroll 1
        for (int first = 0; first < kCopies; first += 32) {
          const int copy = first + lane, of_operand = copy < kKCopies ? copy : copy - kKCopies,
                    run = of_operand % kStepRuns,
                    panel = of_operand / kStepRuns * (kWholeParts ? kKPanels : 1) +
                            (copy < kKCopies ? first_panel(part) : 0);
          const int at = __shfl_sync(kFullMask, place, page_step * kStepRuns + run);
          if (copy < kCopies && run < step_runs)
            copy_box(stage + (copy < kKCopies ? 0 : kKStageBytes) + (u32)(panel * kPanelBytes + run * kPageRun * 128),
                     copy < kKCopies && part == 0 ? k_map : v_map, at % kPageSize, panel, s, at / kPageSize,
                     full + part * 8);
        }
      }
      writer.next();
    }
  } while (next_segment(args, walk));
  writer.finish(args, ring);
}
