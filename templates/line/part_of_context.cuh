// line/part_of_context.cuh -- where the tokens of a request lie in its context, where the rank has a part of it. Masks
// of several query tokens and windows ask. What they compare are places: with contiguous parts token indices of this
// rank, among which a query token of another rank's part may be negative or behind the end; with units in turn
// positions in the whole context, less those of the units before this rank's first. What changes scores or turns rows
// asks for positions in the whole context themselves, and append for the tokens at the places of query tokens.

// Of token `token` of this rank.
LEAN_DEVICE int place_of(int token) {
  if constexpr (kInterleave == 0) return token;
  return token + token / (kInterleave > 0 ? kInterleave : 1) * ((kContextRanks - 1) * kInterleave);
}

// Which of the ranks this one is to which tokens are dealt. Arrays: the arguments of a kernel, or those of them that a
// search has.
template <class Arrays>
LEAN_DEVICE int rank_in_context(const Arrays& args) {
#if defined(LEAN_CONTEXT_RANKS)
  return args.context_rank;
#else
  return args.group_rank;
#endif
}

// The position of place 0 in the whole context.
template <class Arrays>
LEAN_DEVICE int position_of_places(const Arrays& args, int request) {
  return kInterleave > 0 ? rank_in_context(args) * kInterleave : args.context_starts[request];
}

// Of the first of a request's query tokens.
template <class Arrays>
LEAN_DEVICE int place_of_query(const Arrays& args, int request, int query_tokens) {
  const int before = position_of_places(args, request);
  return args.full_lengths[request] - query_tokens - before;
}

// How many of this rank's tokens lie at places before `place`, if there are enough.
LEAN_DEVICE int tokens_before(int place) {
  if constexpr (kInterleave == 0) return max(place, 0);
  constexpr int kUnit = kInterleave > 0 ? kInterleave : 1, kRound = kUnit * kContextRanks;
  return place <= 0 ? 0 : place / kRound * kUnit + min(place % kRound, kUnit);
}

// Which of this rank's tokens is at a place, if there are enough; -1 where another rank has it.
LEAN_DEVICE int token_at(int place) {
  if constexpr (kInterleave == 0) return max(place, -1);
  constexpr int kUnit = kInterleave > 0 ? kInterleave : 1, kRound = kUnit * kContextRanks;
  return place < 0 || place % kRound >= kUnit ? -1 : place / kRound * kUnit + place % kRound;
}

// How many of a request's tokens on this rank, its first ones, are sink tokens.
template <class Arrays>
LEAN_DEVICE int sinks_of_part(const Arrays& args, int request, int part_length) {
  if constexpr (kSinkTokens == 0) return 0;
  return min(tokens_before(kSinkTokens - position_of_places(args, request)), part_length);
}

// What is read of a request's part, with a window.
template <class Arrays>
LEAN_DEVICE LeanVisible visible_of_part(const Arrays& args, int request, int part_length) {
  const int first_query = place_of_query(args, request, query_tokens(args.q_offsets, request).count);
  return lean_visible_part(part_length, min(tokens_before(first_query - kWindow + 1), part_length),
                           sinks_of_part(args, request, part_length), kTile, kPageRun);
}
