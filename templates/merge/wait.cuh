// merge/wait.cuh -- fix-up "wait": contributors store their partials, wait for each other's, and each reduce a slice
// of the columns. The paper's host block (LeanAttention, algorithm 2) waits and reduces alone. Spread over all
// contributors, a reduction of any width takes one hop through L2. This is correct only on a co-resident grid
// (cooperative launch). Sums are taken in a fixed order, so results repeat bit for bit.
//
// A CTA shares at most two output tiles, the one that it begins inside of and the one that it ends inside of. It waits
// for neither before all its own partials are stored.

LEAN_DEVICE void plan_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f) {
  f.c = contributors_of(args, walk);
  keep_own_partial(args, f.c);
}

LEAN_DEVICE void finish_fix_up(const LeanDecodeArgs& args, const Walk& walk, FixUp& f, const Results& results) {
  store_own_partial(args, f.c, results);
  if (threadIdx.x == 0) shared_tiles()[f.c.mine == 0 ? 1 : 0] = {f.c, walk.segment};
}

LEAN_DEVICE void end_fix_up(const LeanDecodeArgs& args) {
  if constexpr (!kMerges) return;
  sync_workers();
  u32 turn = threadIdx.x / 32;
#pragma unroll 1
  for (int which = 0; which < 2; which++) {
    const Contributors c = shared_tiles()[which].c;
    if (c.count == 0) continue;
    if (which == 1 && shared_tiles()[0].c.count > 0)  // warps that the first tile left idle begin with the second
      turn = (turn + kWarps - share_turns(shared_tiles()[0].c) % kWarps) % kWarps;
    const Segment& segment = shared_tiles()[which].segment;
    reduce_share(args, c, segment, turn);
  }
}
