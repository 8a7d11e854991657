// line/spans.cuh -- what of its context an output tile reads where query tokens lie in spans of tokens that see each
// other both ways. Spans of a request do not overlap. So of an output tile's query tokens the last one sees furthest
// ahead, and the span of the first one begins first.
// ---
// Only the device knows the spans, so there is no formula for how many LeanTiles the output tiles of a request have.
// The lanes of a warp look at 32 of them at a time, twice: for the length of the line, and for the output tile with
// which the CTA's range begins.

// What an output tile of a KV head reads, and the token indices behind the last token that it reads, and behind the
// last one up to which all of its rows see what a window shows.
struct ReadOfOutput {
  LeanVisible visible;
  int end, all_see;
};
// spans: those of the request's query tokens.
LEAN_DEVICE ReadOfOutput read_of_output(const LeanSpan* spans, int context_length, const QueryTokens& query,
                                        int output) {
  const int first = output * kRowsOfRange / kGroup,
            last = min(((output + 1) * kRowsOfRange + kGroup - 1) / kGroup, query.count) - 1,
            before = context_length - query.count;
  const LeanSpan span = spans[first];
  ReadOfOutput read;
  read.all_see = max(before + first + 1, span.end);
  read.end = min(max(max(before + last + 1, spans[last].end), 0), context_length);
  int from = before + first - kWindow + 1;
  if (span.end > 0) from = min(from, span.first);
  read.visible = {lean_tiles_of(read.end, kTile), 0, 0};
  if constexpr (kWindow > 0)
    read.visible = lean_visible(read.end, read.end - kWindow + 1 - from, kTile, kWindow, kSinkTokens, kPageRun);
  return read;
}

// Tile positions of an output tile of a KV head.
LEAN_DEVICE u32 positions_of_output(u32 segment_cost, const LeanSpan* spans, int context_length,
                                    const QueryTokens& query, int output) {
  return segment_cost * kTilePositions +
         read_of_output(spans, context_length, query, output).visible.tiles * positions_of_tile(query, output);
}

// Those of all output tiles of a KV head, of each lane's request. All lanes of a warp call it, because together they
// read the spans of a long prompt, one request after the other.
template <class Arrays>
LEAN_DEVICE u32 positions_of(const Arrays& args, int request, int context_length) {
  const QueryTokens query = query_tokens(args.q_offsets, request);
  const u32 outputs = outputs_of(query);
  u32 positions = 0;
  if (outputs == 1)
    positions = positions_of_output(args.segment_cost, args.spans + query.first, context_length, query, 0);
#pragma unroll 1
  for (u32 left = __ballot_sync(kFullMask, outputs > 1); left != 0;) {
    const int lane = 31 - __clz((int)left), of = __shfl_sync(kFullMask, request, lane),
              length = __shfl_sync(kFullMask, context_length, lane);
    const QueryTokens its_query = query_tokens(args.q_offsets, of);
    u32 sum = 0;
#pragma unroll 1
    for (int output = threadIdx.x % 32; output < (int)outputs_of(its_query); output += 32)
      sum += positions_of_output(args.segment_cost, args.spans + its_query.first, length, its_query, output);
    sum = __reduce_add_sync(kFullMask, sum);
    if (request == of) positions = sum;
    left &= ~__ballot_sync(kFullMask, request == of);
  }
  return positions;
}

// Which output tile of a KV head holds tile position `at` of the KV head, for all lanes alike. before: tile positions
// of those before it.
struct FoundOutput {
  int output;
  u32 before;
};
LEAN_DEVICE FoundOutput output_at(u32 segment_cost, const LeanSpan* spans, int context_length, const QueryTokens& query,
                                  u32 at) {
  const int lane = threadIdx.x % 32, outputs = (int)outputs_of(query);
  u32 before = 0;
#pragma unroll 1
  for (int first = 0;; first += 32) {
    const int output = min(first + lane, outputs - 1);
    const u32 own =
        first + lane < outputs ? positions_of_output(segment_cost, spans, context_length, query, output) : 0u;
    u32 upto = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const u32 lower = __shfl_up_sync(kFullMask, upto, distance);
      if (lane >= distance) upto += lower;
    }
    const u32 all = __shfl_sync(kFullMask, upto, 31);
    if (before + all <= at && first + 32 < outputs) {
      before += all;
      continue;
    }
    const int holder = min(min(__popc(__ballot_sync(kFullMask, before + upto <= at)), 31), outputs - 1 - first);
    before += __shfl_sync(kFullMask, upto - own, holder);
    return {first + holder, before};
  }
}
