// kv/run_holes.cuh -- which tokens of a step nobody sees, where a step is made of up to 32 runs of selected tokens.

// The runs of a step that are holes, and those that are cut off behind their first `left` tokens, one bit each.
struct Holes {
  u32 runs, cut;
  int left;
#if defined(LEAN_SECOND_CACHE)
  int second, second_left;  // the same of runs of the second cache, which begin with token number `second` of the step
#endif
};
LEAN_DEVICE bool any_hole(const Holes& holes) { return (holes.runs | holes.cut) != 0; }

// To be called by a whole warp, and only where there are any: load paths know that from what they look up, so that
// other steps need not ask.
LEAN_DEVICE Holes holes_of(const LeanDecodeArgs& args, const Segment& s, const Step& step) {
  const int offset = (int)threadIdx.x % 32 * kPageRun, read = step.token + offset, tokens = selectable_tokens(args, s);
  LeanSelectedRun run = {0, kPageRun};
  SecondCache second;
  second.start(args, s);
  bool hole = false;
  if (offset < step.count) {
    if (kSecondCache && read >= second.first) {
      run = selected_run(second.entry(read), read, second.tokens);
      hole = is_hole(second.page_of(run.token), second.pool_pages);
    } else {
      run = selected_run(selection_of(args, s)[read / kSelectionBlock], read, tokens);
      hole = is_hole(page_of_selected(pages_of(args, s), run.token), args.pool_pages);
    }
  }
  Holes holes = {__ballot_sync(kFullMask, hole), __ballot_sync(kFullMask, !hole && run.count < kPageRun),
                 (int)((u32)tokens % kPageRun)};
  if constexpr (kSecondCache)
    holes.second = second.first - step.token, holes.second_left = (int)((u32)second.tokens % kPageRun);
  return holes;
}

// Whether nobody sees token number `offset` of the step.
LEAN_DEVICE bool in_hole(const Holes& holes, int offset) {
  const int run = offset / kPageRun;
  int left = holes.left;
  if constexpr (kSecondCache) left = offset >= holes.second ? holes.second_left : left;
  return (holes.runs >> run & 1) != 0 || ((holes.cut >> run & 1) != 0 && offset % kPageRun >= left);
}
