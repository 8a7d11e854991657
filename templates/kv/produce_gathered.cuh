// kv/produce_gathered.cuh -- the producer of load path "tensor" for selected tokens that lie one by one. A warpgroup
// copies their rows, 16 bytes a thread, to where a swizzled tensor copy would put them (PTX ISA, "cp.async"). Each warp
// has 16 tokens of a step: lane l holds the place of token l % 16 of the next step or, from lane 16 on, of the one
// after it. Rows of holes, and of tokens behind the last one, arrive as zeros.

static_assert(kPageRun == 1 && kSelectionBlock > 0, "runs are tensor copies");
constexpr int kGatherRows = kStepTokens / 4;  // of a warp
constexpr int kRowsAtOnce = 4;                // of a warp's copy: eight lanes a row
constexpr int kRowTurns = kGatherRows / kRowsAtOnce;

// A barrier of the producer's warpgroup, behind which the ring is initialised.
LEAN_DEVICE void sync_gatherers() { asm volatile("bar.sync 7, 128;" ::: "memory"); }

// Arrives at the barrier once the copies that this thread has issued are there.
LEAN_DEVICE void arrive_with_copies(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Requests every step of this CTA's range as stages become free. To be called by the whole producer warpgroup.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap&, const LeanTensorMap&, const KvRing& ring,
                         Walk& walk) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, column = lane % 8, row_of_turn = lane / 8;
  const i64 k_stride = 2 * args.k_stride_token, k_page_stride = 2 * args.k_stride_batch;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    const auto run_at = [&](int from) {
      return from + lane / kGatherRows * kStepTokens + warp * kGatherRows + lane % kGatherRows;
    };
    const char* const k_head = (const char*)args.k + 2 * (s.kv_head * args.k_stride_head) + column * 16;
    SelectedRuns runs;
    runs.start(args, s, run_at(first_read(s)), run_at(first_read(s) + 2 * kStepTokens));
    int place = 0, page_step = 1;
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      if (++page_step == 2) {
        page_step = 0;
        place = runs.take(-1);
        runs.look_up(run_at(read + 2 * kStepTokens), run_at(read + 4 * kStepTokens));
      }
      const Step step = step_at(s, read);
      const u32 full = full_barriers(ring, writer.at), stage = writer.stage(ring);
      const u32 holes = __ballot_sync(kFullMask, place < 0) >> page_step * kGatherRows & 0xffffu;
      writer.claim(args, ring, 0);
      wait_for_tokens(s, step.token);
      if (lane == 0) ((unsigned short*)&selected_holes().of_stage[writer.at.stage])[warp] = (unsigned short)holes;
      int at[kRowTurns];
#pragma unroll
      for (int turn = 0; turn < kRowTurns; turn++) {
        const int row = turn * kRowsAtOnce + row_of_turn;
        at[turn] = __shfl_sync(kFullMask, place, page_step * kGatherRows + row);
        if (warp * kGatherRows + row >= step.count) at[turn] = -1;
      }
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        if (part > 0) writer.claim(args, ring, part);
#pragma unroll
        for (int turn = 0; turn < kRowTurns; turn++) {
          const int row = warp * kGatherRows + turn * kRowsAtOnce + row_of_turn;
          const bool valid = at[turn] >= 0;
          const u32 token = valid ? token_of_pool(at[turn]) : 0u;
          const u32 to = stage + (u32)(row * 128 + (column ^ row % 8) * 16);
          const char* const k = k_head + to_cache(at[turn], to_second_k(args)) + token / kPageSize * k_page_stride +
                                token % kPageSize * k_stride;
#pragma unroll
          for (int panel = first_panel(part); panel < first_panel(part + 1); panel++)
            copy_async_16(to + (u32)(panel * kPanelBytes), k + panel * 128, valid);
          if constexpr (!kLatent) {
            const char* const v_head = (const char*)args.v + 2 * (s.kv_head * args.v_stride_head) + column * 16;
            const char* const v = v_head + to_cache(at[turn], to_second_v(args)) +
                                  token / kPageSize * (2 * args.v_stride_batch) +
                                  token % kPageSize * (2 * args.v_stride_token);
#pragma unroll
            for (int panel = 0; panel < kVPanels; panel++)
              copy_async_16(to + (u32)(kKStageBytes + panel * kPanelBytes), v + panel * 128, valid);
          }
        }
        arrive_with_copies(full + (u32)(part * 8));
        if (lane == 0) arrive(full + (u32)(part * 8));  // which publishes the holes
      }
      writer.at.next();
    }
  } while (next_segment(args, walk));
  writer.finish(args, ring);
}
