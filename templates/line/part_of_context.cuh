// line/part_of_context.cuh -- where the tokens of a request lie in its context, where the rank has a part of it. Only
// masks of several query tokens ask. What they compare are places: with contiguous parts token indices of this rank,
// among which a query token of another rank's part may be negative or behind the end; with units in turn positions in
// the whole context, less those of the units before this rank's first.

// Of token `token` of this rank.
LEAN_DEVICE int place_of(int token) {
  if constexpr (kInterleave == 0) return token;
  return token + token / (kInterleave > 0 ? kInterleave : 1) * ((kRanks - 1) * kInterleave);
}

// Of the first of a request's query tokens.
LEAN_DEVICE int place_of_query(const LeanDecodeArgs& args, int request, int query_tokens) {
  const int before = kInterleave > 0 ? args.group_rank * kInterleave : args.context_starts[request];
  return args.full_lengths[request] - query_tokens - before;
}
