// kv/paged_tokens.cuh -- where a warp's tokens lie in a paged cache that is read as a whole, one in each lane. The page
// of a token is requested one read ahead of its use.

struct TokenPlaces {
  const int* table;  // the request's pages
  int pool_pages;
  int next_page;  // of this lane's next token, as the table has it

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    table = args.page_table + s.request * args.page_table_stride, pool_pages = args.pool_pages;
    look_up(s, first_read(s));
  }

  // Requests the page of this lane's token in the steps in hand, from read index `read` on; 0 where it has none.
  LEAN_DEVICE void look_up(const Segment& s, int read) {
    const Step step = step_at(s, read + step_of_lane() * kStepTokens);
    next_page = row_of_lane() < step.count ? table[(step.token + row_of_lane()) / kPageSize] : 0;
  }

  // The place of this lane's token in the steps from `read` on: its page, or below 0 in a hole. Requests that in the
  // steps after them.
  LEAN_DEVICE int take(const Segment& s, int read) {
    const int place = is_hole(next_page, pool_pages) ? -1 : next_page;
    look_up(s, read + kStepsInHand * kStepTokens);
    return place;
  }
};

// token: the token's index in the context.
LEAN_DEVICE PoolRow pool_row(int place, int token) { return {place, token % kPageSize}; }
LEAN_DEVICE const char* k_cache(const LeanDecodeArgs& args, int) { return (const char*)args.k; }
LEAN_DEVICE const char* v_cache(const LeanDecodeArgs& args, int) { return (const char*)args.v; }
