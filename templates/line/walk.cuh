// line/walk.cuh -- a CTA's walk along its range of the line, segment by segment. Every warp walks for itself, from the
// context lengths in device memory. The workers of the wgmma family share what one has found (line/shared_walk.cuh).

// A run of LeanTiles of one output tile.
struct Segment {
  int request;  // index into the batch
  int kv_head;
  int row_block;             // which kRows of the query rows
  int context_length;        // tokens, clamped to [0, context_capacity]
  u32 tiles;                 // LeanTiles of the output tile
  u32 tile_begin, tile_end;  // those of this segment
  QueryTokens query;
  LeanVisible visible;
#if defined(LEAN_PACKED_KV)
  int kv_first;  // rows of K and V in front of the request's
#endif
#if defined(LEAN_SPANS)
  int end, all_see;  // the token index behind the last token that the output tile reads, and that all of its rows see
#endif
#if defined(LEAN_POSITIONS)
  int first_query;  // the place of the first query token (line/part_of_context.cuh)
#endif
#if defined(LEAN_SECOND_CACHE)
  int selected;  // entries of the query token's list, behind which the blocks of the second cache follow
#endif
#if defined(LEAN_INDEX_OF_PART)
  int first_position;  // that of place 0 in the whole context
#endif
#if defined(LEAN_WINDOW_OF_PART)
  int sink_tokens;  // of this rank's tokens, how many of the first are sink tokens
#endif
};

struct Walk {
  LeanSplit split;
  u32 position, end;  // the tile position the walk is at, and the end of the range
  u32 origin;         // where the segment's output tile begins: empty positions, then its LeanTiles
  Segment segment;
#if defined(LEAN_HEADS_IN_STEP)
  u32 in_step;
#endif
#if defined(LEAN_PASSES)
  u32 pass, shift;  // which range of this CTA's it is, of 2^shift
  u32 piece;        // and which piece of all its ranges (FoundPieces)
#endif
};

// The line's ranges, and which one the walk is in.
#if defined(LEAN_PASSES)
// A long line of many KV heads is walked in passes: each CTA has a range in every part of it. So fewer KV heads are
// walked at a time, and row blocks of one find KV in L2 that others have read. A pass is long beside what the merge at
// its ends takes, and has as many KV heads as keep all CTAs apart.
constexpr u32 kPassTiles = 160, kPassHeads = 32;
LEAN_DEVICE u32 shift_of_passes(const LeanDecodeArgs& args, u32 line) {
  const u32 tiles = (u32)((u64)line * args.grid_reciprocal >> 32) / kTilePositions,  // of a CTA
      heads = (u32)(args.batch * args.kv_heads), passes = min(tiles / kPassTiles, heads / kPassHeads);
  return args.batch > 32 ? 0 : passes >= 4 ? 2 : passes >= 2 ? 1 : 0;
}
LEAN_DEVICE u32 ranges(const Walk& walk) { return ranges() << walk.shift; }
LEAN_DEVICE u32 own_range(const Walk& walk) { return own_range() + walk.pass * ranges(); }
#elif defined(LEAN_HEADS_IN_STEP)
LEAN_DEVICE u32 ranges(const Walk& walk) { return ranges(walk.in_step); }
LEAN_DEVICE u32 own_range(const Walk& walk) { return own_range(walk.in_step); }
#else
LEAN_DEVICE u32 ranges(const Walk&) { return ranges(); }
LEAN_DEVICE u32 own_range(const Walk&) { return own_range(); }
#endif

LEAN_DEVICE bool is_whole(const Segment& s) { return s.tile_begin == 0 && s.tile_end == s.tiles; }

// Tile positions of some of its LeanTiles, and the empty ones before the first.
LEAN_DEVICE u32 tile_positions(const Segment& s, u32 tiles) {
  if constexpr (kTilePositions == 1) return tiles;
  return tiles * positions_of_tile(s.query, s.row_block / kRowBlocksInStep);
}
LEAN_DEVICE u32 empty_positions(const LeanDecodeArgs& args) {
  if constexpr (kTilePositions == 1) return args.segment_cost;
  return args.segment_cost * kTilePositions;
}

LEAN_DEVICE const char* query_row(const LeanDecodeArgs& args, const Segment& s, const Row& row) {
  return (const char*)args.q + 2 * row_offset(s.request, s.query, s.kv_head, row, args.q_stride_batch,
                                              args.q_stride_token, args.q_stride_head);
}

// A query row's token index in the context.
#if defined(LEAN_INDEX_OF_PART)
LEAN_DEVICE int query_index(const Segment& s, const Row& row) { return s.first_position + s.first_query + row.token; }
// And that of a token of this rank.
LEAN_DEVICE int kv_index_of(const Segment& s, int token) { return s.first_position + place_of(token); }
#else
LEAN_DEVICE int query_index(const Segment& s, const Row& row) { return s.context_length - s.query.count + row.token; }
#endif

LEAN_DEVICE void set_request(const LeanDecodeArgs& args, Segment& s, int request, int context_length) {
  s.request = request, s.context_length = context_length;
  s.query = query_tokens(args.q_offsets, request);
#if defined(LEAN_PACKED_KV)
  s.kv_first = first_kv_row(args.context_lengths, request, args.context_capacity);
#endif
#if defined(LEAN_WINDOW_OF_PART)
  s.sink_tokens = sinks_of_part(args, request, context_length);
#endif
  s.visible = visible_of(args, request, context_length);
  s.tiles = s.visible.tiles;
  if constexpr (kSecondCache)
    s.selected = context_length - second_blocks(args.second_lengths[request], args.second_capacity);
#if defined(LEAN_POSITIONS)
  s.first_query = place_of_query(args, request, s.query.count);
#endif
#if defined(LEAN_INDEX_OF_PART)
  s.first_position = position_of_places(args, request);
#endif
}

// Takes the LeanTiles from walk.position on that belong to the output tile at walk.origin and to the range; of a
// batch-invariant kernel, one of them. False when there are none, which can only be at the end of the range.
LEAN_DEVICE bool set_segment_tiles(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  const u32 begin = walk.position - walk.origin,
            end = kBatchInvariant
                      ? begin + 1
                      : min(begin + (walk.end - walk.position), empty_positions(args) + tile_positions(s, s.tiles));
  s.tile_begin = max(begin, empty_positions(args)) - empty_positions(args);
  s.tile_end = max(end, empty_positions(args)) - empty_positions(args);
  if constexpr (kTilePositions > 1) {  // a LeanTile is where its first position is
    const u32 of_tile = tile_positions(s, 1);
    s.tile_begin = (s.tile_begin + of_tile - 1) / of_tile;
    s.tile_end = (s.tile_end + of_tile - 1) / of_tile;
  }
  return s.tile_end != s.tile_begin;
}

// Takes this CTA's range of a line of `line` tile positions. False when it is empty.
LEAN_DEVICE bool take_range(const LeanDecodeArgs& args, Walk& walk, u32 line) {
#if defined(LEAN_HEADS_IN_STEP)
  walk.in_step = heads_in_step(args.kv_heads);
#endif
#if defined(LEAN_PASSES)
  walk.shift = shift_of_passes(args, line);
  walk.split = lean_split<kTilePositions>(line, ranges(walk), args.grid_reciprocal >> walk.shift);
#else
  walk.split = lean_split<kTilePositions>(line, ranges(walk), args.grid_reciprocal);
#endif
  walk.position = lean_range_begin(walk.split, own_range(walk), line);
  walk.end = lean_range_end(walk.split, own_range(walk), ranges(walk), line);
  if (kRowBlocksInStep > 1 && own_range(walk) >= ranges(walk)) return false;  // no multiple of the row blocks
  return walk.position != walk.end;
}

// The length of a request with a second cache: the entries of a query token's list and the blocks behind them.
LEAN_DEVICE int length_with_second(const LeanDecodeArgs& args, int request) {
  const int at = min(request, args.batch - 1);
  return min(max(args.context_lengths[at], 0), args.context_capacity) +
         second_blocks(args.second_lengths[at], args.second_capacity);
}

// The length that start_walk needs first. A kernel asks for it before anything else, because all that follows waits
// for it.
LEAN_DEVICE int first_length(const LeanDecodeArgs& args) {
  if constexpr (kSecondCache) return length_with_second(args, args.batch > 32 ? 0 : (int)threadIdx.x % 32);
#if defined(LEAN_PACKED_KV)
  return packed_length(args.context_lengths, args.batch > 32 ? 0 : min((int)threadIdx.x % 32, args.batch - 1),
                       args.context_capacity);
#endif
  return args.context_lengths[args.batch > 32 ? 0 : min((int)threadIdx.x % 32, args.batch - 1)];
}

// Where requests have their own numbers of query tokens: takes output tile `output` of the segment's KV head.
#if defined(LEAN_SPANS)
LEAN_DEVICE void set_output(const LeanDecodeArgs& args, Segment& s, int output) {
  s.row_block = output * kRowBlocksInStep + (int)blockIdx.x % kRowBlocksInStep;
  const ReadOfOutput read = read_of_output(args.spans + s.query.first, s.context_length, s.query, output);
  s.visible = read.visible, s.tiles = s.visible.tiles, s.end = read.end, s.all_see = read.all_see;
}
#else
LEAN_DEVICE void set_output(Segment& s, int output) {
  s.row_block = output * kRowBlocksInStep + (int)blockIdx.x % kRowBlocksInStep;
  if constexpr (kOutputsEndApart) {
    s.visible = visible_of_output(s.context_length, s.query, output);
    s.tiles = s.visible.tiles;
  }
}
#endif

#if defined(LEAN_HEADS_IN_STEP)
// Goes to this CTA's next KV head. False behind the last one, and then to the first one.
LEAN_DEVICE bool next_head(const LeanDecodeArgs& args, Segment& s) {
  s.kv_head += (int)heads_in_step(args.kv_heads);
  if (s.kv_head < args.kv_heads) return true;
  s.kv_head = head_in_step(args.kv_heads, 0);
  return false;
}
#endif

// There, goes on to the next output tile. False behind the last one.
LEAN_DEVICE bool next_output(const LeanDecodeArgs& args, Segment& s) {
  int output = s.row_block / kRowBlocksInStep + 1;
  if (output == (int)outputs_of(s.query)) {
    output = 0;
#if defined(LEAN_HEADS_IN_STEP)
    if (!next_head(args, s)) {
#else
    if (++s.kv_head == args.kv_heads) {
      s.kv_head = 0;
#endif
      do {
        if (s.request + 1 == args.batch) return false;
#if defined(LEAN_PACKED_KV)
        set_request(args, s, s.request + 1, packed_length(args.context_lengths, s.request + 1, args.context_capacity));
#else
        set_request(args, s, s.request + 1, min(max(args.context_lengths[s.request + 1], 0), args.context_capacity));
#endif
      } while (s.query.count == 0);
    }
  }
#if defined(LEAN_SPANS)
  set_output(args, s, output);
#else
  set_output(s, output);
#endif
  return true;
}

// There, goes to the output tile of the segment's request that holds the walk's position. The request begins at
// `origin`.
LEAN_DEVICE void find_output(const LeanDecodeArgs& args, Walk& walk, u32 origin) {
  Segment& s = walk.segment;
#if defined(LEAN_SPANS)
  const u32 positions = positions_of(args, s.request, s.context_length);
  s.kv_head = (int)lean_quotient(walk.position - origin, positions);
  origin += (u32)s.kv_head * positions;
#if defined(LEAN_HEADS_IN_STEP)
  s.kv_head = head_in_step(args.kv_heads, s.kv_head);
#endif
  const FoundOutput found =
      output_at(args.segment_cost, args.spans + s.query.first, s.context_length, s.query, walk.position - origin);
  walk.origin = origin + found.before;
  set_output(args, s, found.output);
#else
  const u32 positions =
      positions_of_outputs(args.segment_cost, s.context_length, s.query, s.tiles, outputs_of(s.query));
  s.kv_head = (int)lean_quotient(walk.position - origin, positions);
  origin += (u32)s.kv_head * positions;
#if defined(LEAN_HEADS_IN_STEP)
  s.kv_head = head_in_step(args.kv_heads, s.kv_head);
#endif
  const u32 output = output_at(args.segment_cost, s.context_length, s.query, s.tiles, walk.position - origin);
  walk.origin = origin + positions_of_outputs(args.segment_cost, s.context_length, s.query, s.tiles, output);
  set_output(s, (int)output);
#endif
}

// Moves to the next segment. False when the range is done.
LEAN_DEVICE bool next_of_range(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  if constexpr (kBatchInvariant) {
    if (s.tile_end != s.tiles) return ++walk.position < walk.end && set_segment_tiles(args, walk);
  }
  walk.position = walk.origin = walk.origin + empty_positions(args) + tile_positions(s, s.tiles);
  if (s.tile_end != s.tiles || walk.position >= walk.end) return false;
  // The line ends before the range does only if lengths have changed since the launch began.
  if constexpr (kRaggedQ) return next_output(args, s) && set_segment_tiles(args, walk);
  if (kRowBlocksInStep > 1 || ++s.row_block == kRowBlocks) {
    if constexpr (kRowBlocksInStep == 1) s.row_block = 0;
#if defined(LEAN_HEADS_IN_STEP)
    if (!next_head(args, s)) {
#else
    if (++s.kv_head == args.kv_heads) {
      s.kv_head = 0;
#endif
      if (s.request + 1 == args.batch) return false;
#if defined(LEAN_PACKED_KV)
      int length = packed_length(args.context_lengths, s.request + 1, args.context_capacity);
#else
      int length = min(max(args.context_lengths[s.request + 1], 0), args.context_capacity);
#endif
      if constexpr (kSecondCache) length = length_with_second(args, s.request + 1);
      set_request(args, s, s.request + 1, length);
    }
  }
  return set_segment_tiles(args, walk);
}

// Finds where this CTA's range begins. False when it is empty. A batch of up to 32 requests has one in each lane; of a
// larger one see line/find_start.cuh, whose search this is.
template <bool kOfAnyBatch>
LEAN_DEVICE bool start_range(const LeanDecodeArgs& args, int first_length, u32* part_sums, Walk& walk) {
  const int lane = threadIdx.x % 32;
#if defined(LEAN_HEADS_IN_STEP)
  const u32 outputs = (u32)args.kv_heads / heads_in_step(args.kv_heads) * kOutputsOfKvHead;
#else
  const u32 outputs = (u32)args.kv_heads * kOutputsOfKvHead;  // of a request that the line counts alike
#endif
  int request = 0, length = kSecondCache ? first_length : min(max(first_length, 0), args.context_capacity);
  const u32 positions = positions_of(args, min(lane, args.batch - 1), length);
  u32 line = positions * outputs, origin = 0;  // tile positions of all requests, and of those before this one
  if (args.batch > 1) {
    if (kOfAnyBatch && args.batch > 32) {
#if defined(LEAN_WINDOW_OF_PART)
      const Batch batch = {args.context_lengths,  args.q_offsets,    args.batch,
                           args.context_capacity, args.segment_cost, outputs,
                           args.grid_reciprocal,  args.full_lengths, args.context_starts,
                           rank_in_context(args)};
#else
      Batch batch = {args.context_lengths, args.q_offsets, args.batch,          args.context_capacity,
                     args.segment_cost,    outputs,        args.grid_reciprocal};
#if defined(LEAN_SPANS)
      batch.spans = args.spans;
#endif
#if defined(LEAN_HEADS_IN_STEP)
      batch.in_step = heads_in_step(args.kv_heads);
#endif
      if constexpr (kSecondCache)
        batch.second_lengths = args.second_lengths, batch.second_capacity = args.second_capacity;
#endif
      const Start start = args.batch <= 64           ? find_start_alone<2>(batch)
                          : args.batch <= kMostAlone ? find_start_alone<kMostAlone / 32>(batch)
                                                     : find_start_together(batch, part_sums);
      request = (int)start.request, length = start.context_length, line = start.line, origin = start.before * outputs;
      if (!take_range(args, walk, line)) return false;
    } else {
      const u32 upto = warp_inclusive_sum(lane < args.batch ? positions : 0u, lane);
      if (!take_range(args, walk, __shfl_sync(kFullMask, upto, 31) * outputs)) return false;
      request = __popc(__ballot_sync(kFullMask, upto * outputs <= walk.position));
      const u32 before = __shfl_sync(kFullMask, upto, max(request - 1, 0));
      origin = request == 0 ? 0 : before * outputs;
      length = __shfl_sync(kFullMask, length, request);
    }
  } else if (!take_range(args, walk, line)) {
    return false;
  }
  Segment& s = walk.segment;
  set_request(args, s, request, length);
  if constexpr (kRaggedQ) {
    find_output(args, walk, origin);
    // The range may begin behind the first position of the output tile's last LeanTile.
    if constexpr (kTilePositions > 1) return set_segment_tiles(args, walk) || next_of_range(args, walk);
    return set_segment_tiles(args, walk);
  }
  const u32 tile_positions = args.segment_cost + s.tiles,
            output = lean_quotient(walk.position - origin, tile_positions);  // which of the request's output tiles
  walk.origin = origin + output * tile_positions;
#if defined(LEAN_HEADS_IN_STEP)
  s.kv_head = head_in_step(args.kv_heads, (int)(output / kOutputsOfKvHead));
#else
  s.kv_head = (int)(output / kOutputsOfKvHead);
#endif
  s.row_block = (int)((kRowBlocksInStep > 1 ? blockIdx.x : output) % kRowBlocks);
  return set_segment_tiles(args, walk);
}

#if defined(LEAN_PASSES)
// A range that begins inside of an output tile is walked in two pieces: first from the next output tile on, and then
// the rest of the one that it begins inside of. So CTAs begin at the first token of their output tiles, and row blocks
// of a KV head read the same KV at about the same time. Pass p has pieces 2p and 2p + 1, of which there may be none.
//
// A producer warp without copies finds all but the first one while that is walked, so that no other warp has the search
// in its main loop.
constexpr int kMostPieces = 2 * kMostPasses - 1;  // behind the first one
struct FoundPieces {
  Walk walk[kMostPieces];
  bool any[kMostPieces];
  alignas(8) u64 barrier;  // completes once they are found
};
LEAN_DEVICE FoundPieces& found_pieces() {
  __shared__ FoundPieces found;
  return found;
}
LEAN_DEVICE void init_pieces() { init_barrier(shared_address(&found_pieces().barrier), 1); }
LEAN_DEVICE void note_piece(u32 piece, bool any, const Walk& walk) {
  if (threadIdx.x % 32 != 0) return;
  FoundPieces& found = found_pieces();
  found.walk[piece - 1] = walk, found.walk[piece - 1].piece = piece, found.any[piece - 1] = any;
}

// Finds where the range of walk.pass begins. `rest` is what is left for its second piece, if there is any.
template <bool kOfAnyBatch>
LEAN_DEVICE bool start_pieces(const LeanDecodeArgs& args, int first_length, u32* part_sums, Walk& walk, Walk& rest,
                              bool& any_rest) {
  const bool any = start_range<kOfAnyBatch>(args, first_length, part_sums, walk);
  rest = walk, any_rest = any && walk.segment.tile_begin > 0 && next_of_range(args, walk);
  if (any_rest) rest.end = walk.origin;
  if (!any_rest) walk = rest;
  return any;
}
// Notes the pieces of all passes behind the first one.
LEAN_DEVICE void find_pieces(const LeanDecodeArgs& args, Walk& walk) {
  while (++walk.pass < 1u << walk.shift) {
    Walk rest;
    bool any_rest;
    const bool any = start_pieces<false>(args, first_length(args), nullptr, walk, rest, any_rest);
    note_piece(2 * walk.pass, any, walk), note_piece(2 * walk.pass + 1, any_rest, rest);
  }
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(shared_address(&found_pieces().barrier));
}

// Goes to the first segment of the next piece. False behind the last one.
LEAN_DEVICE bool next_piece(Walk& walk) {
  for (u32 piece = walk.piece + 1; piece < 2u << walk.shift; piece++) {
    while (!is_complete(shared_address(&found_pieces().barrier), 0)) continue;
    if (!found_pieces().any[piece - 1]) continue;
    walk = found_pieces().walk[piece - 1];
    return true;
  }
  return false;
}
// Only the first pass is searched here. Its range has a LeanTile if the line has passes, for these are long.
LEAN_DEVICE bool start_walk(const LeanDecodeArgs& args, int first_length, u32* part_sums, Walk& walk, Walk& rest,
                            bool& any_rest) {
  walk.pass = walk.shift = walk.piece = 0;
  return start_pieces<true>(args, first_length, part_sums, walk, rest, any_rest);
}
LEAN_DEVICE bool next_segment(const LeanDecodeArgs& args, Walk& walk) {
  return next_of_range(args, walk) || next_piece(walk);
}
#else
LEAN_DEVICE bool start_walk(const LeanDecodeArgs& args, int first_length, u32* part_sums, Walk& walk) {
  return start_range<true>(args, first_length, part_sums, walk);
}
LEAN_DEVICE bool next_segment(const LeanDecodeArgs& args, Walk& walk) { return next_of_range(args, walk); }
#endif
