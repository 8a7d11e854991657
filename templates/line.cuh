// line.cuh -- this CTA's walk along the stream-K line, from the context lengths in device memory. Every warp walks for
// itself; only the search for the start in a batch of more than 32 requests is shared.

constexpr int kParts = 128;      // batches above 32 requests: sums over so many parts of them, while searching
constexpr int kPartsAtOnce = 8;  // a warp's, whose lengths are on their way together

// One contiguous run of LeanTiles of one output tile.
struct Segment {
  int request;  // index into the batch
  int kv_head;
  int row_block;       // which kRows of the query rows
  int context_length;  // tokens, clamped to [0, context_capacity]
  u32 tiles;           // LeanTiles of the output tile
  u32 tile_begin;      // this segment, within the output tile
  u32 tile_end;
  QueryTokens query;
  Visible visible;
};

LEAN_DEVICE const char* query_row(const LeanDecodeArgs& args, const Segment& s, const Row& row) {
  return (const char*)args.q + 2 * row_offset(s.request, s.query, s.kv_head, row, args.q_stride_batch,
                                              args.q_stride_token, args.q_stride_head);
}

LEAN_DEVICE int query_position(const Segment& s, const Row& row) {
  return s.context_length - s.query.count + row.token;
}

LEAN_DEVICE bool is_whole(const Segment& s) { return s.tile_begin == 0 && s.tile_end == s.tiles; }

struct Walk {
  LeanSplit split;
  u32 position;  // next place on the line
  u32 end;
  u32 origin;  // place of the segment's output tile: segment_cost empty ones, then its LeanTiles
  Segment segment;
};

LEAN_DEVICE int clamp_length(const LeanDecodeArgs& args, int length) {
  return min(max(length, 0), args.context_capacity);
}
LEAN_DEVICE int context_length_of(const LeanDecodeArgs& args, int request) {
  return clamp_length(args, args.context_lengths[request]);
}

// Places one output tile of a request takes on the line.
LEAN_DEVICE u32 places_of(const LeanDecodeArgs& args, int context_length, int request) {
  return args.segment_cost + visible_of(context_length, args.q_offsets, request).tiles;
}

LEAN_DEVICE void set_request(const LeanDecodeArgs& args, Segment& s, int request, int context_length) {
  s.request = request;
  s.context_length = context_length;
  s.query = query_tokens(args.q_offsets, request);
  s.visible = visible_of(context_length, args.q_offsets, request);
  s.tiles = s.visible.tiles;
}

LEAN_DEVICE u32 warp_inclusive_sum(u32 value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 lower = __shfl_up_sync(kFullMask, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

// The LeanTiles between walk.position and walk.end that belong to the output tile at walk.origin; of a batch-invariant
// schedule (segment_cost 0) the first of them. False when there are none, which can only be at the end of the range.
LEAN_DEVICE bool set_segment_tiles(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  const u32 begin = walk.position - walk.origin,
            end = kBatchInvariant ? begin + 1 : min(begin + (walk.end - walk.position), args.segment_cost + s.tiles);
  s.tile_begin = max(begin, args.segment_cost) - args.segment_cost;
  s.tile_end = max(end, args.segment_cost) - args.segment_cost;
  return s.tile_end != s.tile_begin;
}

// This CTA's range. False when it is empty.
LEAN_DEVICE bool take_range(const LeanDecodeArgs& args, Walk& walk, u32 places) {
  walk.split = lean_split(places, gridDim.x, args.grid_reciprocal);
  walk.position = lean_first_tile(walk.split, blockIdx.x);
  walk.end = lean_first_tile(walk.split, blockIdx.x + 1);
  return walk.position != walk.end;
}

// Places the walk inside request `request`, whose first place on the line is `origin`.
LEAN_DEVICE bool enter_request(const LeanDecodeArgs& args, Walk& walk, int request, int context_length, u32 origin) {
  Segment& s = walk.segment;
  set_request(args, s, request, context_length);
  const u32 places = args.segment_cost + s.tiles, output = lean_quotient(walk.position - origin, places);
  walk.origin = origin + output * places;
  s.kv_head = (int)(output / kRowBlocks);
  s.row_block = (int)(output % kRowBlocks);
  return set_segment_tiles(args, walk);
}

// Where a CTA starts in a batch of more than 32 requests, and the line's length. `before`: places of all requests
// before, per output tile.
struct Start {
  u32 places, request, before;
};

// What finding it goes by: the arguments, one by one, because a call cannot take them as they are.
struct Batch {
  const int* context_lengths;
  const int* q_offsets;
  int size, context_capacity;
  u32 segment_cost, outputs, grid_reciprocal;

  // Places of a request's output tile; none behind the last request.
  LEAN_DEVICE u32 places_of(int request) const {
    const int known = min(request, size - 1), length = min(max(context_lengths[known], 0), context_capacity);
    return request < size ? segment_cost + visible_of(length, q_offsets, known).tiles : 0u;
  }
};

// Requests stand in rows of 32 and rows in kParts parts. The warps sum up the parts, then each finds its part in the
// sums, and the request in the part. A call, not inlined: it would stand between a small batch and its first KV
// request. Short, because code that runs once costs several cycles an instruction. `part_sums` is shared scratch
// [kParts].
__device__ __noinline__ Start find_start(const Batch batch, u32* part_sums) {
  constexpr int kCtaWarps = kWarps + kProducerWarps;
  const int lane = threadIdx.x % 32, rows = (batch.size + 31) / 32, part_rows = (rows + kParts - 1) / kParts,
            parts = (rows + part_rows - 1) / part_rows;
#pragma unroll 1
  for (int first = threadIdx.x / 32; first < parts; first += kPartsAtOnce * kCtaWarps) {
    u32 sum[kPartsAtOnce] = {};
#pragma unroll 1
    for (int row = 0; row < part_rows; row++)
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; i++)
        sum[i] += batch.places_of(((first + i * kCtaWarps) * part_rows + row) * 32 + lane);
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; i++) {
      const u32 total = __reduce_add_sync(kFullMask, sum[i]);
      if (lane == 0 && first + i * kCtaWarps < parts) part_sums[first + i * kCtaWarps] = total;
    }
  }
  __syncthreads();
  u32 part[4];  // four of them a lane
#pragma unroll
  for (int i = 0; i < 4; i++) part[i] = 4 * lane + i < parts ? part_sums[4 * lane + i] : 0u;
  u32 upto = warp_inclusive_sum(part[0] + part[1] + part[2] + part[3], lane);
  const u32 total = __shfl_sync(kFullMask, upto, 31) * batch.outputs;
  const u32 position = lean_first_tile(lean_split(total, gridDim.x, batch.grid_reciprocal), blockIdx.x);
  const int owner = __popc(__ballot_sync(kFullMask, upto * batch.outputs <= position));
  u32 before = __shfl_sync(kFullMask, upto, max(owner - 1, 0));
  if (owner == 0) before = 0;
  int row = 4 * owner * part_rows;
#pragma unroll
  for (int i = 0; i < 3; i++) {
    const u32 each = __shfl_sync(kFullMask, part[i], owner);
    const bool passed = (before + each) * batch.outputs <= position;  // once false it stays so: what follows only adds
    before += passed ? each : 0;
    row += passed ? part_rows : 0;
    if (!passed) break;
  }
#pragma unroll 1
  for (; row < rows; row++) {
    upto = warp_inclusive_sum(batch.places_of(row * 32 + lane), lane);
    const int passed = __popc(__ballot_sync(kFullMask, (before + upto) * batch.outputs <= position));
    const u32 last = __shfl_sync(kFullMask, upto, passed == 32 ? 31 : max(passed - 1, 0));
    if (passed > 0) before += last;
    if (passed < 32) return {total, (u32)(row * 32 + passed), before};
  }
  return {total, (u32)batch.size - 1, before};  // a CTA with an empty range
}

// The length that start_walk needs first. Asked for before anything else: all that follows waits for it.
LEAN_DEVICE int first_length(const LeanDecodeArgs& args) {
  return args.context_lengths[args.batch > 32 ? 0 : min((int)threadIdx.x % 32, args.batch - 1)];
}

// Splits the line and finds where this CTA starts. False when there is nothing for it. Every warp computes it for
// itself.
LEAN_DEVICE bool start_walk(const LeanDecodeArgs& args, int first_length, u32* part_sums, Walk& walk) {
  const int lane = threadIdx.x % 32;
  const u32 outputs = (u32)args.kv_heads * kRowBlocks;  // output tiles per request
  int request = 0, length = clamp_length(args, first_length);
  const u32 places = places_of(args, length, min(lane, args.batch - 1));
  u32 total = places * outputs, origin = 0;
  if (args.batch > 1) {
    if (args.batch > 32) {
      const Start start = find_start({args.context_lengths, args.q_offsets, args.batch, args.context_capacity,
                                      args.segment_cost, outputs, args.grid_reciprocal},
                                     part_sums);
      request = (int)start.request;
      length = context_length_of(args, request);
      total = start.places, origin = start.before * outputs;
      if (!take_range(args, walk, total)) return false;
    } else {
      const u32 upto = warp_inclusive_sum(lane < args.batch ? places : 0u, lane);
      if (!take_range(args, walk, __shfl_sync(kFullMask, upto, 31) * outputs)) return false;
      request = __popc(__ballot_sync(kFullMask, upto * outputs <= walk.position));
      const u32 before = __shfl_sync(kFullMask, upto, max(request - 1, 0));
      origin = request == 0 ? 0 : before * outputs;
      length = __shfl_sync(kFullMask, length, request);
    }
  } else if (!take_range(args, walk, total)) {
    return false;
  }
  return enter_request(args, walk, request, length, origin);
}

// Moves past the current segment. False when the CTA's range is done.
LEAN_DEVICE bool next_segment(const LeanDecodeArgs& args, Walk& walk) {
  Segment& s = walk.segment;
  if (kBatchInvariant && s.tile_end != s.tiles) return ++walk.position < walk.end && set_segment_tiles(args, walk);
  walk.position = walk.origin = walk.origin + args.segment_cost + s.tiles;
  if (s.tile_end != s.tiles || walk.position >= walk.end) return false;
  if (++s.row_block == kRowBlocks) {
    s.row_block = 0;
    if (++s.kv_head == args.kv_heads) {
      s.kv_head = 0;
      set_request(args, s, s.request + 1, context_length_of(args, s.request + 1));
    }
  }
  return set_segment_tiles(args, walk);
}
