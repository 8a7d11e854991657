// merge/finish_segment.cuh -- the end of a segment: a whole output tile is written, a shared one goes to the fix-up.

LEAN_DEVICE void finish_segment(const LeanDecodeArgs& args, const Walk& here, bool whole, FixUp& fix,
                                const Results& results) {
  if (!whole) return finish_fix_up(args, here, fix, results);
  write_results(args, here.segment, results);
}
