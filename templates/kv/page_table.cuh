// kv/page_table.cuh -- what the page table says of a token. A number that is no page of the pool is a hole: nobody
// sees its tokens, as if they were masked, and nothing is read or written there.

LEAN_DEVICE int page_of(const LeanDecodeArgs& args, const Segment& s, int token) {
  constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
  return args.page_table[s.request * args.page_table_stride + token / kPage];
}

LEAN_DEVICE bool is_hole(int page, int pool_pages) { return (u32)page >= (u32)pool_pages; }

typedef u32 Holes;
LEAN_DEVICE bool any_hole(Holes holes) { return holes != 0; }

// Which runs of a step lie in holes, one bit each. To be called by a whole warp, and only where there are any: load
// paths know that from the pages that they read, so that other steps need not ask.
LEAN_DEVICE Holes holes_of(const LeanDecodeArgs& args, const Segment& s, const Step& step) {
  const int run = (int)threadIdx.x % 32 * kPageRun;
  return __ballot_sync(kFullMask, run < step.count && is_hole(page_of(args, s, step.token + run), args.pool_pages));
}

// Whether token number `offset` of the step does.
LEAN_DEVICE bool in_hole(Holes holes, int offset) {
  if constexpr (kPageSize == 0) return false;
  return (holes >> offset / kPageRun & 1) != 0;
}
