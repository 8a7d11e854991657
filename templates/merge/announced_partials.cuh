// merge/announced_partials.cuh -- a thread takes columns of several partials that announce themselves
// (merge/workspace.cuh).

constexpr u32 kPollNs = 64;  // between two polls of all that a thread waits for

// Waits for columns of partials, column_of(i) of partial_of(i) for i < kCount if wanted(i), and puts the zeros back.
// What is not wanted counts as nothing. To be called by a whole warp.
template <int kCount, class PartialOf, class ColumnOf, class Wanted>
LEAN_DEVICE void take_partials(const LeanDecodeArgs& args, PartialOf partial_of, ColumnOf column_of, Wanted wanted,
                               RowState (&stat)[kCount], float4 (&out)[kCount]) {
  u32 waited = 0;
  while (true) {
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      stat[i] = {kNegInf, 0.0f}, out[i] = make_float4(-0.0f, 0, 0, 0);  // has arrived, too
      load_partial(partial_of(i), (int)column_of(i), wanted(i), stat[i], out[i]);
    }
    bool all = true;
#pragma unroll
    for (int i = 0; i < kCount; i++) all &= arrived(stat[i], out[i]);
    if (__all_sync(kFullMask, all)) break;  // the vote, so that nobody clears a state that others still wait for
    if (!goes_on_waiting(args, waited)) {
#pragma unroll
      for (int i = 0; i < kCount; i++) give_up(wanted(i), stat[i], out[i]);
      break;
    }
    __nanosleep(kPollNs);
  }
#pragma unroll
  for (int i = 0; i < kCount; i++) clear_partial(partial_of(i), (int)column_of(i), wanted(i));
}
