// kv/selected_places.cuh -- where the rows of a warp's tokens lie, one in each lane, where query tokens have selected
// them. An entry of the list is requested two reads ahead of its use, and its page one read ahead (kv/selection.cuh).

// What places of rows count from: the cache, or the one of two that has the lower address.
LEAN_DEVICE const char* first_cache(const LeanDecodeArgs& args) {
  return (const char*)args.k + min(to_second_k(args), 0ll);
}

struct RowPlaces {
  SelectedRuns runs;
  i64 outer, stride;  // bytes from page to page, and from row to row
  i64 first, apart;   // and from first_cache() to the cache, and from there to the second one
  int to_scales;      // bytes from the row that was taken last to its scales in the plane behind its page's rows

  LEAN_DEVICE int run_at(int read) const { return read + step_of_lane() * kStepTokens + row_of_lane(); }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    outer = args.k_stride_batch, stride = args.k_stride_token;
    apart = to_second_k(args), first = apart < 0 ? -apart : 0;
    const int read = first_read(s);
    runs.start(args, s, run_at(read), run_at(read + kStepsInHand * kStepTokens));
  }

  // Where this lane's row in the steps from `read` on lies, in bytes from first_cache(); below 0 where it has none,
  // because of a hole or because that token does not count. Requests that in the steps after them.
  LEAN_DEVICE i64 take(const Segment& s, int read) {
    int place = runs.take(-1);  // all lanes vote in it
    if (run_at(read) >= end_read(s)) place = -1;
    runs.look_up(run_at(read + kStepsInHand * kStepTokens), run_at(read + 2 * kStepsInHand * kStepTokens));
    const u32 at = token_of_pool(place);
    to_scales = bytes_to_plane((int)(at % kPageSize));
    return place < 0 ? -1 : first + to_cache(place, apart) + at / kPageSize * outer + at % kPageSize * stride;
  }
};
