// kv/row_pages.cuh -- what the page table says of a token, where rows are copied one by one: a number that is no page
// of the pool, below 0 or pool_pages and above, is a hole.

LEAN_DEVICE int page_of(const LeanDecodeArgs& args, const Segment& s, int token) {
  constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
  return args.page_table[s.request * args.page_table_stride + token / kPage];
}

LEAN_DEVICE bool is_hole(int page, int pool_pages) { return (u32)page >= (u32)pool_pages; }
