// merge/held_results.cuh -- a segment's results are complete in the registers of the warps that attended to it.

typedef Attention Results;
struct MergeBuffer {};

LEAN_DEVICE void share_state(MergeBuffer&, const Attention&) {}
LEAN_DEVICE const Results& results_of(MergeBuffer&, const Attention& a, bool whole) {
  if constexpr (kRowsAreSplit) {
    // A warp writes its results where others of its warpgroup have q, which theirs may not have read yet.
    if (whole) return sync_held(), a;
  }
  sync_workers();  // all are done with the fix-up before
  return a;
}

// Stores this CTA's state as its partial.
LEAN_DEVICE void store_own_partial(const LeanDecodeArgs& args, const Contributors& c, const Results& results) {
  const int row = first_held_row(), first = first_held_column(row);
  float *columns = partial_column(own_partial(args, c), first), *states = partial_state(own_partial(args, c), first);
  asm volatile("" : "+l"(columns), "+l"(states));  // lest they be worked out anew for each column
  for_each_held(results, row, [&](int offset, const RowState& state, const float4& o) {
    store_column(columns + offset * 4, o, states + offset / kStateColumns * 2, has_state(first), state);
  });
}
