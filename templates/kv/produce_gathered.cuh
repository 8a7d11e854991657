// kv/produce_gathered.cuh -- the producer of load path "tensor" for tokens that lie one by one: in pages whose size is
// no multiple of eight, in two caches, or selected so. A warpgroup copies their rows, 16 bytes a thread, to where a
// swizzled tensor copy would put them (PTX ISA, "cp.async"). Each warp has 16 tokens of a step; where they lie, its
// lanes hold for two steps (kv/paged_tokens.cuh or kv/selected_tokens.cuh). Rows of holes, and of tokens behind the
// last one, arrive as zeros.

static_assert(kPageRun == 1, "runs are tensor copies");
constexpr int kRowsAtOnce = 4;  // of a warp's copy: eight lanes a row
constexpr int kRowTurns = kWarpRows / kRowsAtOnce;

// Requests every step of this CTA's range as stages become free. To be called by the whole producer warpgroup.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap&, const LeanTensorMap&, const KvRing& ring,
                         Walk& walk) {
  const int lane = threadIdx.x % 32, column = lane % 8, row_of_turn = lane / 8;
  RingWriter writer;
  do {
    const Segment& s = walk.segment;
    const int end = end_read(s);
    const i64 k_head = 2 * (s.kv_head * args.k_stride_head) + column * 16;
    TokenPlaces places;
    places.start(args, s);
    int place = 0, turn_of_places = kStepsInHand;
#pragma unroll 1
    for (int read = first_read(s); read < end; read += kStepTokens) {
      if (turn_of_places == kStepsInHand) place = places.take(s, read), turn_of_places = 0;
      const Step step = step_at(s, read);
      const u32 full = full_barriers(ring, writer.at), stage = writer.stage(ring);
      const u32 holes = __ballot_sync(kFullMask, place < 0) >> turn_of_places * kWarpRows;
      wait_for_tokens(s, step.token);
      int at[kRowTurns];
#pragma unroll
      for (int turn = 0; turn < kRowTurns; turn++) {
        const int row = turn * kRowsAtOnce + row_of_turn;
        at[turn] = __shfl_sync(kFullMask, place, turn_of_places * kWarpRows + row);
        if (gather_warp() * kWarpRows + row >= step.count) at[turn] = -1;
      }
#pragma unroll
      for (int part = 0; part < kStageParts; part++) {
        writer.claim(args, ring, part);
        if (part == 0 && lane == 0) note_holes(writer.at.stage, holes);
#pragma unroll
        for (int turn = 0; turn < kRowTurns; turn++) {
          const int row = gather_warp() * kWarpRows + turn * kRowsAtOnce + row_of_turn;
          const bool valid = at[turn] >= 0;
          const PoolRow from = valid ? pool_row(at[turn], step.token + row) : PoolRow{0, 0};
          const u32 to = stage + (u32)(row * 128 + (column ^ row % 8) * 16);
          const char* const k = k_cache(args, at[turn]) + k_head + from.page * (2 * args.k_stride_batch) +
                                from.token * (2 * args.k_stride_token);
#pragma unroll
          for (int panel = first_panel(part); panel < first_panel(part + 1); panel++)
            copy_async_16(to + (u32)(panel * kPanelBytes), k + panel * 128, valid);
          if (v_panels(part) > 0) {
            const i64 v_head = 2 * (s.kv_head * args.v_stride_head) + column * 16;
            const char* const v = v_cache(args, at[turn]) + v_head + from.page * (2 * args.v_stride_batch) +
                                  from.token * (2 * args.v_stride_token);
#pragma unroll
            for (int panel = 0; panel < kVPanels; panel++)
              copy_async_16(to + (u32)(kKStageBytes + panel * kPanelBytes), v + panel * 128, valid);
          }
        }
        arrive_with_copies(full + (u32)(part * 8));
        if (lane == 0) arrive(full + (u32)(part * 8));  // which publishes the holes
      }
      writer.next();
      turn_of_places++;
    }
  } while (next_segment(args, walk));
  writer.finish(args, ring);
}
