// line.cuh -- this CTA's walk along the stream-K line, from the context lengths in device memory. Every warp walks for
// itself; only the search for the start in a batch of more than kMostAlone requests is shared.

constexpr int kMostAlone = 256;  // requests of a batch in which each warp finds its start by itself
constexpr int kParts = 32;       // of a larger batch, while searching
constexpr int kBlock = 128;      // requests: parts are made of whole blocks

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
  int context_length;
};

// What finding it goes by: the arguments, one by one, because a call cannot take them as they are.
struct Batch {
  const int* context_lengths;
  const int* q_offsets;
  int size, context_capacity;
  u32 segment_cost, outputs, grid_reciprocal;

  LEAN_DEVICE int context_length_of(int request) const {
    return min(max(context_lengths[min(request, size - 1)], 0), context_capacity);
  }
  // Places of a request's output tile; none behind the last request.
  LEAN_DEVICE u32 places_of(int request, int context_length) const {
    return request < size ? segment_cost + visible_of(context_length, q_offsets, request).tiles : 0u;
  }
  // Where this CTA's range begins on a line of `places`.
  LEAN_DEVICE u32 begin_of_range(u32 places) const {
    return lean_first_tile(lean_split(places, gridDim.x, grid_reciprocal), blockIdx.x);
  }
};

// Neighbouring requests as a warp looks at them, `kEach` a lane.
template <int kEach>
struct Requests {
  int first;
  int length[kEach];
  u32 places[kEach];
  u32 sum, upto;  // this lane's places, and those of all lanes up to it

  LEAN_DEVICE Requests(const Batch& batch, int first_request) {
    const int lane = threadIdx.x % 32;
    first = first_request, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; i++) length[i] = batch.context_length_of(first + lane * kEach + i);
#pragma unroll
    for (int i = 0; i < kEach; i++) sum += places[i] = batch.places_of(first + lane * kEach + i, length[i]);
    upto = warp_inclusive_sum(sum, lane);
  }

  LEAN_DEVICE u32 all() const { return __shfl_sync(kFullMask, upto, 31); }

  // The request that holds `position`, of a line of `line` places; `before` of them before these requests.
  LEAN_DEVICE Start holder(const Batch& batch, u32 line, u32 before, u32 position) const {
    const int owner = min(__popc(__ballot_sync(kFullMask, (before + upto) * batch.outputs <= position)), 31);
    before += __shfl_sync(kFullMask, upto - sum, owner);
    Start start = {line, (u32)(first + owner * kEach), before, __shfl_sync(kFullMask, length[0], owner)};
#pragma unroll
    for (int i = 1; i < kEach; i++) {
      before += __shfl_sync(kFullMask, places[i - 1], owner);
      const int next = __shfl_sync(kFullMask, length[i], owner);
      if (before * batch.outputs <= position) start.before = before, start.request++, start.context_length = next;
    }
    return start;
  }
};

// This and find_start are calls, not inlined: they would stand between a small batch and its first KV request. And
// short, because code that runs once costs several cycles an instruction. Up to 32 * kEach requests every warp finds
// the start by itself.
template <int kEach>
__device__ __noinline__ Start find_start_alone(const Batch batch) {
  const Requests<kEach> requests(batch, 0);
  const u32 line = requests.all() * batch.outputs;
  return requests.holder(batch, line, 0, batch.begin_of_range(line));
}

// Above kMostAlone the warps sum up kParts parts of the batch, and each finds its part in the sums and the request in
// the part. `part_sums` is shared scratch [kParts].
__device__ __noinline__ Start find_start(const Batch batch, u32* part_sums) {
  constexpr int kCtaWarps = kWarps + kProducerWarps, kAtOnce = 2;  // parts of a warp, whose lengths travel together
  const int lane = threadIdx.x % 32;
  const int part_blocks = (batch.size + kParts * kBlock - 1) / (kParts * kBlock), part_size = part_blocks * kBlock,
            parts = (batch.size + part_size - 1) / part_size;
#pragma unroll 1
  for (int part = threadIdx.x / 32; part < parts; part += kAtOnce * kCtaWarps) {
    u32 sum[kAtOnce] = {};
#pragma unroll 1
    for (int first = part * part_size; first < (part + 1) * part_size; first += kBlock)
#pragma unroll
      for (int row = 0; row < kBlock; row += 32)
#pragma unroll
        for (int i = 0; i < kAtOnce; i++) {
          const int request = first + i * kCtaWarps * part_size + row + lane;
          sum[i] += batch.places_of(request, batch.context_length_of(request));
        }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const u32 all = __reduce_add_sync(kFullMask, sum[i]);
      if (lane == 0 && part + i * kCtaWarps < parts) part_sums[part + i * kCtaWarps] = all;
    }
  }
  __syncthreads();
  const u32 mine = lane < parts ? part_sums[lane] : 0u, upto = warp_inclusive_sum(mine, lane),
            line = __shfl_sync(kFullMask, upto, 31) * batch.outputs, position = batch.begin_of_range(line);
  const int part = min(__popc(__ballot_sync(kFullMask, upto * batch.outputs <= position)), parts - 1);
  u32 before = __shfl_sync(kFullMask, upto - mine, part);
#pragma unroll 1
  for (int first = part * part_size;; first += kBlock) {
    const Requests<kBlock / 32> requests(batch, first);
    const u32 all = requests.all();
    if (first + kBlock >= batch.size || (before + all) * batch.outputs > position)
      return requests.holder(batch, line, before, position);
    before += all;
  }
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
      const Batch batch = {args.context_lengths, args.q_offsets, args.batch,          args.context_capacity,
                           args.segment_cost,    outputs,        args.grid_reciprocal};
      const Start start = args.batch <= 64           ? find_start_alone<2>(batch)
                          : args.batch <= kMostAlone ? find_start_alone<kMostAlone / 32>(batch)
                                                     : find_start(batch, part_sums);
      request = (int)start.request;
      length = start.context_length;
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
