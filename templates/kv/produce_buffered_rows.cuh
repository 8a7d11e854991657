// kv/produce_buffered_rows.cuh -- the producer of load path "tensor" for a latent cache of bytes, whose rows have a
// format of their own or elements of one byte, where shared memory has room for a step's rows beside the ring
// (kv/row_buffer.cuh). Each warp goes on by itself: it takes its rows of a step into registers, converts them into a
// stage once one is free, and then requests its rows of the next step.

// Requests and converts every step of this CTA's range. To be called by all warps that copy rows.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap&, const LeanTensorMap&, const KvRing& ring,
                         Walk& walk) {
  const bool leads = threadIdx.x % 32 == 0;
  const u32 buffer = ring.stages + kStages * kStageBytes;
  if (leads) init_row_barrier();
  __syncwarp();
  RingWriter writer;
  RowPlaces places;
  i64 row = 0;          // where the lanes' rows of the steps in hand lie
  int turn = 0;         // which of these is the next one to request
  RowBits bits = {};    // of the rows of the step that was requested
  bool entered = true;  // whether no step of the segment was requested
  int read = first_read(walk.segment);
  places.start(args, walk.segment);
  // Requests the next step. False: the range has no more.
  const auto request = [&] {
    const Segment& s = walk.segment;
    while (read >= end_read(s)) {
      if (!next_segment(args, walk)) return false;
      read = first_read(s), turn = 0, entered = true;
      places.start(args, s);
    }
    if constexpr (kAppend) {
      if (entered) {
        if (kPdl && holds_newest(s)) wait_for_previous_kernel();
        append_tokens(args, s, gather_warp(), kGatherWarps);
      }
    }
    entered = false;
    if (turn == 0) row = places.take(s, read);
    wait_for_tokens(s, step_at(s, read).token);
    bits = request_rows(first_cache(args) + s.kv_head * args.k_stride_head, row, places.to_scales, turn, buffer);
    turn = (turn + 1) % kStepsInHand;
    read += kStepTokens;
    return true;
  };
  u32 parity = 0;
#pragma unroll 1
  for (bool more = request(); more; more = request(), parity ^= 1) {
    while (!is_complete(row_barrier(), parity)) continue;
    LaneRows rows;
    load_rows(buffer, bits, rows);
    claim_all(args, ring, writer);
    if constexpr (kPageSize > 0) {
      if (leads) note_holes(writer.at.stage, ~bits.exist);
    }
    store_rows(writer.stage(ring), rows);
    publish_rows();  // and all have read the buffer, which may be overwritten
    arrive_for_warp<0, kStageParts>(full_barriers(ring, writer.at));
    writer.next();
  }
}
