// line/work.cuh -- which output tiles a request has, and what of its context each of them reads.
// ---
// Where requests have their own numbers of query tokens, a request has only the output tiles that these fill, none
// without any. Then too an output tile of a problem that is causal or has a window reads what its own query tokens see.

#if defined(LEAN_POSITIONS)
constexpr bool kOutputsEndApart = false;  // a rank's part of a context may end before or behind the query tokens
#else
constexpr bool kOutputsEndApart = kRaggedQ && (kQueryMask == kCausal || kWindow > 0);
#endif

// There, with a window: LeanTiles of sink tokens, and how many an output tile has at most behind them. What it has is a
// bound of what it reads, because the latter depends on where runs begin; LeanTiles without tokens take no time.
constexpr u32 kSinkTiles = (kSinkTokens + kTile - 1) / kTile;
#if defined(LEAN_SEES_AHEAD)
// A window reaches as far ahead of a query token, within the context.
constexpr int kAhead = kWindow <= kQLen ? kWindow - 1 : kQLen;
constexpr u32 kWindowTiles = lean_window_tiles(kWindow + kAhead, (kRowsOfRange - 1) / kGroup + 2, kTile, kPageRun);
#else
constexpr u32 kWindowTiles = lean_window_tiles(kWindow, (kRowsOfRange - 1) / kGroup + 2, kTile, kPageRun);
#endif

// Output tiles of a KV head, where requests have their own numbers of query tokens.
LEAN_DEVICE u32 outputs_of(const QueryTokens& query) { return lean_row_blocks(query.count * kGroup, kRowsOfRange); }

// Tile positions of a LeanTile of output tile `output` of a KV head. They stand for time: where at most half of the
// rows exist, one of two warpgroups multiplies, and how fast an SM reads is the limit.
LEAN_DEVICE u32 positions_of_tile(const QueryTokens& query, int output) {
  return query.count * kGroup - output * kRowsOfRange <= kRowsOfRange / 2 ? kLightTilePositions : kTilePositions;
}

// What of a request's context its query tokens read together. Arrays: the arguments of a kernel, or those of them that
// a search has.
template <class Arrays>
LEAN_DEVICE LeanVisible visible_of(const Arrays& args, int request, int context_length) {
#if defined(LEAN_WINDOW_OF_PART)
  return visible_of_part(args, request, context_length);
#else
  if constexpr (kSelectionBlock > 0) return {lean_tiles_of(context_length * kSelectionBlock, kTile), 0, 0};
  if constexpr (kOutputsEndApart && kWindow > 0)  // of its last output tile
    return {kSinkTiles + min(lean_tiles_of(context_length, kTile), kWindowTiles), 0, 0};
  if constexpr (kWindow > 0)
    return lean_visible(context_length, query_tokens(args.q_offsets, request).count, kTile, kWindow, kSinkTokens,
                        kPageRun);
  return {lean_tiles_of(context_length, kTile), 0, 0};
#endif
}

#if defined(LEAN_SEES_AHEAD)
// What lies in the context before the first query token, and what this sees ahead of itself.
LEAN_DEVICE int seen_beside(int context_length, const QueryTokens& query) {
  return context_length - query.count + min(kAhead, query.count);
}
#endif

// The token index behind the last token that output tile `output` of a KV head reads.
LEAN_DEVICE int end_of_output(int context_length, const QueryTokens& query, int output) {
#if defined(LEAN_SEES_AHEAD)
  const int end = lean_block_end(seen_beside(context_length, query), query.count, output, kRowsOfRange, kGroup);
  return min(max(end, kSinkTokens), context_length);
#else
  return lean_block_end(context_length - query.count, query.count, output, kRowsOfRange, kGroup);
#endif
}

// What output tile `output` of a KV head reads, where that depends on the output tile.
LEAN_DEVICE LeanVisible visible_of_output(int context_length, const QueryTokens& query, int output) {
  const int end = end_of_output(context_length, query, output);
  if constexpr (kWindow == 0) return {lean_tiles_of(end, kTile), 0, 0};
  const int first_query = context_length - query.count + output * kRowsOfRange / kGroup;
  LeanVisible visible = lean_visible(end, end - first_query, kTile, kWindow, kSinkTokens, kPageRun);
  visible.tiles = kSinkTiles + min(lean_tiles_of(end, kTile), kWindowTiles);
  return visible;
}

// Tile positions of the first `count` output tiles of a KV head. tiles: LeanTiles of what its request reads together,
// or the last output tile.
LEAN_DEVICE u32 positions_of_outputs(u32 segment_cost, int context_length, const QueryTokens& query, u32 tiles,
                                     u32 count) {
  if constexpr (!kOutputsEndApart && kTilePositions == 1) return count * (segment_cost + tiles);
  const u32 last = count > 0 && count == outputs_of(query) ? 1 : 0,  // it may have fewer rows than the others
      before = count - last;
  u32 tiles_before = before * tiles;
  if constexpr (kOutputsEndApart && kWindow == 0)
    tiles_before = lean_tiles_of_blocks(context_length - query.count, before, kRowsOfRange, kGroup, kTile);
#if defined(LEAN_SEES_AHEAD)
  if constexpr (kOutputsEndApart)
    tiles_before =
        before * kSinkTiles + lean_tiles_of_blocks(seen_beside(context_length, query), before, kRowsOfRange, kGroup,
                                                   kTile, min(lean_tiles_of(context_length, kTile), kWindowTiles));
#else
  if constexpr (kOutputsEndApart && kWindow > 0)
    tiles_before = before * kSinkTiles + lean_tiles_of_blocks(context_length - query.count, before, kRowsOfRange,
                                                              kGroup, kTile, kWindowTiles);
#endif
  return (count * segment_cost + tiles_before) * kTilePositions +
         last * tiles * positions_of_tile(query, (int)count - 1);
}

#if !defined(LEAN_SPANS)
// Tile positions of each of the kOutputsOfKvHead output tiles of a KV head, or of all of them where requests differ.
template <class Arrays>
LEAN_DEVICE u32 positions_of(const Arrays& args, int request, int context_length) {
  if constexpr (!kRaggedQ) return args.segment_cost + visible_of(args, request, context_length).tiles;
  const u32 tiles = visible_of(args, request, context_length).tiles;
  const QueryTokens query = query_tokens(args.q_offsets, request);
  return positions_of_outputs(args.segment_cost, context_length, query, tiles, outputs_of(query));
}
#endif

// Which output tile of a KV head holds tile position `at` of the KV head. tiles: as above.
LEAN_DEVICE u32 output_at(u32 segment_cost, int context_length, const QueryTokens& query, u32 tiles, u32 at) {
  if constexpr (!kOutputsEndApart) return lean_quotient(at, (segment_cost + tiles) * kTilePositions);
  u32 output = 0;
#pragma unroll 1
  for (u32 end = outputs_of(query); end - output > 1;) {
    const u32 middle = (output + end) / 2;
    if (positions_of_outputs(segment_cost, context_length, query, tiles, middle) <= at)
      output = middle;
    else
      end = middle;
  }
  return output;
}
