// kv/produce_rows.cuh -- the producer of load path "tensor" for a latent cache of bytes, whose rows have a format of
// their own or elements of one byte, where warpgroups have roles and leave no room for rows beside the ring. Its warps
// copy rows as they are and convert them to operands in the stages, once for K and V (kv/row_panels.cuh). Each of them
// goes on by itself: it asks for the rows of the next step as soon as its stage is free, and converts a step once its
// rows are there, whichever is first.

// Whether claim_all would return at once for the stage at hand.
LEAN_DEVICE bool is_free(const RingWriter& writer, const KvRing& ring) {
  if (writer.filled < kStages) return true;
  const u32 parity = writer.at.parity ^ 1;
  bool free = true;
#pragma unroll
  for (int part = 0; part < kStageParts; part++)
    free &= is_complete_now(full_barriers(ring, writer.at) + part * 8, parity) &&
            is_complete_now(empty_barriers(ring, writer.at) + part * 8, parity);
  return free;
}

// Requests and converts every step of this CTA's range as stages become free. To be called by all warps that copy rows.
LEAN_DEVICE void produce(const LeanDecodeArgs& args, const LeanTensorMap&, const LeanTensorMap&, const KvRing& ring,
                         Walk& walk) {
  const int lane = threadIdx.x % 32;
  const auto k_head = [&] { return first_cache(args) + walk.segment.kv_head * args.k_stride_head; };
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < kStages; s++) init_barrier(arrived_barrier(s), 32);
  }
  __syncwarp();
  RingWriter writer;
  RingPosition oldest;  // of the stages that are requested and not converted
  int requested = 0;    // how many these are
  RowPlaces places;
  i64 row = 0;
  bool known = false;  // whether the lanes' rows in hand are those of the next step to request
  int turn = 0;        // which of the steps in hand that is
  int read = first_read(walk.segment);
  places.start(args, walk.segment);
#pragma unroll 1
  for (bool more = true; more || requested > 0;) {
    const Segment& s = walk.segment;
    if (more && read >= end_read(s)) {
      more = next_segment(args, walk);
      read = first_read(s), turn = 0, known = false;
      if (more) places.start(args, s);
      continue;
    }
    // While there are rows to convert, nothing else may be waited for: readers free a part only once the next step is
    // there.
    const bool free = more && (requested == 0 || is_free(writer, ring));
    if (!free) {
      if (!is_complete_now(arrived_barrier(oldest.stage), oldest.parity)) continue;
      convert_rows(ring.stages + oldest.stage * kStageBytes, oldest.stage, full_barriers(ring, oldest));
      oldest.next();
      requested--;
      continue;
    }
    if (!known) {
      if constexpr (kAppend) {
        if (kPdl && holds_newest(s)) wait_for_previous_kernel();
        append_tokens(args, s, gather_warp(), kGatherWarps);
      }
      row = places.take(s, read), known = true;
      prefetch_row<kRowBytes>(k_head() + row, row >= 0);
    }
    claim_all(args, ring, writer);
    // If that was in vain, the two CTAs of a cluster have other steps, because lengths have changed under way. A second
    // arrival at a barrier that the other CTA does not complete would end the launch with an error.
    if (kConvertingCtas > 1 && requested == 0 && !is_free(writer, ring)) return;
    wait_for_tokens(s, step_at(s, read).token);
    if constexpr (kPageSize > 0) {
      const u32 holes = __ballot_sync(kFullMask, row < 0) >> turn * kWarpRows;
      if (lane == 0) note_holes(writer.at.stage, holes);
    }
    request_rows(k_head(), row, places.to_scales, turn, writer.stage(ring), writer.at.stage);
    writer.next();
    requested++;
    turn = (turn + 1) % kStepsInHand;
    read += kStepTokens;
    if (turn == 0) {
      row = places.take(s, read);
      prefetch_row<kRowBytes>(k_head() + row, row >= 0);
    }
  }
}
