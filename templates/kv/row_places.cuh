// kv/row_places.cuh -- where the rows of a warp's tokens lie, one in each lane, in a cache that is read as a whole. The
// page of a token is requested one read ahead of its use.

// What places of rows count from.
LEAN_DEVICE const char* first_cache(const LeanDecodeArgs& args) { return (const char*)args.k; }

struct RowPlaces {
  const int* table;  // the request's pages
  int pool_pages;
  i64 outer;      // bytes from page to page, or to the request's first row
  i64 stride;     // and from row to row
  int to_scales;  // bytes from the row that was taken last to its scales in the plane behind its page's rows
  int token;      // of this lane's next row; below 0 where it has none
  int next_page;  // as the table has it

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    stride = args.k_stride_token;
    outer = kPageSize > 0 ? args.k_stride_batch : s.request * args.k_stride_batch;
    if constexpr (kPageSize > 0) {
      table = args.page_table + s.request * args.page_table_stride;
      pool_pages = args.pool_pages;
    }
    look_up(s, first_read(s));
  }

  // Requests the place of this lane's row in the steps in hand, from read index `read` on.
  LEAN_DEVICE void look_up(const Segment& s, int read) {
    const int offset = row_of_lane();
    const Step step = step_at(s, read + step_of_lane() * kStepTokens);
    token = offset < step.count ? step.token + offset : -1;
    if constexpr (kPageSize > 0) {
      constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
      next_page = token >= 0 ? table[token / kPage] : -1;
    }
  }

  // Where this lane's row in the steps from `read` on lies, in bytes from the KV head's first one; below 0 where it
  // has none, because of a hole or because that token does not count. Requests that in the steps after them.
  LEAN_DEVICE i64 take(const Segment& s, int read) {
    i64 row = outer + token * stride;
    if constexpr (kPageSize > 0) {
      constexpr int kPage = kPageSize > 0 ? kPageSize : 1;
      row = is_hole(next_page, pool_pages) ? -1 : next_page * outer + token % kPage * stride;
      to_scales = bytes_to_plane(token % kPage);
    }
    if (token < 0) row = -1;
    look_up(s, read + kStepsInHand * kStepTokens);
    return row;
  }
};
