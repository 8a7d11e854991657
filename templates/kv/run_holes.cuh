// kv/run_holes.cuh -- which tokens of a step nobody sees, where a step is made of up to 32 runs of selected tokens.

// The runs of a step that are holes, and those that are cut off behind their first `left` tokens, one bit each.
struct Holes {
  u32 runs, cut;
  int left;
};
LEAN_DEVICE bool any_hole(const Holes& holes) { return (holes.runs | holes.cut) != 0; }

// To be called by a whole warp, and only where there are any: load paths know that from what they look up, so that
// other steps need not ask.
LEAN_DEVICE Holes holes_of(const LeanDecodeArgs& args, const Segment& s, const Step& step) {
  const int offset = (int)threadIdx.x % 32 * kPageRun, read = step.token + offset, tokens = selectable_tokens(args, s);
  LeanSelectedRun run = {0, kPageRun};
  bool hole = false;
  if (offset < step.count) {
    run = selected_run(selection_of(args, s)[read / kSelectionBlock], read, tokens);
    hole = is_hole(page_of_selected(pages_of(args, s), run.token), args.pool_pages);
  }
  return {__ballot_sync(kFullMask, hole), __ballot_sync(kFullMask, !hole && run.count < kPageRun),
          (int)((u32)tokens % kPageRun)};
}

// Whether nobody sees token number `offset` of the step.
LEAN_DEVICE bool in_hole(const Holes& holes, int offset) {
  const int run = offset / kPageRun;
  return (holes.runs >> run & 1) != 0 || ((holes.cut >> run & 1) != 0 && offset % kPageRun >= holes.left);
}
