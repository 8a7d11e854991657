// attend/steps_in_turn.cuh -- the steps of a segment, where each is attended to before the next one: warpgroups take
// them in turn, or all take every step.

struct StepOrder {
  RingPosition at;  // of the next step
  int turn = 0;     // the warpgroup that takes it
#if defined(LEAN_APPENDS_TO_STAGE)
  NewChunk fresh = {};  // of the segment's new rows, what this thread has from the start on
#endif
};

LEAN_DEVICE void attend_segment(const LeanDecodeArgs& args, const Segment& s, const KvRing& ring, StepOrder& order,
                                Operands& operands, Attention& attention, int warpgroup) {
  const int end = end_read(s);
#pragma unroll 1
  for (int read = first_read(s); read < end; read += kStepTokens) {
    if (kAllTakeSteps || order.turn == warpgroup) {
      const Step step = step_at(s, read);
#if defined(LEAN_APPENDS_TO_STAGE)
      append_to_stage(args, s, step, ring, order.at, order.fresh, warpgroup);
#endif
      wait_ring(args, full_barriers(ring, order.at), order.at.parity);
      if constexpr (kGathers) fence_async_proxy();
      attend(args, s, step, ring.stages + order.at.stage * kStageBytes, operands, attention, warpgroup);
      if (threadIdx.x % 32 == 0) arrive(empty_barriers(ring, order.at));
    }
    if (++order.turn == kWarpgroups) order.turn = 0;
    order.at.next();
  }
}
