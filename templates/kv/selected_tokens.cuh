// kv/selected_tokens.cuh -- where a warp's tokens lie that a query token has selected, one in each lane. An entry of
// the list is requested two reads ahead of its use, and its page one read ahead (kv/selection.cuh).

struct TokenPlaces {
  SelectedRuns runs;

  LEAN_DEVICE static int read_of_lane(int read) { return read + step_of_lane() * kStepTokens + row_of_lane(); }

  LEAN_DEVICE void start(const LeanDecodeArgs& args, const Segment& s) {
    const int read = first_read(s);
    runs.start(args, s, read_of_lane(read), read_of_lane(read + kStepsInHand * kStepTokens));
  }

  // The place of this lane's token in the steps from `read` on: a token of a pool, or below 0 in a hole. Requests that
  // in the steps after them. To be called by a whole warp.
  LEAN_DEVICE int take(const Segment&, int read) {
    const int place = runs.take(-1);
    runs.look_up(read_of_lane(read + kStepsInHand * kStepTokens), read_of_lane(read + 2 * kStepsInHand * kStepTokens));
    return place;
  }
};

LEAN_DEVICE PoolRow pool_row(int place, int) {
  const u32 token = token_of_pool(place);
  return {token / kPageSize, token % kPageSize};
}
// The cache in which a place is.
LEAN_DEVICE const char* k_cache(const LeanDecodeArgs& args, int place) {
  return (const char*)args.k + to_cache(place, to_second_k(args));
}
LEAN_DEVICE const char* v_cache(const LeanDecodeArgs& args, int place) {
  return (const char*)args.v + to_cache(place, to_second_v(args));
}
